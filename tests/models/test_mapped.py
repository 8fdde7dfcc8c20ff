"""Frozen parameters in one mapped file: equal values, one file, and what a process changes is its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from florilegium.clients.node.held import Held
from florilegium.models import mapped
from florilegium.models.frozen import hash_of
from florilegium.models.mapped import map_frozen, map_trained
from florilegium.models.parameters import arrays_of, exchanged, frozen, parts_of, whole


def _network(width: int = 600) -> nn.Sequential:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(width, width), nn.Conv2d(1, 64, 5).to(memory_format=torch.channels_last))
    network.append(nn.Linear(width, 2))
    network[0].requires_grad_(False)
    network[1].requires_grad_(False)
    return network


def test_values_and_order_stay(tmp_path: Path) -> None:
    network, plain = _network(), _network()
    strides = network[1].weight.stride()
    arrays, found = parts_of(network, map_frozen(network, tmp_path))
    wanted, expected = parts_of(plain)
    assert [*arrays] == [*wanted] == [*whole(network)]
    assert all(np.array_equal(arrays[name], wanted[name]) for name in wanted)
    assert found.hash == expected.hash
    assert network[1].weight.stride() == strides
    x = torch.randn(3, 600)
    assert torch.equal(network[0](x), plain[0](x))


def test_all_map_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        map_frozen(_network(), tmp_path)
    assert len([*(tmp_path / "frozen").glob("*.safetensors")]) == 1


def test_what_is_changed_is_put_back_and_stays_in_the_file(tmp_path: Path) -> None:
    network = _network()
    _, found = parts_of(network, map_frozen(network, tmp_path))
    before = {name: array.copy() for name, array in found.arrays.items()}
    held = Held(network, found)
    with torch.no_grad():
        network[0].weight.add_(1.0)
    assert all(np.array_equal(array, before[name]) for name, array in found.arrays.items())
    held.restore()
    assert all(np.array_equal(array, before[name]) for name, array in arrays_of(frozen(network)).items())
    assert hash_of(before) == found.hash


def test_small_ones_are_not_mapped(tmp_path: Path) -> None:
    assert map_frozen(_network(10)[:1], tmp_path) is None
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("least", [1, 1 << 40])
def test_what_is_trained_stays_too_and_is_changed_in_one_place(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """Conv weights in another order of axes stay as they lie; tied ones stay tied."""
    monkeypatch.setattr(mapped, "LARGE", least)
    network, plain = (nn.Sequential(*_network(), nn.BatchNorm1d(2), nn.Linear(600, 2)) for _ in range(2))
    for one in (network, plain):
        one[-1].weight = one[2].weight
    strides = [tensor.stride() for tensor in whole(network).values()]
    copies = map_trained(network)
    wanted = arrays_of(exchanged(plain))
    assert [*copies] == [*wanted]
    assert all(np.array_equal(copies[name], wanted[name]) for name in wanted)
    assert [tensor.stride() for tensor in whole(network).values()] == strides
    assert network[-1].weight.data_ptr() == network[2].weight.data_ptr()
    with torch.no_grad():
        network[2].weight.add_(1.0)
    assert torch.equal(network[2].weight, plain[2].weight + 1)
    assert np.array_equal(copies["2.weight"], wanted["2.weight"])
    copies["2.bias"] += 1
    assert torch.equal(network[2].bias, plain[2].bias)
