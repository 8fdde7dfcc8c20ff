"""Files that hold clients' figures and models cannot be read by other users of the machine, whatever the umask."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from florilegium.clients.core.wire import Reply
from florilegium.common.files import append_text, write_text
from tests.liars import Devices


def test_files_of_clients_are_0640_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        "method": "fedamp", "model": "linear", "num-clients": 3, "partitioner": "iid", "rounds": 1, "local-steps": 1,
        "participation": 1.0, "evaluate-every": 1, "min-success": 0.5,
    }  # fmt: skip
    before = os.umask(0)
    try:
        path = Devices(tmp_path, keys, monkeypatch).lied("run", lambda honest, kind: Reply([], {}, {}, {"liar": "no"}))
    finally:
        os.umask(before)
    names = ("clients.csv", "failures.jsonl", "summary.json", "**/round-*.safetensors", "bank/**/*.safetensors")
    for name in names:
        found = [*path.glob(name)]
        assert found, name
        assert not [file for file in found if file.stat().st_mode & 0o777 & ~0o640], name
    states = [*(tmp_path / "states").rglob("*.safetensors")]
    assert states
    assert not [file for file in states if file.stat().st_mode & 0o777 & ~0o640]


def test_a_mode_that_is_stricter_stays(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        for write in (write_text, append_text):
            write(tmp_path / "file", "text\n", private=True)
            assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
