"""What a node holds once: received frozen parameters are its own network's, and files of no use are removed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from florilegium.clients.node.held import KEPT, Held
from florilegium.common.errors import RunError
from florilegium.models.frozen import hash_of
from florilegium.models.parameters import Arrays, parts_of


def _held() -> Held:
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    network[0].requires_grad_(False)
    return Held(network, parts_of(network)[1])


def _others(held: Held) -> Arrays:
    return {name: array + 1 for name, array in held.frozen.arrays.items()}


def test_received_parameters_are_kept_and_taken(tmp_path: Path) -> None:
    held, file = _held(), tmp_path / "file.safetensors"
    arrays = _others(held)
    held.keep(arrays, hash_of(arrays), file)
    held.try_take(hash_of(arrays), file, "mlp")
    assert held.frozen.hash == hash_of(arrays)


def test_nothing_else_is_kept(tmp_path: Path) -> None:
    held, file = _held(), tmp_path / "file.safetensors"
    right = _others(held)
    name = next(iter(right))
    for wrong in (
        right | {"more": np.zeros(1, np.float32)},
        right | {name: right[name][:1]},
        right | {name: right[name].astype(np.float64)},
        right | {name: np.full_like(right[name], np.nan)},
    ):
        with pytest.raises(RunError, match="not those of this node's network, or not finite"):
            held.keep(wrong, hash_of(wrong), file)
    with pytest.raises(RunError, match="do not have the hash 'another'"):
        held.keep(right, "another", file)
    assert not file.exists()


def test_a_damaged_file_is_removed_and_nothing_is_claimed(tmp_path: Path) -> None:
    held, file = _held(), tmp_path / "file.safetensors"
    arrays, before = _others(held), held.frozen.hash
    file.write_bytes(b"damaged")
    held.try_take(hash_of(arrays), file, "mlp")
    assert held.frozen.hash == before
    assert not file.exists()


def test_the_files_that_were_used_last_are_kept(tmp_path: Path) -> None:
    held, many = _held(), 3
    received = [{name: array + n for name, array in held.frozen.arrays.items()} for n in range(1, KEPT + many + 1)]
    files = [tmp_path / f"{hash_of(arrays)}.safetensors" for arrays in received]
    for seconds, (arrays, file) in enumerate(zip(received[:KEPT], files[:KEPT], strict=True)):
        held.keep(arrays, hash_of(arrays), file)
        os.utime(file, (seconds, seconds))
    held.try_take(hash_of(received[1]), files[1], "mlp")  # by another run
    for arrays, file in zip(received[KEPT:], files[KEPT:], strict=True):
        held.keep(arrays, hash_of(arrays), file)
    gone = [files[0], files[2], files[3]]
    assert {*tmp_path.iterdir()} == {*files} - {*gone}
