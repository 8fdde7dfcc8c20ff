"""Tests of models.parameters: named arrays in and out of a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from florilegium.common.blocks import BLOCK
from florilegium.models.networks import build
from florilegium.models.parameters import (
    _put,
    _taken,
    divide,
    exchanged,
    get_arrays,
    moved,
    num_bytes,
    set_arrays,
)


@pytest.fixture
def network() -> nn.Sequential:
    """A convolution in channels-last layout, batch norm and a dense layer on 3×4 images of two channels."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(36, 2))
    return layers.to(memory_format=torch.channels_last)


class TestSuccess:
    def test_floating_point_tensors_are_exchanged_in_the_order_of_the_network(self, network):
        assert list(exchanged(network)) == [
            "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "3.weight", "3.bias"
        ]  # fmt: skip

    def test_integer_buffers_stay_where_they_are(self, network):
        network(torch.randn(2, 2, 3, 4))
        assert "1.num_batches_tracked" in network.state_dict()
        assert "1.num_batches_tracked" not in exchanged(network)
        fresh = build("resnet18", (3, 32, 32), 10, seed=1)
        assert all(tensor.is_floating_point() for tensor in exchanged(fresh).values())
        assert len(fresh.state_dict()) - len(exchanged(fresh)) == 20  # ResNet-18 has 20 batch norms

    def test_round_trip(self, network):
        other = build("mlp", (4,), 2, seed=5)
        arrays = get_arrays(other)
        changed = {name: array + 1 for name, array in arrays.items()}
        set_arrays(other, changed)
        back = get_arrays(other)
        assert list(back) == list(arrays)
        for name, array in back.items():
            np.testing.assert_array_equal(array, changed[name])

    def test_arrays_hold_the_values_of_the_tensors_by_index(self, network):
        weight = get_arrays(network)["0.weight"]
        assert weight.shape == (3, 2, 3, 3)
        assert weight[2, 1, 0, 2] == network[0].weight[2, 1, 0, 2].item()

    def test_arrays_are_copies(self, network):
        arrays = get_arrays(network)
        before = {name: array.copy() for name, array in arrays.items()}
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(1)
        network(torch.randn(2, 2, 3, 4))  # moves batch norm's statistics
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, before[name])

    def test_the_network_does_not_keep_the_arrays(self, network):
        arrays = get_arrays(network)
        set_arrays(network, arrays)
        arrays["3.bias"][:] = 99
        assert 99 not in network[3].bias

    def test_setting_keeps_parameters_and_their_layout(self, network):
        weight = network[0].weight
        place = weight.data_ptr()
        values = np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3)
        set_arrays(network, {"0.weight": values})
        assert network[0].weight is weight
        assert weight.requires_grad
        assert weight.data_ptr() == place
        assert weight.is_contiguous(memory_format=torch.channels_last)
        np.testing.assert_array_equal(weight.detach().numpy(), values)

    def test_some_of_the_arrays_leave_the_others_alone(self, network):
        before = get_arrays(network)
        set_arrays(network, {"3.bias": np.array([5, 6], np.float32)})
        after = get_arrays(network)
        assert after.pop("3.bias").tolist() == [5, 6]
        for name, array in after.items():
            np.testing.assert_array_equal(array, before[name])

    def test_arrays_of_any_memory_order_are_taken(self, network):
        values = np.asfortranarray(np.arange(72, dtype=np.float32).reshape(2, 36))
        set_arrays(network, {"3.weight": values})
        np.testing.assert_array_equal(network[3].weight.detach().numpy(), values)

    def test_transfers_at_once_as_to_a_gpu_bring_the_same(self, network):
        network[3].double()
        tensors = [*exchanged(network).values()]
        single, joined = _taken(tensors, at_once=False), _taken(tensors, at_once=True)
        for one, other in zip(single, joined, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        changed = [np.asfortranarray(array + 1) for array in single]
        _put(changed, tensors, at_once=True)
        for tensor, array in zip(tensors, changed, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensors[0].is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize("name", ["mlp", "lenet", "cnn-bn", "resnet18"])
    def test_names_and_order_are_those_of_the_state_dict(self, name):
        made = build(name, (3, 32, 32), 10, seed=1)
        made.register_buffer("cache", torch.zeros(1), persistent=False)
        kept = {name: tensor for name, tensor in made.state_dict().items() if tensor.is_floating_point()}
        found = exchanged(made)
        assert list(found) == list(kept)
        assert all(torch.equal(found[name], kept[name]) for name in kept)

    def test_num_bytes_counts_four_per_float(self, network):
        # conv 3·(2·9 + 1), batch norm 4·3, dense 2·(36 + 1) = 143 floats
        assert num_bytes(get_arrays(network)) == 4 * (57 + 12 + 74)
        assert num_bytes({}) == 0
        assert num_bytes({"a": np.zeros((2, 3), np.float64), "b": np.zeros(5, np.int8)}) == 53


class TestFailure:
    def test_an_unknown_name_is_named(self, network):
        with pytest.raises(ValueError, match=r"the network has no tensor 'fc9\.weight'"):
            set_arrays(network, {"fc9.weight": np.zeros(3, np.float32)})

    @pytest.mark.parametrize("shape", [(36, 2), (72,), (2, 36, 1), (1, 36)])
    def test_another_shape_is_named_with_the_one_needed(self, network, shape):
        before = network[3].weight.clone()
        with pytest.raises(ValueError, match=r"'3\.weight' has shape .*, the network needs \(2, 36\)") as caught:
            set_arrays(network, {"3.weight": np.ones(shape, np.float32)})
        assert str(shape) in str(caught.value)
        assert torch.equal(network[3].weight, before)


class TestTiedWeights:
    def test_a_tied_tensor_is_exchanged_once_and_both_are_set(self):
        network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(0, 3), nn.Linear(0, 3))
        network[1].weight = network[0].weight
        arrays = get_arrays(network)
        assert list(arrays) == ["0.weight", "0.bias", "1.bias", "2.weight", "2.bias", "3.weight", "3.bias"]
        assert list(arrays) == list(dict(network.named_parameters()))
        set_arrays(network, {name: array + 1 for name, array in arrays.items()})
        np.testing.assert_array_equal(network[1].weight.detach(), arrays["0.weight"] + 1)
        assert network[1].weight is network[0].weight


class TestBlocks:
    @pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
    @pytest.mark.parametrize("shape", [(3, BLOCK - 1), (), (0, 2), (BLOCK,)])
    def test_a_step_is_what_whole_arrays_give(self, kind, shape):
        rng = np.random.default_rng(1)
        start, step = rng.normal(size=shape).astype(kind), rng.normal(size=shape)
        assert moved(start, step).tobytes() == (start + step).astype(kind).tobytes()
        assert moved(start, step, 0.3).tobytes() == (start + 0.3 * step).astype(kind).tobytes()
        assert moved(start, step).dtype == kind
        assert moved(start, step).shape == shape

    def test_a_quotient_takes_the_place_of_a_sum(self):
        total = np.array([3.0, 5.0])
        assert divide(total, 2.0) is total
        assert total.tolist() == [1.5, 2.5]
        single = np.array([3.0], np.float32)
        assert divide(single, 2.0).tolist() == [1.5]
        assert single.tolist() == [3.0]
