"""What a run does with a network of another package is tried out before: evaluating, sharing, averaging, copying."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import torch_draws
from florilegium.models.adapt import adapt, check_built_again
from florilegium.models.networks import build
from florilegium.models.trial import Found, tried

SHAPE, CLASSES = (6,), 3


class Net(nn.Module):
    """A small network; subclasses change ``between``, what happens to its features."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3)

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(functional.relu(self.a(x))))


class Dropped(Net):
    def between(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5)


class Noisy(Net):
    def between(self, x: Tensor) -> Tensor:
        return x + torch.randn(x.shape)


class Leaky(Net):
    def between(self, x: Tensor) -> Tensor:
        return functional.rrelu(x - 1, training=True)


class Python(Net):
    def between(self, x: Tensor) -> Tensor:
        return x * random.random()


class Reparametrised(Net):
    """As an encoder that draws its code whatever the mode."""

    def between(self, x: Tensor) -> Tensor:
        return x + x.exp().sqrt() * torch.empty_like(x).normal_()


class Average(Net):
    """Keeps a running average in an attribute."""

    mean: Tensor | float = 0.0

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class Remembers(Net):
    """Adds the features of the last batch, in any mode."""

    last: Tensor | None = None

    def between(self, x: Tensor) -> Tensor:
        found = x if self.last is None else x + self.last
        self.last = x.detach().mean(0)
        return found


class Counts(Net):
    steps = 0

    def between(self, x: Tensor) -> Tensor:
        self.steps += self.training
        return x * (1 + self.steps)


class Listed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(x.detach().mean())
        return x + sum(self.seen)


class Buffered(Net):
    """Keeps the same in a buffer, under a name that the statistics of batch norm have."""

    def __init__(self, name: str = "running_mean", *, persistent: bool = True) -> None:
        super().__init__()
        self.name = name
        self.register_buffer(name, torch.zeros(5), persistent=persistent)

    def between(self, x: Tensor) -> Tensor:
        mean = self.get_buffer(self.name)
        if self.training:
            mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - mean


class Range(Net):
    """Follows the largest value, as quantisers do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.ones(1))

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            torch.maximum(self.largest, x.detach().max()[None], out=self.largest)
        return x / self.largest


class Codebook(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(4, 5))

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            self.codes[torch.cdist(x.detach(), self.codes).argmin(1)] = x.detach()
        return x + self.codes.mean(0)


class Direction(Net):
    """Turns a unit vector towards the features."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("axis", functional.normalize(torch.ones(5), dim=0))

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            self.axis.copy_(functional.normalize(self.axis + x.detach().mean(0), dim=0))
        return x @ self.axis[:, None] * self.axis


class Constant(Net):
    """A table of positions that never changes, of length 1 or not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", functional.normalize(torch.ones(5), dim=0))

    def between(self, x: Tensor) -> Tensor:
        return x + self.positions


class Computed(Net):
    """Keeps a tensor that a pass has computed."""

    def between(self, x: Tensor) -> Tensor:
        self.features = x
        return x


class Generator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = (number for number in range(3))


def _with(layer: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), layer(), nn.Linear(5, 3))


def _tried(network: nn.Module) -> Found:
    x = torch.randn(8, *SHAPE, generator=torch.Generator().manual_seed(0))
    network(x)  # lazy state, if there is any
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    try:
        return tried(network, x)
    finally:
        assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def _said(network: nn.Module, *, logits: bool = True, averaged: bool = True) -> list[str]:
    return _tried(network).said(logits=logits, averaged=averaged)


@pytest.mark.parametrize("network", [Dropped, Noisy, Leaky, Python, Reparametrised])
def test_random_draws_in_evaluation_are_remarked_on(network: type[Net]) -> None:
    (said,) = _said(network())
    assert said.startswith("draws at random in evaluation mode")


class Centred(Net):
    """Subtracts the batch's mean, in any mode."""

    def between(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Whitened(Net):
    def between(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=0, keepdim=True).clamp(min=1e-3)


class Attending(Net):
    """Lets the inputs of a batch attend to each other, as where the axes of a sequence and a batch are confused."""

    def between(self, x: Tensor) -> Tensor:
        return (x @ x.T).softmax(1) @ x


@pytest.mark.parametrize(
    "network",
    [
        Centred, Whitened, Attending, lambda: _with(lambda: nn.BatchNorm1d(5, track_running_stats=False)),
        lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(0)),
    ],
)  # fmt: skip
def test_outputs_that_depend_on_the_batch_are_remarked_on(network: Callable[[], nn.Module]) -> None:
    (said,) = _said(network(), logits=False)
    assert said.startswith("computes something else for an input beside others in evaluation mode")


@pytest.mark.parametrize("network", [Average, Remembers, Counts, Listed])
def test_state_that_is_kept_elsewhere_is_refused(network: type[Net]) -> None:
    with pytest.raises(ValueError, match="keeps something of earlier inputs outside of its parameters and buffers"):
        _said(network())


@pytest.mark.parametrize(
    "network",
    [
        Net, Buffered, lambda: Buffered("ema", persistent=False), lambda: _with(lambda: nn.Dropout(0.5)), Constant,
        lambda: _with(lambda: nn.BatchNorm1d(5)), lambda: _with(lambda: nn.RReLU()),
        lambda: _with(lambda: nn.Unflatten(1, (5,))),
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))),
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(6, 3))),
        lambda: nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(1)),
    ],
)  # fmt: skip
def test_nothing_is_said_of_networks_that_are_as_they_should_be(network: Callable[[], nn.Module]) -> None:
    assert not _said(network())


@pytest.mark.parametrize(
    "last", [lambda: nn.Softmax(1), lambda: nn.Softmax(-1), lambda: nn.Sequential(nn.LogSoftmax(1), Exp())]
)
def test_probabilities_are_remarked_on(last: Callable[[], nn.Module]) -> None:
    (said,) = _said(nn.Sequential(nn.Linear(6, 3), last()))
    assert said.startswith("returns probabilities, which the loss takes for logits")


class Exp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


@pytest.mark.parametrize(
    ("network", "name"), [(Range, "largest"), (Codebook, "codes"), (lambda: Buffered("ema"), "ema")]
)
def test_buffers_whose_mean_may_be_none_are_named(network: Callable[[], nn.Module], name: str) -> None:
    (said,) = _said(network())
    assert said.startswith(f"has buffers that training changes and that are averaged over clients ({name});")


@pytest.mark.parametrize(
    "network",
    [
        Direction,
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))),
        lambda: nn.Sequential(
            nn.Linear(6, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4), n_power_iterations=3)
        ),
    ],
)
def test_directions_are_refused(network: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match="has buffers of length 1 that training turns"):
        _said(network())


@pytest.mark.parametrize(
    "network",
    [
        Computed, Generator, lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 3))),
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 3))),
    ],
)  # fmt: skip
def test_a_trained_network_that_cannot_be_copied_is_refused(network: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"cannot be copied once it has been trained \(\w+"):
        _said(network())


def test_the_blocks_have_what_was_found() -> None:
    network = adapt(Dropped(), SHAPE, CLASSES)
    assert [said.partition(",")[0] for said in network.found.remarks] == ["draws at random in evaluation mode"]
    assert adapt(Net(), SHAPE, CLASSES).found == Found()


def test_codes_are_tried_out_too() -> None:
    network = nn.Sequential(nn.Embedding(100, 4), nn.Flatten(), nn.Linear(24, 3), nn.Softmax(1))
    assert adapt(network, SHAPE, CLASSES, codes=100).found.activation == "softmax"


class Zero(nn.Linear):
    """A layer that starts from zeros, as the last one of residual networks does."""

    def __init__(self) -> None:
        super().__init__(6, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class Clamped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0, 1)


@pytest.mark.parametrize(
    ("outputs", "last", "expected"),
    [
        (1, nn.Sigmoid, "sigmoid"), (3, nn.Sigmoid, "sigmoid"), (1, nn.Hardsigmoid, "sigmoid"), (1, Clamped, "sigmoid"),
        (1, lambda: nn.Sequential(nn.LogSigmoid(), Exp()), "sigmoid"), (3, lambda: nn.Softmax(1), "softmax"),
        (1, nn.Identity, ""), (1, nn.Tanh, ""), (1, nn.ReLU, ""), (3, nn.LogSigmoid, ""), (1, nn.Softplus, ""),
    ],
)  # fmt: skip
def test_probabilities_are_told_from_logits(outputs: int, last: Callable[[], nn.Module], expected: str) -> None:
    torch.manual_seed(outputs)
    network = nn.Sequential(nn.Linear(6, outputs), last())
    assert _tried(network).activation == expected
    said = _said(network)
    assert [one.rpartition(" at its end")[0].rpartition(" ")[2] for one in said] == [expected] * bool(expected)
    assert not _said(network, logits=False)  # a regression, or a loss of one's own


def test_outputs_of_zero_are_no_probabilities() -> None:
    assert _tried(Zero()).activation == ""


@pytest.mark.parametrize("network", [Range, Codebook, lambda: Buffered("ema"), Direction])
def test_buffers_that_are_not_averaged_are_as_they_should_be(network: Callable[[], nn.Module]) -> None:
    assert not _said(network(), averaged=False)


# ---------------------------------------------------------------------------------------------- opening


class Permuted(Net):
    """Shuffles its inputs in an order that is drawn when it is made, and kept as integers, which no file holds."""

    def __init__(self, *, converted: bool = False) -> None:
        super().__init__()
        order = torch.randperm(6)
        self.register_buffer("order", order.float() if converted else order)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, self.order.long()])


class Masked(Net):
    """Drops connections at random for good; the mask is an attribute, or a buffer that is not saved."""

    def __init__(self, *, persistent: bool | None = None) -> None:
        super().__init__()
        mask = (torch.rand(5) < 0.5).float()
        if persistent is None:
            self.mask = mask
        else:
            self.register_buffer("mask", mask, persistent=persistent)

    def between(self, x: Tensor) -> Tensor:
        return x * self.mask


class Projected(Net):
    """Random features by a matrix that NumPy draws."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.from_numpy(np.random.default_rng().normal(size=(5, 5))).float()

    def between(self, x: Tensor) -> Tensor:
        return x @ self.matrix


class Named(nn.Module):
    """Numbers its layers over all networks of the process."""

    count = 0

    def __init__(self) -> None:
        super().__init__()
        Named.count += 1
        self.add_module(f"layer{Named.count}", nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.children()
        found: Tensor = layer(x)
        return found


def _opened(make: Callable[[], nn.Module]) -> None:
    with torch_draws(1, "first"):
        module = make()
    adapt(module, SHAPE, CLASSES)
    with torch_draws(1, "again"):
        check_built_again(module, make(), SHAPE, codes=0)


@pytest.mark.parametrize("make", [Permuted, Masked, lambda: Masked(persistent=False), Projected])
def test_what_is_drawn_and_not_saved_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match="computes something else when it is built anew"):
        _opened(make)


def test_other_names_each_time_are_refused() -> None:
    with pytest.raises(ValueError, match=r"is another one each time it is built \('layer\d+\.bias' has shape"):
        _opened(Named)


@pytest.mark.parametrize(
    "make",
    [
        Net, lambda: Permuted(converted=True), lambda: Masked(persistent=True), Constant,
        lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3)),
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3)),
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))),
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)),
    ],
)  # fmt: skip
def test_networks_that_can_be_opened_are_accepted(make: Callable[[], nn.Module]) -> None:
    _opened(make)


def test_a_function_that_returns_the_same_module_is_accepted() -> None:
    module = Net()
    _opened(lambda: module)


def test_a_network_that_could_not_be_opened_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"^model: 'tests.models.test_trial:masked' computes something else"):
        build("tests.models.test_trial:masked", SHAPE, CLASSES, 1)


def masked(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Masked()
