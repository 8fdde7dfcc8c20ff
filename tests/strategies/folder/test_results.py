"""Results of completed runs: files that are read, missing, or damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from florilegium.common.errors import RunError
from florilegium.strategies.folder.results import CLIENTS, SUMMARY, read_clients, read_summary


def test_missing_files_are_empty(tmp_path: Path) -> None:
    assert read_summary(tmp_path) == {}
    assert read_clients(tmp_path) == []


def test_contents(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).write_text('{"rounds": 2, "final": {"seen": {"loss": NaN}}, "seconds": 1.5}')
    (tmp_path / CLIENTS).write_text('client,group,name,accuracy\n0,seen,"a, b",0.5\n1,unseen,,\n')
    assert read_summary(tmp_path)["seconds"] == 1.5
    assert read_clients(tmp_path) == [
        {"client": "0", "group": "seen", "name": "a, b", "accuracy": "0.5"},
        {"client": "1", "group": "unseen", "name": "", "accuracy": ""},
    ]


@pytest.mark.parametrize(
    ("read", "file", "content"),
    [
        (read_summary, SUMMARY, b""),
        (read_summary, SUMMARY, b"{"),
        (read_summary, SUMMARY, b"\xff\xfe"),
        (read_summary, SUMMARY, b"[1, 2]"),
        (read_summary, SUMMARY, b'{"rounds": 2}'),
        (read_summary, SUMMARY, b'{"rounds": 2, "final": {"seen": 0.5}}'),
        (read_summary, SUMMARY, b'{"rounds": "2", "final": {}}'),
        (read_clients, CLIENTS, b""),
        (read_clients, CLIENTS, b"client,accuracy\n0,0.5\n"),
        (read_clients, CLIENTS, b"client,group,accuracy\n0,seen\n"),
        (read_clients, CLIENTS, b"client,group,accuracy\n0,seen,0.5,0.6\n"),
        (read_clients, CLIENTS, b"client,group,name\n0,seen,\xff\n"),
        (read_clients, CLIENTS, b"client,group,loss\n0,seen,0.5\n1,seen,abc\n"),
        (read_clients, CLIENTS, b'client,group,name\n0,seen,"a'),
    ],
)
def test_damage_is_told_in_words(read: Callable[[Path], object], file: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(RunError, match=f"{file} is damaged"):
        read(tmp_path)
