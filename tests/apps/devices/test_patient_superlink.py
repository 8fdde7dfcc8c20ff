"""``florilegium superlink``: Flower's, with a database that waits longer for a lock."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from flwr.supercore import sql_mixin
from flwr.supercore.object_store import ObjectStoreFactory
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.devices import flower_inside, patient_superlink


def _waits(database: Path) -> int:
    store = ObjectStoreFactory(str(database)).store()
    return int(store.query("PRAGMA busy_timeout")[0]["timeout"])  # type: ignore[attr-defined]


def test_its_database_waits_for_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)  # what it is when the test ends
    monkeypatch.setattr(sys, "argv", sys.argv)
    started: list[list[str]] = []
    monkeypatch.setattr(patient_superlink, "flower_superlink", lambda: started.append(sys.argv))
    assert _waits(tmp_path / "flower.db") == 5_000  # which is why there is the command
    result = CliRunner().invoke(cli, ["superlink", "--insecure", "--port", "9"])
    assert (result.exit_code, started) == (0, [["flower-superlink", "--insecure", "--port", "9"]]), result.output
    assert _waits(tmp_path / "own.db") == patient_superlink.WAITS


def test_with_a_version_that_was_not_tested_flowers_own_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replaced: list[list[str]] = []

    def replace(path: str, words: list[str]) -> None:
        replaced.append(words)
        raise SystemExit  # as this process would be gone

    monkeypatch.setattr(flower_inside.os, "execv", replace)
    monkeypatch.setattr(flower_inside, "_SERIES", ["0.9"])
    CliRunner().invoke(cli, ["superlink", "--insecure"])
    assert replaced == [["flower-superlink", "--insecure"]]
    assert "waits two minutes for a lock needs Flower 0.9: `flower-superlink` is used instead" in caplog.text
