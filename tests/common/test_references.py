"""References to code by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from florilegium.common.errors import ConfigurationError
from florilegium.common.references import resolve
from florilegium.common.settings import NoHyper


def test_a_reference_is_imported() -> None:
    assert resolve("florilegium.common.settings:NoHyper") is NoHyper


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("florilegium.common.settings", "expected 'package.module:attribute'"),
        (":NoHyper", "expected 'package.module:attribute'"),
        ("florilegium.common.nowhere:X", "there is no module 'florilegium.common.nowhere'"),
        ("nowhere.at.all:X", "there is no module 'nowhere'"),
        ("florilegium.common.settings:Nobody", "has no 'Nobody'"),
    ],
)
def test_what_is_not_there_is_named(reference: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        resolve(reference)


def test_what_a_module_itself_lacks_is_not_taken_for_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        resolve("lacking:X")
    sys.modules.pop("lacking", None)
