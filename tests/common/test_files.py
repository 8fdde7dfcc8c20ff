"""Tests of common.files: a file is written whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
import stat
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from florilegium.common.errors import DataError, RunError
from florilegium.common.files import Draft, append_text, flush_to_disk, make_once, write_atomically, write_text


@contextmanager
def _no_file_longer_than(size):
    """Let the system itself refuse to write more than ``size`` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestSuccess:
    def test_writes_in_folders_that_did_not_exist(self, tmp_path):
        write_text(tmp_path / "a" / "b" / "text", "größer\n")
        write_atomically(tmp_path / "a" / "bytes", lambda temporary: temporary.write_bytes(b"\x00\xff"))
        assert (tmp_path / "a" / "b" / "text").read_bytes() == "größer\n".encode()
        assert (tmp_path / "a" / "bytes").read_bytes() == b"\x00\xff"

    def test_replaces_an_older_file_and_leaves_nothing_beside_it(self, tmp_path):
        write_text(tmp_path / "file", "a much longer old text")
        write_text(tmp_path / "file", "new")
        assert (tmp_path / "file").read_text() == "new"
        assert os.listdir(tmp_path) == ["file"]

    def test_the_writer_never_sees_the_target(self, tmp_path):
        (tmp_path / "file").write_text("old")

        def write(temporary):
            assert temporary.parent == tmp_path  # the same file system, so that the rename is atomic
            assert temporary != tmp_path / "file"
            assert (tmp_path / "file").read_text() == "old"
            temporary.write_text("new")

        write_atomically(tmp_path / "file", write)
        assert (tmp_path / "file").read_text() == "new"

    def test_a_folder_appears_whole_and_is_made_once(self, tmp_path):
        target, made = tmp_path / "cache" / "folder", []

        def make():
            made.append("content")
            return made[-1]

        def write(content, temporary):
            temporary.mkdir()
            (temporary / "first").write_text(content)
            assert not target.exists()
            (temporary / "last").write_text(content)

        for _ in range(2):
            assert make_once(target, make, write) == target
        assert sorted(os.listdir(target)) == ["first", "last"]
        assert made == ["content"]

    def test_the_new_contents_are_on_disk_before_they_replace_the_old(self, tmp_path, monkeypatch):
        path, flushed = tmp_path / "file", []
        path.write_text("old")
        monkeypatch.setattr(os, "fsync", lambda handle: flushed.append((os.pread(handle, 9, 0), path.read_text())))
        write_text(path, "new")
        assert flushed == [(b"new", "old")]

    def test_appended_lines_are_flushed_to_disk(self, tmp_path, monkeypatch):
        path, flushed = tmp_path / "file", []
        monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.pread(handle, 9, 0)))
        flush_to_disk(path)
        assert not flushed
        append_text(path, "line\n")
        assert not flushed
        flush_to_disk(path)
        assert flushed == [b"line\n"]

    def test_the_file_is_readable_by_others(self, tmp_path):
        write_text(tmp_path / "file", "x")
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


class TestDraft:
    def test_the_file_is_as_it_was_until_the_draft_is_published(self, tmp_path):
        (tmp_path / "file").write_text("old")
        draft = Draft(tmp_path / "file", lambda temporary: temporary.write_text("new"))
        assert (tmp_path / "file").read_text() == "old"
        draft.publish()
        draft.discard()  # nothing is left to discard
        assert (tmp_path / "file").read_text() == "new"
        assert os.listdir(tmp_path) == ["file"]

    def test_a_discarded_draft_leaves_nothing(self, tmp_path):
        Draft(tmp_path / "file", lambda temporary: temporary.write_text("new")).discard()
        assert os.listdir(tmp_path) == []

    def test_a_draft_that_cannot_be_flushed_leaves_nothing(self, tmp_path, monkeypatch):
        def fail(descriptor):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(RunError, match="Input/output error"):
            write_text(tmp_path / "file", "new")
        assert os.listdir(tmp_path) == []


class TestFailure:
    @pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt(), MemoryError()])
    def test_a_crash_in_the_writer_leaves_the_old_file_alone(self, tmp_path, error):
        (tmp_path / "file").write_text("old")

        def write(temporary):
            temporary.write_text("half of the n")
            raise error

        with pytest.raises(type(error)) as caught:
            write_atomically(tmp_path / "file", write)
        assert caught.value is error
        assert (tmp_path / "file").read_text() == "old"
        assert os.listdir(tmp_path) == ["file"]

    def test_a_full_disk_names_the_path_and_the_remedy(self, tmp_path):
        (tmp_path / "file").write_text("old")

        def write(temporary):
            temporary.write_text("half of the n")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(RunError) as caught:
            write_atomically(tmp_path / "file", write)
        message = str(caught.value)
        assert str(tmp_path / "file") in message
        assert "No space left on device" in message
        assert "runs-dir, state-dir, cache-dir" in message
        assert (tmp_path / "file").read_text() == "old"
        assert os.listdir(tmp_path) == ["file"]

    def test_a_folder_half_written_is_not_there_and_is_made_again(self, tmp_path):
        target = tmp_path / "cache" / "folder"

        def write(content, temporary):
            temporary.mkdir()
            (temporary / "first").write_bytes(bytes(100))
            (temporary / "last").write_bytes(bytes(content))

        with _no_file_longer_than(1000), pytest.raises(RunError, match="File too large"):
            make_once(target, lambda: 2000, write)
        assert not list((tmp_path / "cache").glob("[!.]*"))
        assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
        assert len((make_once(target, lambda: 300, write) / "last").read_bytes()) == 300

    def test_an_error_in_what_makes_the_content_is_not_taken_for_one_of_the_cache(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="source"):
            make_once(tmp_path / "cache" / "file", (tmp_path / "source").read_bytes, lambda *_: None)
        with pytest.raises(DataError, match="cache-dir"):
            make_once(Path("/dev/null/cache/file"), bytes, lambda *_: None)

    def test_a_file_the_system_refuses_leaves_nothing(self, tmp_path):
        with _no_file_longer_than(1000), pytest.raises(RunError, match="File too large"):
            write_atomically(tmp_path / "file", lambda temporary: temporary.write_bytes(bytes(2000)))
        assert os.listdir(tmp_path) == []

    def test_a_tensor_file_the_system_refuses_names_the_path(self, tmp_path):
        arrays = {"weight": np.zeros(1000)}
        with _no_file_longer_than(1000), pytest.raises(RunError, match=str(tmp_path / "file")):
            write_atomically(tmp_path / "file", lambda temporary: save_file(arrays, temporary))

    def test_a_parent_that_is_a_file_names_the_path(self, tmp_path):
        (tmp_path / "file").write_text("old")
        with pytest.raises(RunError, match=str(tmp_path / "file" / "below")):
            write_text(tmp_path / "file" / "below", "x")
