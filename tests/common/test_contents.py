"""Hashes of content: files that keep size and time are told apart, and unchanged ones are read once."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from florilegium.common import contents
from florilegium.common.contents import content_of
from florilegium.common.errors import DataError
from florilegium.common.memo import forget
from florilegium.partitions.describing import described
from florilegium.partitions.device_data import state_of
from florilegium.partitions.settings import SourceSettings
from florilegium.partitions.sources import folders
from florilegium.partitions.sources.source import Source
from florilegium.partitions.sources.words import vocabulary

OLD = 10**9
"""A time in 2001, in seconds."""


def _in_place(file: Path, text: str) -> None:
    file.write_text(text)
    os.utime(file, (OLD, OLD))


def _renamed(file: Path, text: str) -> None:
    """As rsync and editors write: to another file, which then takes the name."""
    _in_place(file.with_name(".new"), text)
    file.with_name(".new").replace(file)


def _unpacked(file: Path, text: str) -> None:
    _in_place(made := file.with_name("made"), text)
    with tarfile.open(file.with_name("a.tar"), "w") as archive:
        archive.add(made, file.name)
    with tarfile.open(file.with_name("a.tar")) as archive:
        archive.extractall(file.parent, filter="tar")


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hashes be remembered at once; the changes of these tests lie further apart than a tick of the clock."""
    monkeypatch.setattr(contents, "_SETTLED", 0)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", [_in_place, _renamed, _unpacked])
@pytest.mark.parametrize("cached", [True, False])
def test_a_file_that_keeps_its_size_and_time_has_changed(
    tmp_path: Path, change: Callable[[Path, str], None], cached: bool
) -> None:
    file, cache = tmp_path / "train.csv", tmp_path / "cache" if cached else None
    change(file, "x,y\n1,0\n")
    before, stat = content_of([file], cache), file.stat()
    change(file, "x,y\n1,1\n")
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert content_of([file], cache) != before
    change(file, "x,y\n1,0\n")
    assert content_of([file], cache) == before


@pytest.mark.usefixtures("settled")
def test_an_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "train.csv"
    file.write_text("x")
    before = content_of([file], tmp_path / "cache")
    monkeypatch.setattr(contents, "_read", None)
    assert content_of([file], tmp_path / "cache") == before


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path) -> None:
    """Within a tick of the system's clock it could change again without another time."""
    file = tmp_path / "train.csv"
    file.write_text("x")
    content_of([file], tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_files_that_change_while_they_are_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "train.csv"
    file.write_text("x,label\n" + "1,0\n2,1\n" * 20)
    real = folders.read_folder

    def slow(folder: Path) -> object:
        found = real(folder)
        file.write_text("x,label\n" + "1,1\n2,0\n" * 20)
        return found

    monkeypatch.setattr(folders, "read_folder", slow)
    keys = SourceSettings.model_validate({"dataset": str(tmp_path), "cache_dir": str(tmp_path / "cache")})
    with pytest.raises(DataError, match=r"files have changed while they were read"):
        described(Source.of(keys))


def test_a_device_and_word_vectors_notice_it_too(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    _in_place(site / "train.csv", "x,y\n1,0\n")
    before = state_of(str(site))
    _in_place(site / "train.csv", "x,y\n1,1\n")
    assert state_of(str(site)) != before
    _in_place(tmp_path / "glove.txt", "the 1 2\n")
    first = vocabulary(str(tmp_path / "glove.txt"), str(tmp_path / "cache"), 2).vectors[1].tolist()
    _in_place(tmp_path / "glove.txt", "the 3 4\n")
    forget()  # as the next run of a notebook does
    second = vocabulary(str(tmp_path / "glove.txt"), str(tmp_path / "cache"), 2).vectors[1].tolist()
    assert (first, second) == ([1, 2], [3, 4])
