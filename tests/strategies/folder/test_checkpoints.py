"""Checkpoints on a disk that forgets: every flipped bit and zeroed block is found, and the file before is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from florilegium.clients.core.state import ClientState
from florilegium.common import files
from florilegium.common.errors import DataError, RunError
from florilegium.models.frozen import Frozen
from florilegium.strategies.folder import run_folder
from florilegium.strategies.folder.run_folder import Checkpoint, RunFolder, read_checkpoint, read_frozen

ARRAYS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.zeros((), np.int64)}


def _save(folder: Path, round: int = 1) -> Path:
    """Write a checkpoint; return its file."""
    facts = {"order": ["w", "b"], "seconds": [1.5]}
    RunFolder(folder, {}, "").save(Checkpoint(round, ARRAYS, {"h": np.ones(3)}, facts))
    return folder / "checkpoint" / f"round-{round:06d}.safetensors"


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    _save(tmp_path, 7)
    found = read_checkpoint(tmp_path)
    assert (found.round, [*found.arrays], found.facts["seconds"]) == (7, ["w", "b"], [1.5])
    np.testing.assert_array_equal(found.arrays["w"], ARRAYS["w"])
    np.testing.assert_array_equal(found.state["h"], 1.0)


def test_every_flipped_bit_and_zeroed_block_is_found_and_named(tmp_path: Path) -> None:
    file = _save(tmp_path)
    good = file.read_bytes()
    places = [divmod(bit, 8) for bit in range(0, 8 * len(good), 3)]
    damaged = [good[:i] + bytes([good[i] ^ 1 << bit]) + good[i + 1 :] for i, bit in places]
    damaged += [good[:i] + bytes(32) + good[i + 32 :] for i in range(0, len(good), 16)]
    damaged += [good[:-8], good + bytes(8), b""]
    for content in damaged:
        if content == good:
            continue
        file.write_bytes(content)
        with pytest.raises(RunError, match=f"the checkpoint {file} is damaged"):
            read_checkpoint(tmp_path)


def test_states_of_clients_are_checked_too(tmp_path: Path) -> None:
    state = ClientState(tmp_path / "0", 1, [], 0, "id")
    state.save(ARRAYS)
    state.commit()
    (file,) = (tmp_path / "0").iterdir()
    content = bytearray(file.read_bytes())
    content[-5] ^= 16  # a number in the last array
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"the state file {file} is damaged .its checksum is wrong"):
        ClientState(tmp_path / "0", 2, [], 0, "id").load()


def test_a_file_without_a_checksum_is_refused(tmp_path: Path) -> None:
    files.save_file({"w": ARRAYS["w"]}, tmp_path / "old.safetensors", metadata={"round": "1"})
    with pytest.raises(ValueError, match=r"no checksum, as files of versions up to 0\.2\.0"):
        files.read_tensors(tmp_path / "old.safetensors")


def test_the_one_before_is_kept_until_the_next_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, write = _save(tmp_path), run_folder.write_tensors

    def torn(path: Path, *rest: object) -> None:
        write(path, *rest)  # type: ignore[arg-type]
        path.write_bytes(path.read_bytes()[:-4])

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_tensors", torn)
        with pytest.raises(RunError, match="round-000002"):
            _save(tmp_path, 2)
    assert first.exists()
    _save(tmp_path, 2)
    assert not first.exists()


def test_frozen_parameters_of_an_attempt_that_died_early_are_gone(tmp_path: Path) -> None:
    """The next attempt of this name may freeze nothing, and then writes no such file itself."""
    first = RunFolder(tmp_path, {}, "")
    first.create({})
    first.hold(Frozen({"w": ARRAYS["w"]}))
    np.testing.assert_array_equal(read_frozen(tmp_path)["w"], ARRAYS["w"])
    second = RunFolder(tmp_path, {}, "")
    second.create({})
    second.hold(Frozen())
    assert read_frozen(tmp_path) == {}
