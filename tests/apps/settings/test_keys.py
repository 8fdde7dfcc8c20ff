"""Keys are declared once: what is generated from the declarations is up to date, and says what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import pytest
from flwr.app import Context, Message, RecordDict

from docs.generate import TOML_MARKS, generated, replaced
from florilegium.apps.client_app import roster
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.origins.code import code_version
from florilegium.apps.origins.packages import versions
from florilegium.apps.origins.tested import TESTED
from florilegium.apps.settings.configuration import called, complete, defaults, packed, parse, received, sections
from florilegium.apps.settings.keys import Key, groups, method_keys
from florilegium.clients.core.wire import Announcement
from florilegium.common.commit import commit_of
from florilegium.common.errors import ConfigurationError
from florilegium.common.references import resolve
from florilegium.common.settings import Value
from florilegium.strategies.folder.run_folder import read_config
from tests.apps.api.test_api import HalvedKeys
from tests.processes import ROOT
from tests.support import config

KEYS: dict[str, Key] = {key.name: key for group in groups() for key in group.keys}


def test_what_is_generated_is_up_to_date() -> None:
    for path, text in generated(ROOT).items():
        assert path.exists(), f"{path} is missing: run `make generate`, and write it on"
        assert path.read_text(encoding="utf-8") == text, "run `make generate`"


def test_generated_files_need_their_marks() -> None:
    assert replaced(f"a\n{TOML_MARKS[0]}old\n{TOML_MARKS[1]}b\n", TOML_MARKS, "new\n", "x").count("new") == 1
    for text in ("", TOML_MARKS[0], TOML_MARKS[0] * 2 + TOML_MARKS[1]):
        with pytest.raises(ConfigurationError, match="x: expected the line '# begin generated"):
            replaced(text, TOML_MARKS, "", "x")


def test_every_key_has_a_meaning_and_is_listed_once() -> None:
    names = [key.name for group in groups() for key in group.keys]
    assert len(names) == len(set(names))
    assert set(names) == set(defaults())
    assert not [key.name for key in KEYS.values() if len(key.meaning) < 3 or not key.values]


def test_every_default_is_in_its_range() -> None:
    for section in sections().values():
        section.model_validate({str(field.alias): field.default for field in section.model_fields.values()})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fedprox.mu", "≥ 0"),
        ("participation", "(0, 1]"),
        ("momentum", "[0, 1)"),
        ("weighting", "`examples`, `uniform`"),
        ("balanced", "`true`, `false`"),
        ("metrics-port", "[0, 65535]"),
        ("dataset", "`florilegium datasets`, or [your own](data.md)"),
    ],
)
def test_ranges_are_read_off_the_declarations(name: str, values: str) -> None:
    assert KEYS[name].values == values


def test_methods_that_share_a_table_have_its_keys() -> None:
    assert method_keys("l2p") == method_keys("fedl2p")
    assert {key.name for key in method_keys("optimal")} == {name for name in defaults() if name.startswith("kmeans.")}
    assert not method_keys("fedavg")
    for name in METHODS:
        assert all(key.name in KEYS for key in method_keys(name))


def test_a_key_that_pyproject_lacks_gets_one_message() -> None:
    keys = config()
    del keys["local-epochs"]
    with pytest.raises(ConfigurationError) as error:
        parse(keys)
    lines = str(error.value).splitlines()[1:]
    assert len(lines) == 1
    assert lines[0].strip().startswith("local-epochs: missing, though the code declares it")


def test_the_command_line_lists_keys() -> None:
    command = [sys.executable, "-m", "florilegium", "keys"]
    done = subprocess.run([*command, "fedprox"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "fedprox.mu" in done.stdout
    assert "weight μ of the proximal term" in done.stdout
    missing = subprocess.run([*command, "nothing"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert missing.returncode == 2
    assert "no key contains 'nothing'" in missing.stderr


def test_help_says_what_positional_arguments_are() -> None:
    command = [sys.executable, "-m", "florilegium", "sweep", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "a recipe's name, or a TOML file" in shown


def test_the_version_names_the_commit() -> None:
    command = [sys.executable, "-m", "florilegium", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    head = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.startswith("florilegium 0.")
    assert f"commit {head.stdout.strip()}" in shown
    assert f"code {code_version()}" in shown
    for package, tested in TESTED.items():
        assert f"{package} {metadata.version(package)}" in shown.splitlines()[1]
        assert f"{package} {', '.join(tested)}" in shown.splitlines()[2]


def test_a_commit_is_that_of_the_checkout_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit_of(ROOT)
    assert commit_of(ROOT / "apps") == ""  # an archive that was unpacked inside another checkout
    assert commit_of(tmp_path) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(ROOT) == ""  # no git


class TestPackages:
    """Keys and code of other packages, as Flower carries them."""

    GIVEN: ClassVar[dict[str, Value]] = {"method": "tests.apps.api.test_api:SCALED", "scaled.factor": 0.25, "rounds": 3}

    def test_keys_travel_in_one_text(self) -> None:
        sent = packed(self.GIVEN)
        assert sent.keys() <= defaults().keys()
        arrived = received({**defaults(), **sent})
        assert {name: arrived[name] for name in self.GIVEN} == self.GIVEN
        assert arrived["package-keys"] == ""
        assert parse(arrived)[1] == HalvedKeys(factor=0.25)

    def test_absent_keys_have_their_defaults(self) -> None:
        assert parse(complete({"method": "tests.apps.api.test_api:SCALED"}))[1] == HalvedKeys(factor=0.5)

    @pytest.mark.parametrize("text", ["scaled.factor", "= 3", "[a"])
    def test_a_text_that_is_not_toml_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match=r"package-keys: .* is not valid TOML"):
            complete({"package-keys": text})

    def test_what_a_node_lacks_is_named(self) -> None:
        assert versions({"method": "nowhere.method:X"}) == ["nowhere (not installed)"]
        assert versions({"method": "fed-nowhere", "model": "mlp"}) == ["fed-nowhere (not installed)"]
        assert versions({"method": "fedavg", "model": "torchvision:resnet18", "dataset": "hub:org/name"}) == []

    def test_a_device_without_the_package_says_so_before_anything_else(self) -> None:
        context = Context(1, 1, {"data-path": "/nowhere"}, RecordDict(), complete({"method": "fed-nowhere"}))
        reply = roster(Message(RecordDict(), 1, "query.roster"), context)
        answer = Announcement.unpack(reply.content)
        assert answer.pinned
        assert answer.packages == ["fed-nowhere (not installed)"]

    def test_a_folder_of_modules_is_searched_last(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "json.py").write_text("raise AssertionError\n")
        (tmp_path / "ownmethods.py").write_text("VALUE = 3\n")
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setenv("FLORILEGIUM_PATH", str(tmp_path))
        assert resolve("ownmethods:VALUE") == 3
        assert resolve("json:dumps") is json.dumps


class TestCode:
    """The hash covers what a method's references name outside the package."""

    def test_a_module_or_package_of_the_users_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "ownpackage").mkdir()
        for name in ("__init__", "method", "helper"):
            (tmp_path / "ownpackage" / f"{name}.py").write_text(f"# {name}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        code_version.cache_clear()
        before = code_version(("ownpackage.method:Client",))
        assert before != code_version()
        (tmp_path / "ownpackage" / "helper.py").write_text("# changed\n")
        code_version.cache_clear()
        assert code_version(("ownpackage.method:Client",)) != before

    @pytest.mark.parametrize("reference", ["nowhere.method:Client", "__main__:Client", "sys:path"])
    def test_what_has_no_source_is_refused(self, reference: str) -> None:
        with pytest.raises(ConfigurationError, match="has no source file"):
            code_version((reference,))


def test_a_run_of_an_earlier_version_is_read_in_todays_words(tmp_path: Path) -> None:
    for method, expected in (("fedavg", "fedadam"), ("pefll", "adam")):
        (tmp_path / "config.toml").write_text(f'method = "{method}"\nserver-optimizer = "adam"\n')
        assert read_config(tmp_path)["server-optimizer"] == expected


def test_words_of_other_programs_name_one_key_each() -> None:
    words = [word for group in groups() for key in group.keys if "." not in key.name for word in key.also]
    assert "lr" in words
    assert len(words) == len(set(words))
    assert not {*words} & {*defaults()}
    assert called("fraction-train") == "participation"
    with pytest.raises(ConfigurationError, match="lr: there is no such key; it is called 'learning-rate' here"):
        parse(complete({"lr": 0.1}))
