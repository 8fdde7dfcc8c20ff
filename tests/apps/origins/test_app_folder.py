"""Flower apps hold every file that a run needs."""

from __future__ import annotations

import importlib
import io
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from florilegium.apps.origins import app_folder
from florilegium.apps.origins.app_folder import LEFT_OUT, write_app
from florilegium.apps.origins.code import LAYERS, layer_folder
from florilegium.common.errors import ConfigurationError
from tests.processes import ROOT


def _names(folder: Path) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))) as bundle:
        return {*bundle.namelist()}


@pytest.mark.parametrize("written", [True, False])
def test_an_apps_bundle_has_all_code(written: bool, tmp_path: Path) -> None:
    """The bundle of a written app, and of the checkout: every source file of every layer, and how to find them."""
    files = {f"{layer}/{path.relative_to(layer_folder(layer)).as_posix()}" for layer in LAYERS
             for path in layer_folder(layer).rglob("*.py")}  # fmt: skip
    assert len(files) > 300
    found = _names(write_app(tmp_path / "app") if written else ROOT)
    assert {"pyproject.toml", "florilegium/__init__.py"} <= found
    assert {f"florilegium/{name}" if written else name for name in files} <= found


def test_a_written_app_is_what_flower_hub_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the checks with which ``flwr app publish`` begins: name, description, licence, numbers and sizes of files."""
    publish = importlib.import_module("flwr.cli.app_cmd.publish")  # its package has a function of this name
    app = write_app(tmp_path / "florilegium")
    table = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert table["license"] == "Apache-2.0"
    assert len(table["description"]) < 200
    publish._validate_app_name(app.name, "folder")
    publish._validate_description(table["description"])
    files = publish._collect_file_paths(app)
    publish._validate_files(files)
    assert {app / name for name in ("LICENSE", "README.md", "pyproject.toml")} <= {*files}
    assert {*app.rglob("*.py")} <= {*files}
    skipped = {line.rpartition(".")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("Skip")}
    assert skipped <= {"template", "j2"}  # of the command line
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert table["dependencies"] == tomllib.load(file)["project"]["dependencies"]  # no extra's


@pytest.mark.parametrize("name", ["test_time.py", "time_test.py"])
def test_a_name_that_flower_takes_for_a_test_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the client of a method about time at testing: nodes would lack the file."""
    layer = tmp_path / "clients" / "families"
    layer.mkdir(parents=True)
    (layer / name).touch()
    assert any(layer.rglob(pattern) for pattern in LEFT_OUT)
    real = layer_folder
    monkeypatch.setattr(app_folder, "layer_folder", lambda one: layer.parent if one == "clients" else real(one))
    with pytest.raises(ConfigurationError, match=rf"{name}: Flower takes files named test_\*\.py and \*_test\.py"):
        write_app(tmp_path / "app")
    assert not (tmp_path / "app").exists()
