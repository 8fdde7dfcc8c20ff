"""Signed apps: a signature is of one key and one bundle, and any changed file, name or setting breaks it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.devices.bundles import bundle_of
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.owner.keys import make_key, public
from florilegium.owner.signing import sign, signer
from tests.apps.devices.test_supernode import CODE, PROJECT

CONFIG = "[tool.flwr.app.config]\nrounds = 3\n"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The folder of an app of two files."""
    folder = tmp_path / "told"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT + CONFIG)
    (folder / "told.py").write_text(CODE)
    (folder / "more.py").write_text("x = 1\n")
    return folder


def test_a_signed_app_is_known(app: Path, tmp_path: Path) -> None:
    key, other = make_key(tmp_path / "key"), make_key(tmp_path / "other")
    assert signer(bundle_of(app)) is None
    for owner in (key, other, key):
        sign(app, bundle_of(app), owner)
        assert signer(bundle_of(app)) == public(owner)
    assert (app / "pyproject.toml").read_text().count("signature]") == 1


def _changed(folder: Path, change: Callable[[dict[str, bytes]], object]) -> bytes:
    """Return the bundle of an app with its files changed."""
    with zipfile.ZipFile(io.BytesIO(bundle_of(folder))) as bundle:
        files = {name: bundle.read(name) for name in bundle.namelist()}
    change(files)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        for name, data in files.items():
            bundle.writestr(name, data)
    return content.getvalue()


def _replace(name: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], object]:
    def change(files: dict[str, bytes]) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _replace("more.py", b"x = 1", b"x = 2"),
        _replace("pyproject.toml", b"rounds = 3", b"rounds = 4"),
        _replace("pyproject.toml", b"told:app", b"more:app"),
        lambda files: files.update({"new.py": b""}),
        lambda files: files.pop("more.py"),
        lambda files: files.update({"less.py": files.pop("more.py")}),
    ],
)
def test_any_change_breaks_a_signature(app: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], object]) -> None:
    key = make_key(tmp_path / "key")
    sign(app, bundle_of(app), key)
    assert signer(_changed(app, lambda files: None)) == public(key)  # written anew, by other software
    assert signer(_changed(app, change)) is None


def test_a_signature_of_another_key_is_none(app: Path, tmp_path: Path) -> None:
    key, other = make_key(tmp_path / "key"), make_key(tmp_path / "other")
    sign(app, bundle_of(app), key)
    swap = _replace("pyproject.toml", public(key).encode(), public(other).encode())
    assert signer(_changed(app, swap)) is None
    for table in (b'signature = "x"', b"signature = []", b"signature = 3"):
        text = PROJECT.encode() + b"[tool.florilegium]\n" + table
        assert signer(_changed(app, lambda files, text=text: files.update({"pyproject.toml": text}))) is None  # type: ignore[misc]


def test_what_is_no_bundle_is_refused(app: Path) -> None:
    with pytest.raises(DataError, match="no bundle"):
        signer(b"nonsense")
    with pytest.raises(DataError, match=r"no pyproject\.toml"):
        signer(_changed(app, lambda files: files.pop("pyproject.toml")))
    with pytest.raises(DataError, match="cannot be read"):
        signer(_changed(app, lambda files: files.update({"pyproject.toml": b"["})))
    with pytest.raises(DataError, match="outside of it"):
        signer(_changed(app, lambda files: files.update({"../more.py": b""})))
    content = io.BytesIO(bundle_of(app))
    with zipfile.ZipFile(content, "a") as bundle, pytest.warns(UserWarning, match="Duplicate"):
        bundle.writestr("more.py", "x = 3")
    with pytest.raises(DataError, match="one name"):
        signer(content.getvalue())


def test_a_bundle_that_is_too_large_is_not_unpacked(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("florilegium.owner.signing._MOST", 100)
    with pytest.raises(DataError, match="more than 100 bytes"):
        signer(bundle_of(app))


def _called(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["app", *map(str, words)])
    if isinstance(done.exception, Exception):
        raise done.exception
    return done.exit_code, done.output


def test_the_commands(app: Path, tmp_path: Path) -> None:
    keys = [_called("key", tmp_path / name)[1].strip() for name in ("key", "other")]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "key.pub").read_text().strip() == keys[0]
    assert _called("verify", app)[0] == 1
    assert _called("sign", app, "--key", tmp_path / "key") == (0, f"{keys[0]}\n")
    (tmp_path / "app.fab").write_bytes(bundle_of(app))
    for what in (app, tmp_path / "app.fab"):
        code, said = _called("verify", what, "--signer", tmp_path / "key.pub")
        assert (code, f"signed by {keys[0]}" in said) == (0, True)
        assert _called("verify", what, "--signer", keys[1])[0] == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="no Flower app"):
        _called("verify", tmp_path / "empty")


def test_the_short_form_writes_the_app(tmp_path: Path) -> None:
    code, said = _called(tmp_path / "fl-app")
    assert (code, said.strip()) == (0, str(tmp_path / "fl-app"))
    assert (tmp_path / "fl-app" / "pyproject.toml").exists()
    key = tmp_path / "key"
    make_key(key)
    assert _called("sign", tmp_path / "fl-app", "--key", key)[0] == 0
    assert _called("verify", tmp_path / "fl-app")[0] == 0
