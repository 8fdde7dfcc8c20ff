"""Networks with a leading axis of copies, against each copy by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from florilegium.common.text import VOCABULARY_SIZE
from florilegium.models.networks import build
from florilegium.models.stacked import stacked
from florilegium.models.stacked_norms import Norms

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: build("mlp", (1, 4, 4), 3, 1), (1, 4, 4)),
    "lenet": (lambda: build("lenet", (3, 16, 16), 3, 1), (3, 16, 16)),
    "grouped, strided, no bias": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False), nn.Tanh(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(6, 3, bias=False),
        ),
        (4, 9, 9),
    ),
    "word-lstm": (lambda: build("word-lstm", (4, 5), 3, 1), (4, 5)),
    "sequences": (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)), (3, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_every_copy_computes_what_it_computes_alone(name: str) -> None:
    make, shape = NETWORKS[name]
    network, generator = make().double(), torch.Generator().manual_seed(1)
    form = stacked(network)
    assert form is not None
    parameters = [
        torch.randn(3, *p.shape, generator=generator, dtype=torch.float64).requires_grad_()
        for p in network.parameters()
    ]
    x = torch.randn(3, 2, *shape, generator=generator, dtype=torch.float64)
    outputs = form(parameters, x)
    outputs.square().sum().backward()
    for copy in range(3):
        with torch.no_grad():
            for parameter, values in zip(network.parameters(), parameters, strict=True):
                parameter.copy_(values[copy])
        network.zero_grad()
        alone = network(x[copy])
        alone.square().sum().backward()
        torch.testing.assert_close(outputs[copy], alone)
        for parameter, values in zip(network.parameters(), parameters, strict=True):
            assert values.grad is not None
            torch.testing.assert_close(values.grad[copy], parameter.grad)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3, track_running_stats=False),
        nn.SyncBatchNorm(3), nn.Dropout(), nn.LSTM(3, 3), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
        nn.Embedding(3, 3, sparse=True), nn.Embedding(3, 3, scale_grad_by_freq=True), nn.Embedding(3, 3, padding_idx=0),
        nn.Embedding(3, 3, max_norm=1.0),
    ],
)  # fmt: skip
def test_other_layers_have_no_such_form(layer: nn.Module) -> None:
    assert stacked(nn.Sequential(nn.Linear(3, 3), layer), norms=True) is None


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual blocks": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), BasicBlock(4, 4),
            BasicBlock(4, 6, 2, nn.Sequential(nn.Conv2d(4, 6, 1, 2), nn.BatchNorm2d(6))), nn.Flatten(),
        ),
        (3, 6, 6),
    ),
    "bottlenecks": (lambda: nn.Sequential(Bottleneck(8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (8, 3, 3)),
    "rows": (lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, momentum=0.3), nn.ReLU()), (4,)),
    "sequences": (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(12, 2)), (4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("sizes", [(5, 5, 5), (5, 3, 2), None], ids=["full", "filled up", "evaluated"])
def test_batch_norm_has_the_statistics_of_each_copy(name: str, sizes: tuple[int, ...] | None) -> None:
    make, shape = NORMS[name]
    network, generator = make().double(), torch.Generator().manual_seed(1)
    form = stacked(network, norms=True)
    assert form is not None
    assert form.has_norms
    assert stacked(network) is None
    parameters = [
        torch.randn(3, *p.shape, generator=generator, dtype=torch.float64).requires_grad_()
        for p in network.parameters()
    ]
    buffers = [
        torch.rand(3, *b.shape, generator=generator, dtype=torch.float64) + 0.5
        if b.is_floating_point()
        else torch.arange(3)
        for b in network.buffers()
    ]
    before = [buffer.clone() for buffer in buffers]
    x = torch.randn(3, 5, *shape, generator=generator, dtype=torch.float64)
    counts = torch.tensor(sizes) if sizes and min(sizes) < 5 else None
    outputs = form(parameters, x, Norms(buffers, training=sizes is not None, sizes=counts))
    sum(outputs[copy, : (sizes or (5, 5, 5))[copy]].square().sum() for copy in range(3)).backward()  # type: ignore[union-attr]
    network.train(sizes is not None)
    for copy in range(3):
        size = (sizes or (5, 5, 5))[copy]
        with torch.no_grad():
            for tensor, values in zip(network.parameters(), parameters, strict=True):
                tensor.copy_(values[copy])
            for tensor, values in zip(network.buffers(), before, strict=True):
                tensor.copy_(values[copy])
        network.zero_grad()
        alone = network(x[copy, :size])
        alone.square().sum().backward()
        torch.testing.assert_close(outputs[copy, :size], alone)
        for tensor, values in zip(network.parameters(), parameters, strict=True):
            assert values.grad is not None
            torch.testing.assert_close(values.grad[copy], tensor.grad)
        for tensor, values in zip(network.buffers(), buffers, strict=True):
            torch.testing.assert_close(values[copy], tensor)


@pytest.mark.parametrize("name", ["resnet18", "resnet18-imagenet", "cnn-bn"])
def test_networks_with_batch_norm_have_a_form(name: str) -> None:
    assert stacked(build(name, (3, 32, 32), 3, 1), norms=True) is not None


def test_a_layer_used_twice_has_its_parameters_once() -> None:
    layer = nn.Linear(3, 3)
    form = stacked(nn.Sequential(layer, nn.Tanh(), layer))
    assert form is not None
    weight, bias = torch.randn(2, 3, 3), torch.randn(2, 3)
    x = torch.randn(2, 4, 3)
    inner = torch.einsum("nbi,noi->nbo", x, weight) + bias[:, None]
    outer = torch.einsum("nbi,noi->nbo", inner.tanh(), weight) + bias[:, None]
    torch.testing.assert_close(form([weight, bias], x), outer)


def test_tied_weights_are_one() -> None:
    """Two layers with one weight: its gradient is that of both uses."""
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3, bias=False)).double()
    network[2].weight = network[0].weight
    form = stacked(network)
    assert form is not None
    parameters = [torch.randn(2, *p.shape, dtype=torch.float64).requires_grad_() for p in network.parameters()]
    assert len(parameters) == 2
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    outputs = form(parameters, x)
    outputs.square().sum().backward()
    for copy in range(2):
        with torch.no_grad():
            for parameter, values in zip(network.parameters(), parameters, strict=True):
                parameter.copy_(values[copy])
        network.zero_grad()
        network(x[copy]).square().sum().backward()
        torch.testing.assert_close(outputs[copy], network(x[copy]))
        torch.testing.assert_close(parameters[0].grad[copy], network[0].weight.grad)  # type: ignore[index]


def test_embeddings_and_several_layers_of_lstms() -> None:
    network = build("char-lstm", (6,), 3, 1, codes=VOCABULARY_SIZE).double()
    form, generator = stacked(network), torch.Generator().manual_seed(1)
    assert form is not None
    parameters = [torch.stack([p.detach(), p.detach().flip(0)]) for p in network.parameters()]
    x = torch.randint(0, 50, (2, 3, 6), generator=generator)
    outputs = form(parameters, x)
    for copy in range(2):
        with torch.no_grad():
            for parameter, values in zip(network.parameters(), parameters, strict=True):
                parameter.copy_(values[copy])
        torch.testing.assert_close(outputs[copy], network(x[copy]))


@pytest.mark.parametrize("name", ["lenet", "word-lstm"])
def test_on_a_cpu_convolutions_and_lstms_are_faster_one_after_the_other(name: str) -> None:
    assert stacked(NETWORKS[name][0](), gpu=False) is None
