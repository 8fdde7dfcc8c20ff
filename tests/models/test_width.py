"""Sub-networks of smaller width: their shapes, what they compute, and which networks have none."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from florilegium.common.text import VOCABULARY_SIZE
from florilegium.models.convnets import _convnet
from florilegium.models.dry_run import random_inputs
from florilegium.models.networks import build
from florilegium.models.parameters import exchanged, get_arrays, set_arrays
from florilegium.models.width import absorb, amplify, axes_of, check, entries, narrowed, shapes_at
from tests.support import mostly_long

SHAPES = {"char-lstm": (12,), "word-lstm": (7, 5), "mlp": (1, 8, 8), "torchvision:resnet18": (3, 32, 32)}
DIVIDED = ["mlp", "cnn-bn", "resnet20", "char-lstm", "word-lstm", "lenet", "cnn64", "cnn512", "resnet18",
           "resnet18-imagenet", "torchvision:resnet18"]  # fmt: skip


def _entries(network: nn.Module, capacity: float, start: int = 0) -> dict[str, tuple[np.ndarray, ...]]:
    shapes = {name: tensor.shape for name, tensor in exchanged(network).items()}
    return dict(entries(axes_of(network), shapes, capacity, start))


@pytest.mark.parametrize("name", mostly_long(DIVIDED, "mlp", "cnn-bn", "char-lstm"))
def test_a_sub_network_computes_what_the_network_does_with_all_other_entries_at_zero(name: str) -> None:
    shape, codes = SHAPES.get(name, (3, 16, 16)), VOCABULARY_SIZE * (name == "char-lstm")
    network = build(name, shape, 10, 1, codes=codes)
    for capacity in (0.5, 0.3):
        check(network, random_inputs(shape, codes=codes), _entries(network, capacity))
    if name != "resnet20":
        check(network, random_inputs(shape, codes=codes), _entries(network, 0.3, 255))  # the last of the channels


def test_a_sub_network_is_the_network_that_one_builds_with_fewer_channels() -> None:
    whole = build("lenet", (3, 16, 16), 10, 1)
    small = _convnet((3, 16, 16), 10, (8, 16), (60, 42)).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in exchanged(small).items()}
    assert shapes_at(whole, 0.5) == shapes
    assert shapes_at(whole, 0.01)["conv2.0.weight"] == (1, 1, 5, 5)
    made, x = narrowed(whole, shapes).eval(), torch.randn(3, 3, 16, 16)
    set_arrays(made, get_arrays(small))
    torch.testing.assert_close(made(x), small(x))
    assert (made.get_submodule("conv1.0").out_channels, made.get_submodule("fc1.0").in_features) == (8, 16)
    assert sum(p.numel() for p in made.parameters()) < sum(p.numel() for p in whole.parameters()) / 3.5
    assert made.get_parameter("conv1.0.weight").is_contiguous(memory_format=torch.channels_last)


def test_entries_of_flattened_images_and_of_gates_belong_to_their_channels() -> None:
    flat = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Flatten(), nn.Linear(12, 2))  # 2×2 pixels of 3 channels
    rows, columns = _entries(flat, 0.6, 2)["2.weight"]  # channels 2 and 0
    assert (rows.ravel().tolist(), columns.ravel().tolist()) == ([0, 1], [0, 1, 2, 3, 8, 9, 10, 11])
    recurrent = nn.Sequential(OrderedDict(a=nn.Linear(2, 4), b=nn.GRU(4, 2), c=nn.Linear(2, 3)))
    rows, columns = _entries(recurrent, 0.5, 1)["b.weight_ih_l0"]  # unit 1 of each of three gates; inputs 1 and 2
    assert (rows.ravel().tolist(), columns.ravel().tolist()) == ([1, 3, 5], [1, 2])


def test_the_window_rolls_over_all_channels_alike() -> None:
    network = build("mlp", (1, 8, 8), 10, 1)
    held = np.zeros((32, 64), int)
    for server_round in range(64):
        held[_entries(network, 0.25, server_round)["fc2.0.weight"]] += 1
    assert (held.sum(axis=0) == 16 * 8).all()  # each of 64 channels in 16 rounds, with 8 of the other layer's
    assert (held.sum(axis=1) == 16 * 16).all()
    first, moved = (_entries(network, 0.25, start)["fc2.0.bias"][0].tolist() for start in (0, 30))
    assert (first, moved) == ([*range(8)], [*range(6), 30, 31])
    whole = _entries(network, 1.0, 7)["fc2.0.bias"][0]
    assert whole.tolist() == [*range(32)]


class _Branches(nn.Module):
    """Two layers read the inputs; registration does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.one(x) + self.two(x))


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 2)), "has no channels between its layers"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)), "the layer '1' of type LayerNorm"),
        (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=4)), "the layer '1' of type Conv2d"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), "the layer '0' of type BatchNorm1d"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.LSTM(6, 6, bidirectional=True)), "the layer '1' of type LSTM"),
    ],
)
def test_networks_that_cannot_be_divided(network: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        axes_of(network())


def test_a_rule_that_does_not_fit_is_found_by_trying() -> None:
    branches = _Branches()
    with pytest.raises(ValueError, match="layers that do not fit together"):
        check(branches, torch.randn(3, 8), _entries(branches, 0.5))
    mlp = build("mlp", (1, 8, 8), 10, 1)
    mixed = _entries(mlp, 0.5) | {"fc2.0.weight": _entries(mlp, 0.5, 1)["fc2.0.weight"]}
    with pytest.raises(ValueError, match="does not compute the same"):
        check(mlp, random_inputs((1, 8, 8), codes=0), mixed)


@pytest.mark.parametrize("shapes", [{}, {"weight": (3, 2), "bias": (2,)}, {"weight": (2,), "bias": (2,)}])
def test_shapes_that_are_no_part_of_the_network(shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"other arrays|has shape"):
        narrowed(nn.Linear(2, 2), shapes)


def test_the_scaler_multiplies_hidden_layers_and_can_be_absorbed() -> None:
    network, x = build("cnn512", (1, 16, 16), 10, 1).eval(), torch.randn(3, 1, 16, 16)
    for layer in ("conv1.0", "conv2.0", "fc1.0", "fc2"):
        nn.init.zeros_(network.get_submodule(layer).bias)
    before = network(x)
    amplify(network, 4.0)
    torch.testing.assert_close(network(x), 64 * before)  # three hidden layers, homogeneous without biases
    nn.init.ones_(network.get_submodule("conv1.0").bias)
    amplified = network(x)
    absorb(network, 4.0)
    torch.testing.assert_close(network(x), amplified)
    assert (network.get_submodule("conv1.0").bias == 4).all()
