"""Tests of common.spool: bytes and arrays in files that nobody sees."""

from __future__ import annotations

import os
import pickle
import tempfile

import numpy as np
import pytest

from florilegium.common import spool
from florilegium.common.errors import FileError
from florilegium.common.spool import Spool, kept, spooled, zeros


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for temporary files, in which arrays of any size are worth a file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(spool, "LARGE", 1)
    return tmp_path


class TestBytes:
    def test_they_are_those_of_the_parts(self, folder):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        made = spooled([b"head", array, b""])
        assert made[:] == b"head" + array.tobytes()
        assert len(made) == 28

    def test_no_file_is_seen_or_left(self, folder):
        made = spooled([bytes(1000)])
        assert os.listdir(folder) == []
        assert os.fstat(made.file.fileno()).st_nlink == 0

    def test_nobody_changes_them(self, folder):
        made = spooled([b"abc"])
        with pytest.raises(TypeError):
            made[0] = 0
        own = made.private()
        own[:3] = b"xyz"
        assert made[:] == made.private()[:] == b"abc"

    @pytest.mark.parametrize("protocol", [4, 5])
    def test_a_pickle_has_them(self, folder, protocol):
        found = pickle.loads(pickle.dumps(spooled([b"abc"]), protocol))
        assert type(found) is bytes
        assert found == b"abc"

    def test_beside_a_pickle_it_stays_the_same_file(self, folder):
        made, buffers = spooled([bytes(10**6)]), []
        small = pickle.dumps(made, 5, buffer_callback=buffers.append)
        assert len(small) < 200
        assert pickle.loads(small, buffers=[made]) is made

    @pytest.mark.parametrize("large", [False, True])
    def test_beside_a_pickle_large_ones_are_read_into_a_file(self, folder, large, monkeypatch):
        monkeypatch.setattr(spool, "LARGE", 1000 if large else 1001)
        made, buffers = spooled([bytes(range(250)) * 4]), []
        small = pickle.dumps(made, 5, buffer_callback=buffers.append)
        found = pickle.loads(small, buffers=[memoryview(bytes(buffers[0].raw()))])  # as in another process
        assert type(found) is (Spool if large else bytes)
        assert found[:] == made[:]


class TestArrays:
    def test_they_are_zeros_of_their_shapes_and_can_be_changed(self, folder):
        shapes = {"a": (3, 5), "none": (0, 4), "number": (), "b": (7,)}
        made = zeros(shapes)
        assert {name: array.shape for name, array in made.items()} == shapes
        assert all(array.dtype == np.float64 and not array.any() for array in made.values())
        for number, array in enumerate(made.values(), 1):
            array += number
        assert [float(array.sum()) for array in made.values()] == [15, 0, 3, 28]  # none lies in another's place
        assert os.listdir(folder) == []

    def test_each_can_have_its_own_type(self, folder):
        made = zeros({"a": (3,), "b": (2, 2), "c": (5,)}, {"a": np.uint8, "b": np.float32, "c": np.float64})
        for number, array in enumerate(made.values(), 1):
            array += np.array(number, array.dtype)
        assert [(array.dtype.str, float(array.sum())) for array in made.values()] == [
            ("|u1", 3), ("<f4", 8), ("<f8", 15),
        ]  # fmt: skip

    def test_arrays_of_any_shape_and_type_can_be_kept(self, folder):
        given = {
            "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "none": np.zeros((0, 4), np.int8),
            "number": np.array(7, np.uint16), "b": np.arange(5, dtype=np.float32)[::2],
        }  # fmt: skip
        found = kept(iter(given.items()))
        for name, array in given.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
            found[name][...] = 1
        assert os.listdir(folder) == []

    def test_small_ones_are_no_file(self, folder, monkeypatch):
        monkeypatch.setattr(spool, "LARGE", 1 << 20)
        assert zeros({"a": (1000,)})["a"].base is None
        assert zeros({"a": (1000,), "b": (1000, 1000)}, np.float32)["a"].base is not None


def test_a_full_disk_is_an_error_that_names_the_folder(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileError, match=f"{folder}.*No space left on device.*TMPDIR"):
        zeros({"a": (100,)})
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    with pytest.raises(FileError, match="TMPDIR"):
        spooled([b"abc"])


def test_what_no_one_maps_any_more_frees_the_disk(folder):
    """An open file without a name takes room until it is closed; a run opens several for each exchange."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        made = spooled([bytes(1000)])
        assert np.frombuffer(made.private(), np.uint8).sum() == 0
        zeros({"a": (100,)})["a"] += 1
    del made
    assert len(os.listdir("/proc/self/fd")) <= before


def test_spools_are_mapped_files():
    assert isinstance(spooled([b"abc"]), Spool)
