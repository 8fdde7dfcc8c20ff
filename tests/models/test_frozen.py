"""Tests of models.frozen: which parameters are frozen, their hash, and what earlier versions stored with others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from florilegium.common.errors import RunError
from florilegium.models.frozen import NOTHING, Frozen, hash_of
from florilegium.models.parameters import exchanged, frozen, get_arrays, parts_of, set_arrays, trained, whole


@pytest.fixture
def network() -> nn.Sequential:
    """A frozen layer, batch norm with frozen parameters, a tied frozen pair, integers, and a trained layer."""
    layers = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.Linear(2, 3))
    layers[2].weight = layers[0].weight
    layers[:3].requires_grad_(False)
    layers[3].code = nn.Parameter(torch.arange(3), requires_grad=False)
    return layers


class TestParts:
    def test_a_network_is_what_training_changes_and_what_is_frozen(self, network):
        fixed = ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias", "3.code"]
        learned = ["1.running_mean", "1.running_var", "3.weight", "3.bias"]
        assert list(frozen(network)) == fixed
        assert list(exchanged(network)) == list(get_arrays(network)) == learned
        assert {*whole(network)} == {*fixed, *learned}
        assert list(trained(network)) == ["3.weight", "3.bias"]

    def test_parts_are_copies(self, network):
        arrays, found = parts_of(network)
        with torch.no_grad():
            network[0].weight.zero_()
        assert arrays["0.weight"].any()
        assert found.arrays["0.weight"] is arrays["0.weight"]
        assert {*found.rest(arrays)} == found.others == {*exchanged(network)}
        set_arrays(network, found.arrays)
        assert torch.equal(network[2].weight, torch.from_numpy(arrays["0.weight"]))

    def test_without_frozen_parameters_there_is_no_hash(self):
        assert parts_of(nn.Linear(2, 2))[1].hash == NOTHING.hash == ""


class TestHash:
    def test_it_names_names_types_shapes_and_contents(self):
        arrays = {"a": np.arange(6, dtype=np.float32), "b": np.zeros(2, np.float32)}
        others = [
            {"c": arrays["a"], "b": arrays["b"]},
            arrays | {"b": np.zeros(2, np.int32)},
            arrays | {"a": arrays["a"].reshape(2, 3)},
            arrays | {"a": arrays["a"][::-1]},
            {"a": arrays["a"]},
            {},
        ]
        hashes = [hash_of(one) for one in (arrays, *others)]
        assert len({*hashes}) == len(hashes)
        assert all(len(one) == 16 for one in hashes[:-1])

    def test_it_depends_on_neither_order_nor_layout(self):
        a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(1)
        assert hash_of({"a": a, "b": b}) == hash_of({"b": b, "a": np.asfortranarray(a)})


class TestStored:
    """What earlier versions stored: frozen parameters with all others."""

    fixed = Frozen({"0.weight": np.array([1.0, 2.0])}, frozenset({"1.0.weight", "1.bias"}))

    def test_equal_ones_and_their_changes_are_dropped(self):
        rest = {"1.0.weight": np.array([5.0]), "cluster.1.0.weight": np.array([6.0]), "other": np.zeros(1)}
        stored = {"0.weight": np.array([1.0, 2.0]), "cluster.0.weight": np.array([1.0, 2.0])}
        stored |= {"beside.0.weight": np.zeros(2), "velocity/0.weight": np.zeros(2), "buffer:0.weight": np.zeros(2)}
        assert self.fixed.without(stored | rest, "a file") == rest

    @pytest.mark.parametrize("name", ["0.weight", "cluster.0.weight"])
    def test_others_are_refused(self, name):
        with pytest.raises(
            RunError, match=r"a file has other values of the frozen parameter '0\.weight' than this run"
        ):
            self.fixed.without({name: np.array([1.0, 3.0])}, "a file")

    def test_without_frozen_parameters_nothing_is_looked_at(self):
        stored = {"0.weight": np.ones(1)}
        assert NOTHING.without(stored, "a file") is stored
