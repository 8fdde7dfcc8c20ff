"""Batch norm with other statistics: what is measured, given, fixed; each batch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from florilegium.clients.core.export import load_model, save_model
from florilegium.models.batch_norm import (
    BatchStatistics,
    DifferentiableStatistics,
    give,
    has_lone_channels,
    measure,
    norms_of,
)
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples
from tests.support import RUNS, make_client, perform, settings


def _inputs(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 2 + 3 * torch.randn(count, 3, 32, 32, generator=generator)


def _network() -> nn.Sequential:
    """Return a network whose statistics are not those it is born with."""
    network, generator = build("cnn-bn", (3, 32, 32), 10, 1), torch.Generator().manual_seed(2)
    for norm in norms_of(network).values():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(torch.randn(norm.running_mean.shape, generator=generator))
        norm.running_var.copy_(0.5 + torch.rand(norm.running_var.shape, generator=generator))
    return network


@pytest.mark.parametrize("batch", [5, 64])
def test_moments_of_what_the_layers_are_given(batch: int) -> None:
    """By hand: the first layer's inputs are a convolution of x; the second's come through the first's statistics."""
    network, x = _network().eval(), _inputs(12)
    found = measure(network, norms_of(network), x, batch)
    assert list(found) == ["conv1.1", "conv2.1", "conv3.1"]
    with torch.no_grad():
        for name, inputs in (("conv1.1", network[0][0](x)), ("conv2.1", network[1][0](network[0](x)))):
            flat = inputs.transpose(0, 1).flatten(1).double()
            mean, variance = found[name]
            np.testing.assert_allclose(mean, flat.mean(dim=1), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(variance, flat.var(dim=1), rtol=1e-5)


def test_the_first_layer_is_then_normalised() -> None:
    network, x = _network(), _inputs(12)
    give(network, {"conv1.1": measure(network, norms_of(network), x, 12)["conv1.1"]})
    normalised = network[0][1].eval()(network[0][0](x)).detach().transpose(0, 1).flatten(1)
    np.testing.assert_allclose(normalised.mean(dim=1), 0, atol=1e-4)
    np.testing.assert_allclose(normalised.std(dim=1), 1, atol=1e-3)


@pytest.mark.parametrize(("last", "lone"), [([nn.BatchNorm1d(2)], True), ([], False)])
def test_one_layer_with_single_numbers_is_enough(last: list[nn.Module], lone: bool) -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *last)
    assert has_lone_channels(network, _inputs(1)) == lone


def test_statistics_of_each_batch() -> None:
    """In evaluation mode it is what the network does in training mode, and nothing is changed by it."""
    network, x = _network(), _inputs(9)
    before = get_arrays(network)
    with torch.no_grad():
        found = BatchStatistics(network).eval()(x)
        assert all(np.array_equal(array, before[name]) for name, array in get_arrays(network).items())
        assert not any(norm.training for norm in norms_of(network).values())
        expected = network.train()(x)
    torch.testing.assert_close(found, expected)


KEYS = {"dataset": "cifar10", "model": "cnn-bn", "finetune-epochs": 2, "batch-size": 4, "learning-rate": 0.05}


@pytest.mark.parametrize("kind", ["running", "client", "global", "batch"])
def test_finetuning(kind: str) -> None:
    """What the network normalises by after fine-tuning, and in its tests."""
    examples, network = Examples(_inputs(10), torch.arange(10) % 3), _network()
    client = make_client(examples, network, **{**KEYS, "finetune-bn": kind})
    before = get_arrays(network)
    own = measure(network, norms_of(network), examples.x, 256)
    answer = perform(client, "test", before)
    after = get_arrays(network)
    for name, (mean, variance) in own.items():
        left = np.array_equal(after[f"{name}.running_mean"], before[f"{name}.running_mean"])
        assert left == (kind == "global")
        if kind == "client":
            np.testing.assert_allclose(after[f"{name}.running_mean"], mean, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(after[f"{name}.running_var"], variance, rtol=1e-5)
        assert not np.array_equal(after[f"{name}.weight"], before[f"{name}.weight"])  # these are tuned in any case
    assert isinstance(client.predictor, BatchStatistics) == (kind == "batch")
    assert answer.metrics["accuracy_global"] == perform(client, "test", before).metrics["accuracy_global"]


def test_one_finetuning_step_with_received_statistics_is_plain_sgd() -> None:
    """With the statistics fixed batch norm is a fixed affine map: one step of SGD, by hand."""
    examples, network = Examples(_inputs(6), torch.arange(6) % 3), _network()
    keys = {**KEYS, "finetune-epochs": 1, "batch-size": 6, "finetune-bn": "global"}
    start = get_arrays(network)
    perform(make_client(examples, network, **keys), "test", start)
    tuned, plain = get_arrays(network), _network().eval()
    torch.nn.functional.cross_entropy(plain(examples.x), examples.y).backward()
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(tuned[name], start[name] - 0.05 * parameter.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_exported_model_normalises_by_batch() -> None:
    network, x, folder = _network(), _inputs(7), RUNS / "by-batch"
    save_model(folder, BatchStatistics(network), "0", "run", settings(**KEYS))
    model, card = load_model(folder)
    assert card.batch_statistics
    with torch.no_grad():
        torch.testing.assert_close(model(x), BatchStatistics(network)(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("before", ["convolution", "nothing", "something else", "something in place"])
def test_statistics_are_differentiable(before: str, bias: bool) -> None:
    """Against the layer written out, to the second derivative, also where it becomes part of a convolution."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, mean, variance = draw(3, 2, 5, 5), draw(2), 0.5 + draw(2).square()
    convolution = nn.Conv2d(2, 2, 3, padding=1, bias=bias).double()
    norm = nn.BatchNorm2d(2).double().eval()
    with torch.no_grad():
        for parameter in (*convolution.parameters(), *norm.parameters()):
            parameter.copy_(draw(*parameter.shape))

    def first(x: Tensor) -> Tensor:
        given = x if before == "nothing" else convolution(x)
        if before == "something in place":
            return given.add_(1)
        return given.tanh() if before == "something else" else given

    def outputs(moments: tuple[Tensor, Tensor]) -> Tensor:
        named = dict(zip(("running_mean", "running_var"), moments, strict=True))
        with DifferentiableStatistics():
            return functional_call(norm, named, (first(x),))

    def written_out(moments: tuple[Tensor, Tensor]) -> Tensor:
        μ, u = (moment.view(1, -1, 1, 1) for moment in moments)
        γ, δ = (p.view(1, -1, 1, 1) for p in norm.parameters())
        return γ * (first(x) - μ) / (u + norm.eps).sqrt() + δ

    results = []
    for function in (outputs, written_out):
        moments = mean.clone().requires_grad_(), variance.clone().requires_grad_()
        y = function(moments)
        of = [*moments, *norm.parameters()] + ([] if before == "nothing" else [*convolution.parameters()])
        slopes = torch.autograd.grad(y.pow(3).sum(), of, create_graph=True)
        curvature = torch.autograd.grad(sum(s.pow(2).sum() for s in slopes), of)  # type: ignore[arg-type]
        results.append([y, *slopes, *curvature])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
