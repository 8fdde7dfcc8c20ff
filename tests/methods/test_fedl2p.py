"""FedL2P: the hypergradient, its limits as plain fine-tuning, what is learned, kept and refused."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy

from florilegium.clients.core.base import Answer
from florilegium.clients.core.wire import BESIDE, Reply, unpack
from florilegium.clients.fedl2p import FedL2PClient, Step, last_step
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.batch_norm import distance, give, mix, norms_of
from florilegium.models.meta_nets import MetaNets, build_meta_nets, clamp
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import InProcessGrid
from tests.partitions.made import write
from tests.runs import Runs
from tests.support import TASK, make_client, mostly_long, perform, settings

KEYS: dict[str, Value] = {
    "method": "fedl2p", "model": "cnn-bn", "num-clients": 4, "participation": 1.0, "rounds": 3, "local-epochs": 1,
    "learning-rate": 0.02, "batch-size": 32, "validation-fraction": 0.2, "finetune-epochs": 1, "evaluate-every": 1,
    "fedl2p.pretraining-rounds": 1, "samples-per-client": 100,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _examples(count: int, seed: int = 1) -> Examples:
    """Return overlapping classes, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    x = torch.randn(count, 2, 2, 2, generator=generator, dtype=torch.float64)
    return Examples(x + 0.4 * y[:, None, None, None] * torch.tensor([1.0, -0.5], dtype=torch.float64)[:, None, None], y)


def _smooth() -> nn.Sequential:
    """Return a network without kinks, whose parameters cannot undo what its batch norm does: it has none of its own."""
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["norm"] = nn.Sequential(nn.BatchNorm2d(2, affine=False), nn.Tanh())
    blocks["fc"] = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    return nn.Sequential(blocks).double()


def _client(examples: Examples, network: nn.Module, **keys: Value) -> Any:
    return make_client(examples, network, **{**KEYS, **keys})


def test_hypergradient_against_finite_differences() -> None:
    """Of the validation loss after training to the end, through everything; Newton's method finds that end."""
    train, validation, network = _examples(150), _examples(24, seed=2), _smooth()
    for norm in norms_of(network).values():
        norm.running_mean.copy_(torch.tensor([1.5, 0.3]))  # type: ignore[union-attr]
        norm.running_var.copy_(torch.tensor([3.0, 0.4]))  # type: ignore[union-attr]
    keys = {"fedl2p.neumann-steps": 250, "fedl2p.neumann-rate": 3.0, "fedl2p.neumann-split": False}
    client = _client(train, network, **keys)
    nets, profile = build_meta_nets(network, 0.1, 1).double(), client.profile()
    dense = network[1][1]

    def train_to_the_end() -> None:
        with torch.no_grad():
            β, _ = client.hyperparameters(nets, profile)
            pairs = zip(profile.own, β, strict=True)
            give(network, {name: mix(profile.pretrained[name], profile.own[name], b) for name, b in pairs})
            features = network.eval()[0](train.x).flatten(1)
        inputs, w = torch.cat([features, torch.ones(150, 1)], dim=1).double(), torch.zeros(27, dtype=torch.float64)
        for _ in range(12):
            p = (inputs @ w.view(3, 9).T).softmax(dim=1)
            slope = ((p - torch.eye(3)[train.y]).T @ inputs / 150).flatten()
            inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
            curvature = torch.einsum("ncd,ni,nj->cidj", inner, inputs, inputs).reshape(27, 27) / 150
            w = w - torch.linalg.pinv(curvature, rcond=1e-10) @ slope
        with torch.no_grad():
            dense.weight.copy_(w.view(3, 9)[:, :8])
            dense.bias.copy_(w.view(3, 9)[:, 8])

    def outcome() -> float:
        train_to_the_end()
        with torch.no_grad():
            return float(cross_entropy(network(validation.x), validation.y))

    train_to_the_end()
    network.zero_grad()
    cross_entropy(network(train.x), train.y).backward()  # a step from there leads nowhere
    loss, gradients = client.hypergradient(nets, profile, last_step(network), train, validation)
    assert loss.item() == pytest.approx(outcome(), rel=1e-9)
    step = 1e-4
    for (name, parameter), gradient in zip(nets.named_parameters(), gradients, strict=True):
        index = np.unravel_index(int(gradient.abs().argmax()), gradient.shape)
        before, ends = parameter.detach()[index].item(), []
        for sign in (1, -1):
            parameter.data[index] = before + sign * step
            ends.append(outcome())
        parameter.data[index] = before
        assert gradient[index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-3, abs=1e-9)
        if name.startswith("bn."):
            assert abs(gradient[index].item()) > 1e-5
        else:  # where training has ended, no learning rate matters
            assert abs(gradient[index].item()) < 1e-12


def _after_a_step(network: nn.Module) -> dict[str, Step]:
    """Return a step to parameters that are no minimum, along a gradient that is none of theirs."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: Step(p.detach().clone(), torch.randn(p.shape, generator=generator, dtype=torch.float64))
        for name, p in network.named_parameters()
    }


def _with(network: nn.Module, θ: Mapping[str, Tensor], statistics: Mapping[str, Any], examples: Examples) -> Tensor:
    """Return the loss with these parameters and statistics of the one batch-norm layer, written out."""
    ((mean, variance),) = statistics.values()
    normal = (examples.x - mean.view(1, -1, 1, 1)) / (variance.view(1, -1, 1, 1) + 1e-5).sqrt()
    return cross_entropy(normal.tanh().flatten(1) @ θ["fc.1.weight"].T + θ["fc.1.bias"], examples.y)


def test_first_order_gradient_against_finite_differences() -> None:
    """FOMAML+: of the validation loss after the last step with rates η and batch norm mixed by β."""
    train, validation, network = _examples(12), _examples(9, seed=2), _smooth()
    client = _client(train, network, **{"fedl2p.hypergradient": "fomaml+"})
    nets, profile = build_meta_nets(network, 0.3, 1).double(), client.profile()
    last = _after_a_step(network)
    with torch.no_grad():
        _, η = client.hyperparameters(nets, profile)
        before = {n: step.reached + rate * step.gradient for (n, step), rate in zip(last.items(), η, strict=True)}

    @torch.no_grad()
    def outcome() -> float:
        β, η = client.hyperparameters(nets, profile)
        θ = {n: p - rate * last[n].gradient for (n, p), rate in zip(before.items(), η, strict=True)}
        pairs = zip(profile.own, β, strict=True)
        mixed = {n: mix(profile.pretrained[n], profile.own[n], b) for n, b in pairs}
        return float(_with(network, θ, mixed, validation))

    loss, gradients = client.hypergradient(nets, profile, last, train, validation)
    assert loss.item() == pytest.approx(outcome(), rel=1e-9)
    rng = np.random.default_rng(1)
    for parameter, gradient in zip(nets.parameters(), gradients, strict=True):
        index = tuple(int(rng.integers(n)) for n in parameter.shape)
        value, ends = parameter.detach()[index].item(), []
        for sign in (1, -1):
            parameter.data[index] = value + sign * 1e-5
            ends.append(outcome())
        parameter.data[index] = value
        assert gradient[index].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize(("scale", "split"), [(True, False), (False, False), (True, True)])
def test_hypergradient_is_algorithm_2_with_matrices(scale: bool, split: bool) -> None:
    """Anywhere, the Hessian and the mixed derivatives as dense matrices, these by finite differences.

    Where the batch is split, term by term another third of the 30 examples is what the Hessian is of.
    """
    ψ, train, validation, network = 0.2, _examples(30), _examples(9, seed=2), _smooth()
    keys = {"fedl2p.neumann-rate": ψ, "fedl2p.neumann-scale": scale, "fedl2p.neumann-split": split}
    client = _client(train, network, **keys)
    nets, profile, last = build_meta_nets(network, 0.3, 1).double(), client.profile(), _after_a_step(network)
    shapes = [step.reached.shape for step in last.values()]
    flat = torch.cat([step.reached.flatten() for step in last.values()])

    def mixed() -> dict[str, Any]:
        β, _ = client.hyperparameters(nets, profile)
        return {n: mix(profile.pretrained[n], profile.own[n], b) for n, b in zip(profile.own, β, strict=True)}

    def loss(θ: Tensor, examples: Examples) -> Tensor:
        parts = θ.split([shape.numel() for shape in shapes])
        named = {n: part.view(shape) for n, part, shape in zip(last, parts, shapes, strict=True)}
        return _with(network, named, mixed(), examples)

    v = torch.autograd.functional.jacobian(lambda θ: loss(θ, validation), flat)
    parts = [train.rows(slice(10 * j, 10 * j + 10)) if split else train for j in range(3)]
    terms = [v]
    for part in parts:
        hessian = torch.autograd.functional.hessian(partial(loss, examples=part), flat)
        terms.append(terms[-1] - ψ * hessian @ terms[-1])
    p = sum(terms) * (ψ if scale else 1)
    with torch.no_grad():
        _, η = client.hyperparameters(nets, profile)
        start = [step.reached + rate * step.gradient for step, rate in zip(last.values(), η, strict=True)]

    def ends() -> tuple[float, Tensor]:
        """Return L_V at the fixed θ, and ∂_θ L_T where the last step leads."""
        with torch.no_grad():
            _, η = client.hyperparameters(nets, profile)
            steps = zip(start, last.values(), η, strict=True)
            θ = torch.cat([(before - rate * step.gradient).flatten() for before, step, rate in steps])
        slope = torch.autograd.functional.jacobian(lambda θ: loss(θ, train), θ)
        return loss(flat, validation).item(), slope

    value, gradients = client.hypergradient(nets, profile, last, train, validation)
    assert value.item() == pytest.approx(loss(flat, validation).item(), rel=1e-9)
    for parameter, gradient in zip(nets.parameters(), gradients, strict=True):
        index = np.unravel_index(int(gradient.abs().argmax()), gradient.shape)
        before, found = parameter.detach()[index].item(), []
        for sign in (1, -1):
            parameter.data[index] = before + sign * 1e-5
            found.append(ends())
        parameter.data[index] = before
        direct, slope = ((a - b) / 2e-5 for a, b in zip(*found, strict=True))
        assert gradient[index].item() == pytest.approx(float(direct - p @ slope), rel=1e-4, abs=1e-9)
        assert abs(gradient[index].item()) > 1e-6


class _WrittenOut(nn.Module):
    """Batch norm with given statistics, as torch's own derivatives see through it."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, as in a test."""
        mean, variance, γ, δ = (
            p.view(1, -1, 1, 1) for p in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        return (x - mean) / (variance + self.eps).sqrt() * γ + δ


@pytest.mark.parametrize("split", [True, False])
def test_hypergradient_of_a_network_with_convolutions(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes second derivatives cheap changes nothing: against plain ones, with batch norm written out."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(30, 1, 8, 8, generator=generator, dtype=torch.float64)
    train, validation = (Examples(part, torch.arange(len(part)) % 10) for part in (x[:20], x[20:]))
    network = build("cnn-bn", (1, 8, 8), 10, 1).double()
    for norm in norms_of(network).values():
        norm.running_mean.add_(0.1)  # type: ignore[union-attr]
        norm.running_var.mul_(1.5)  # type: ignore[union-attr]
    client = _client(train, network, **{"fedl2p.neumann-split": split})
    nets, profile, last = build_meta_nets(network, 0.3, 1).double(), client.profile(), _after_a_step(network)
    value, ours = client.hypergradient(nets, profile, last, train, validation)
    for name in norms_of(network):
        network.set_submodule(name, _WrittenOut(network.get_submodule(name)))  # type: ignore[arg-type]
    for context in ("CheapSecondDerivatives", "DifferentiableStatistics"):
        monkeypatch.setattr(f"florilegium.clients.fedl2p.{context}", nullcontext)
    expected, plain = client.hypergradient(nets, profile, last, train, validation)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    for gradient, other in zip(ours, plain, strict=True):
        assert other.abs().max() > 1e-6
        torch.testing.assert_close(gradient, other, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_last_step_is_the_one_that_was_taken(epochs: int) -> None:
    """From where all steps but the last lead, η·g leads to the fine-tuned parameters: for rates above, at, below 0."""
    examples, network = _examples(20), _smooth()
    client = _client(examples, network, **{"finetune-epochs": epochs, "batch-size": 20})
    nets, profile, start = build_meta_nets(network, 0.3, 1).double(), client.profile(), get_arrays(network)
    with torch.no_grad():
        nets.multipliers.copy_(torch.tensor([0.3, -0.2]))
        _, η = client.hyperparameters(nets, profile)
    client.finetune(nets, profile, "same")
    last = last_step(network)
    set_arrays(network, start)
    client.settings = client.settings.model_copy(update={"finetune_epochs": epochs - 1})
    client.finetune(nets, profile, "same")
    for (name, before), rate in zip(network.named_parameters(), η, strict=True):
        step = last[name]
        assert not torch.allclose(before, step.reached)
        torch.testing.assert_close(before.detach() - rate * step.gradient, step.reached, rtol=1e-6, atol=1e-9)


def _fixed(nets: MetaNets, β: float, factor: float = 1.0) -> None:
    """Make the meta-nets constant: β, and equal factors."""
    with torch.no_grad():
        assert nets.bn is not None
        for net, value in ((nets.bn, β), (nets.lr, factor)):
            last = net[2]
            last.weight.zero_()  # type: ignore[union-attr, operator]
            last.bias.fill_(value)  # type: ignore[union-attr, operator]


@pytest.mark.parametrize(("β", "kind", "rate"), [(0.0, "global", 0.02), (1.0, "client", 1e-3)])
def test_constant_hyperparameters_are_plain_finetuning(β: float, kind: str, rate: float) -> None:
    generator = torch.Generator().manual_seed(1)
    examples = Examples(torch.randn(12, 3, 32, 32, generator=generator), torch.arange(12) % 3)
    network = build("cnn-bn", (3, 32, 32), 10, 1)
    keys: dict[str, Value] = {"dataset": "cifar10", "finetune-epochs": 3, "batch-size": 12, "learning-rate": rate}
    client, model = _client(examples, network, **keys), get_arrays(network)
    nets = build_meta_nets(network, rate, 1)
    _fixed(nets, β)
    ours = perform(client, "test", get_arrays(nets) | _beside(model)).metrics
    tuned = get_arrays(network)
    moved = [abs(tuned[name] - array).max() for name, array in model.items() if "running" not in name]
    assert max(moved) > 1e-3  # a hundred times the tolerance
    plain = make_client(examples, network, **{**KEYS, **keys, "method": "fedavg", "finetune-bn": kind})
    theirs = perform(plain, "test", model).metrics
    for name, array in get_arrays(network).items():
        np.testing.assert_allclose(tuned[name], array, rtol=1e-4, atol=1e-5)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert (ours["mixing"], ours["rate"], ours["sparsity"]) == (β, pytest.approx(rate), 0)


def _beside(model: Arrays) -> Arrays:
    return {BESIDE + name: array for name, array in model.items()}


def test_clamp_passes_gradients() -> None:
    x = torch.tensor([-1.0, 0.5, 3.0], requires_grad=True)
    y = clamp(x, 0.0, 1.0)
    assert y.tolist() == [0.0, 0.5, 1.0]
    assert torch.autograd.grad((y * torch.tensor([1.0, 2.0, 3.0])).sum(), x)[0].tolist() == [1.0, 2.0, 3.0]


def test_distance_is_the_symmetric_divergence() -> None:
    generator = torch.Generator().manual_seed(1)
    (μ, u), (ν, w) = ((torch.randn(5, generator=generator), 0.1 + torch.rand(5, generator=generator)) for _ in range(2))
    p, q = Normal(μ, u.sqrt()), Normal(ν, w.sqrt())
    expected = ((kl_divergence(p, q) + kl_divergence(q, p)) / 2).mean()
    assert distance((μ, u), (ν, w), 0.0).item() == pytest.approx(expected.item(), rel=1e-5)
    assert distance((ν, w), (μ, u), 0.0).item() == pytest.approx(expected.item(), rel=1e-5)
    assert distance((μ, u), (μ, u), 1e-5).item() == pytest.approx(0, abs=1e-6)


def test_initial_values() -> None:
    """β = 0.5 and factors of 1 nearly; multipliers are the plain rate (appendix E)."""
    network = build("cnn-bn", (3, 32, 32), 10, 1)
    nets = build_meta_nets(network, 0.02, 1)
    assert (nets.bn is not None, len(nets.multipliers)) == (True, len(list(network.parameters())))
    assert nets.mixing(torch.zeros(3)).tolist() == pytest.approx([0.5] * 3)
    assert nets.rates(torch.zeros(14)).tolist() == pytest.approx([0.02] * len(nets.multipliers))
    hidden = build_meta_nets(network, 0.02, 1, hidden=True)
    assert hidden.bn is not None
    for net, start in ((hidden.bn, 0.5), (hidden.lr, 1.0)):
        assert {bias for layer in (net[0], net[2]) for bias in layer.bias.tolist()} == {start}
    # A hidden unit's answer to nothing is its bias; weights of Xavier's deviation g·√(2/(in + out)) add 100 of them.
    β = hidden.mixing(torch.zeros(3)) - 0.5
    assert 0 < β.abs().max() < 4 * 0.1 * (2 / 103) ** 0.5 * 0.5 * 10


@pytest.mark.parametrize(
    ("made", "β", "factor"), [(-0.5, 0, 0), (0.2, 0.2, 0.2), (0.9, 0.9, 0.9), (7, 1, 7), (1001, 1, 1000)]
)
def test_outputs_are_kept_in_their_ranges(made: float, β: float, factor: float) -> None:
    """β is in [0, 1]; the multipliers' factors are in [0, 1,000]."""
    nets = build_meta_nets(build("cnn-bn", (1, 8, 8), 10, 1), 0.02, 1)
    _fixed(nets, made, made)
    assert nets.mixing(torch.zeros(3)).tolist() == pytest.approx([β] * 3)
    assert nets.rates(torch.zeros(14)).tolist() == pytest.approx([0.02 * factor] * 11)


def test_a_new_client_needs_one_pass() -> None:
    examples = Examples(torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3)
    network = build("cnn-bn", (1, 8, 8), 10, 1)
    client, passes = _client(examples, network), []
    network.register_forward_hook(lambda *args: passes.append(1))
    β, η = client.hyperparameters(build_meta_nets(network, 0.01, 1), client.profile())
    assert len(passes) == 1
    assert (len(β), len(η)) == (3, 11)


def test_stock_strategies_send_no_meta_nets() -> None:
    client = _client(_examples(5), network := build("cnn-bn", (1, 8, 8), 10, 1))
    for call in (client.fit, client.evaluate):
        with pytest.raises(RunError, match="own strategy"):
            call([*get_arrays(network).values()], {})


def test_meta_nets_are_learned_and_the_model_is_not(run: Runs) -> None:
    path = run("run", **{"batch-size": 1000})
    checkpoint = read_checkpoint(path)
    start = get_arrays(build_meta_nets(build("cnn-bn", (1, 8, 8), 10, 1), 0.01, 1))
    assert checkpoint.arrays.keys() == start.keys()
    assert not np.array_equal(checkpoint.arrays["lr.2.bias"], start["lr.2.bias"])
    assert not np.array_equal(checkpoint.arrays["bn.2.bias"], start["bn.2.bias"])
    plain = read_checkpoint(run("plain", method="fedavg", rounds=1, **{"batch-size": 1000})).arrays
    for name, array in plain.items():  # the round of pretraining
        np.testing.assert_allclose(checkpoint.state[BESIDE + name], array, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("hidden", [True, False])
def test_a_run_begins_with_the_biases_it_was_told(run: Runs, hidden: bool) -> None:
    still: dict[str, Value] = {"fedl2p.meta-learning-rate": 1e-12, "fedl2p.multiplier-learning-rate": 1e-12}
    arrays = read_checkpoint(run("run", **still, **{"fedl2p.hidden-biases": hidden})).arrays
    for name, start in (
        ("bn.0.bias", 0.5 * hidden),
        ("lr.0.bias", 1.0 * hidden),
        ("bn.2.bias", 0.5),
        ("lr.2.bias", 1.0),
    ):
        np.testing.assert_allclose(arrays[name], start, atol=1e-6)


def test_the_model_is_not_sent_back(run: Runs) -> None:
    names = read_checkpoint(run("run")).arrays.keys()
    answers = [
        unpack(reply.content["arrays"]).keys()
        for message, reply in zip(run.grid.sent, run.grid.received, strict=True)
        if message.metadata.message_type == "train" and message.content["config"]["phase"] == "train"
    ]
    assert len(answers) == 4
    assert all(answer == names for answer in answers)


def test_starts_from_another_run(run: Runs) -> None:
    trained = run("trained", method="fedavg", rounds=2)
    path = run("run", init=trained.name, **{"fedl2p.pretraining-rounds": 0})
    model = read_checkpoint(trained).arrays
    assert all(np.array_equal(read_checkpoint(path).state[BESIDE + name], array) for name, array in model.items())
    other = run("other", method="fedavg", rounds=1, model="mlp")
    with pytest.raises(ConfigurationError, match=r"fc1\.0\.weight|fc1"):
        run("refused", init=other.name, **{"fedl2p.pretraining-rounds": 0})


def test_the_best_is_what_clients_are_tested_with(run: Runs) -> None:
    """It is judged by clients' last losses, and compared by those who had been heard when the best before was sent."""
    keys: dict[str, Value] = {"fedl2p.hypergradient": "fomaml+", "fedl2p.initial-rate": 0.001}
    path = run("run", rounds=12, participation=0.5, **keys, **{"fedl2p.meta-learning-rate": 0.01})
    checkpoint = read_checkpoint(path)
    report = json.loads((path / "summary.json").read_text())["fedl2p"]
    heard: dict[int, dict[str, tuple[float, float]]] = {}
    sent: dict[int, Arrays] = {}
    for message, reply in zip(run.grid.sent, run.grid.received, strict=True):
        if message.metadata.message_type == "train" and message.content["config"]["phase"] == "train":
            metrics, number = Reply.unpack(reply.content).metrics, int(message.content["config"]["round"])
            pairs = zip(metrics["loss"], metrics["weight"], strict=True)
            heard.setdefault(number, {}).update(zip(reply.content["outcome"]["clients"], pairs, strict=True))
            sent[number] = {n: a for n, a in unpack(message.content["arrays"]).items() if not n.startswith(BESIDE)}
    assert min(heard) == 2  # after the round of pretraining

    def mean(losses: dict[str, tuple[float, float]], clients: Iterable[str]) -> float:
        return sum(losses[c][0] * losses[c][1] for c in clients) / sum(losses[c][1] for c in clients)

    best, lowest = 2, heard[2]
    for number in range(3, 13):
        last = {client: pair for r in range(2, number + 1) for client, pair in heard[r].items()}
        if mean(last, lowest) < mean(lowest, lowest):
            best, lowest = number, last
    assert best > 2
    assert report["round"] == best
    assert report["validation_loss"] == pytest.approx(mean(lowest, lowest), rel=1e-6)
    for name, array in sent[best].items():
        assert np.array_equal(checkpoint.state[f"best.{name}"], array)


@pytest.mark.parametrize(
    ("level", "best"),
    [
        (lambda number: -number, 12),
        (lambda number: number, 2),
        (lambda number: 12 - number if number > 2 else 0, 2),  # high when most are heard for the first time
    ],
)
def test_clients_that_are_heard_later_do_not_decide(
    run: Runs, level: Callable[[int], int], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where losses fall the last λ is the best, and where they rise the first, however much clients differ."""
    honest = FedL2PClient.perform

    def perform(client: FedL2PClient, name: str, arrays: Arrays, arguments: Mapping[str, Any]) -> Answer:
        answer = honest(client, name, arrays, arguments)
        answer.metrics["loss"] = 20.0 + 100 * int(client.client_id) + level(client.round)
        return answer

    monkeypatch.setattr(FedL2PClient, "perform", perform)
    path = run("run", rounds=12, participation=0.5, **{"evaluate-every": 0})
    assert json.loads((path / "summary.json").read_text())["fedl2p"]["round"] == best


def test_without_batch_norm_there_is_only_lrnet(run: Runs, caplog: pytest.LogCaptureFixture) -> None:
    path = run("run", model="mlp")
    assert "model 'mlp' has no batch norm: LRNet alone is learned" in caplog.text
    assert not [name for name in read_checkpoint(path).arrays if name.startswith("bn.")]
    assert "mixing" not in json.loads((path / "summary.json").read_text())["final"]["seen"]


@pytest.mark.parametrize("learn", ["bn", "lr"])
def test_one_net_alone(run: Runs, learn: str) -> None:
    path = run("run", **{"fedl2p.learn": learn, "fedl2p.mixing": 1.0, "fedl2p.initial-rate": 0.003})
    final = json.loads((path / "summary.json").read_text())["final"]["seen"]
    start = get_arrays(build_meta_nets(build("cnn-bn", (1, 8, 8), 10, 1), 0.003, 1))
    changed = {n.partition(".")[0] for n, a in read_checkpoint(path).arrays.items() if not np.array_equal(a, start[n])}
    if learn == "bn":
        assert changed == {"bn"}
        assert final["rate"] == pytest.approx(0.003)
    else:
        assert changed == {"lr", "multipliers"}
        assert final["mixing"] == 1.0


def test_steps_with_nan_are_skipped_and_counted() -> None:
    examples = Examples(torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 3)
    network = build("cnn-bn", (1, 8, 8), 10, 1)
    client = _client(examples, network, **{"fedl2p.initial-rate": 1e30, "fedl2p.iterations": 2, "finetune-epochs": 5})
    client.data = client.data.hold_back(0.2, torch.Generator().manual_seed(1), TASK)
    start = get_arrays(build_meta_nets(network, 1e30, 1))
    answer = perform(client, "train", start | _beside(get_arrays(network)))
    assert answer.metrics == {"skipped": 2.0}
    assert all(np.array_equal(answer.arrays[name], array) for name, array in start.items())


@pytest.mark.parametrize("method", mostly_long(["fedl2p", "l2p"], "l2p"))
def test_resume_and_packing(run: Runs, method: str) -> None:
    """With ψ and a rate at which what rounding leaves stays small; larger ones can magnify it."""
    small: dict[str, Value] = {"fedl2p.neumann-rate": 0.01, "fedl2p.initial-rate": 0.003}
    run.check_resume_and_packing(**{"rounds": 4, "method": method, **small})


def test_fine_tuning_is_plain_sgd_whatever_else_is_set() -> None:
    examples = Examples(torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3)
    network = build("cnn-bn", (1, 8, 8), 10, 1)
    arrays = get_arrays(build_meta_nets(network, 0.01, 1)) | _beside(get_arrays(network))
    losses = [
        perform(_client(examples, network, **keys), "test", arrays).metrics["loss"]
        for keys in ({}, {"optimizer": "adam"}, {"momentum": 0.9, "weight-decay": 0.1, "max-grad-norm": 0.1})
    ]
    assert losses[0] == losses[1] == losses[2]


def _explode(monkeypatch: pytest.MonkeyPatch, client_id: str, rounds: Collection[int]) -> None:
    """Let the fine-tuning of a client diverge in some rounds: it skips its step and answers no validation loss."""
    honest = FedL2PClient.perform

    def perform(client: FedL2PClient, name: str, arrays: Arrays, arguments: Mapping[str, Any]) -> Answer:
        answer = honest(client, name, arrays, arguments)
        if name == "train" and client.round in rounds and client.client_id == client_id:
            answer.metrics["skipped"] = 1.0
            del answer.metrics["loss"]
        return answer

    monkeypatch.setattr(FedL2PClient, "perform", perform)


@pytest.mark.parametrize("method", ["fedl2p", "l2p"])
def test_a_clients_explosion_makes_no_best(
    run: Runs, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where one of the clients has no validation loss, those of the others do not make λ the best."""
    _explode(monkeypatch, "1", rounds=(2, 3))
    summary = json.loads((run("run", method=method, **{"min-success": 0.1}) / "summary.json").read_text())
    assert summary[method]["skipped_steps"] == 2  # in two rounds of learning
    if method == "fedl2p":
        assert summary[method]["validation_loss"] is None
        assert "no λ was chosen" in caplog.text


def test_a_client_that_answers_again_lets_the_best_be_chosen(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had no loss in round 2, the first one of learning, after which the run is broken off and resumed."""
    _explode(monkeypatch, "1", rounds=(2,))
    for path in run.whole_and_broken(3):
        assert json.loads((path / "summary.json").read_text())["fedl2p"]["round"] == 3


def test_a_device_that_has_gone_without_a_loss_judges_no_more(
    run: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four devices one has no loss in round 2, the first one of learning, and is gone from round 3 on."""
    online, rounds = InProcessGrid.get_node_ids, 1
    federation, dataset = federate(settings(num_clients=4))
    nodes = []
    for i in range(4):
        write_device(federation, dataset, i, tmp_path / str(i))
        nodes.append({"client-id": f"d{i}", "data-path": str(tmp_path / str(i))})

    def note(message: Message) -> None:
        nonlocal rounds
        if message.metadata.message_type == "train":
            rounds = int(message.content["config"]["round"])

    _explode(monkeypatch, "d3", rounds=(2,))
    monkeypatch.setattr(InProcessGrid, "get_node_ids", lambda grid: list(online(grid))[: 3 if rounds > 1 else 4])
    keys: dict[str, Value] = {"state-dir": str(tmp_path / "state"), "min-success": 0.1, "evaluate-every": 0}
    path = run("run", nodes=nodes, intercept=note, **keys)
    assert json.loads((path / "summary.json").read_text())["fedl2p"]["round"] == 3
    assert sorted(read_checkpoint(path).facts["own"]["best_losses"]) == ["d0", "d1", "d2"]


def test_what_is_refused(run: Runs, tmp_path: Path) -> None:
    for keys in ({"validation-fraction": 0.0}, {"finetune-epochs": 0}):
        with pytest.raises(ConfigurationError, match="validation-fraction and"):
            run("refused", **keys)
    with pytest.raises(ConfigurationError, match="init"):
        run("refused", **{"fedl2p.pretraining-rounds": 0})
    with pytest.raises(ConfigurationError, match="rounds"):
        run("refused", **{"fedl2p.pretraining-rounds": 3})
    with pytest.raises(ConfigurationError, match="no batch norm"):
        run("refused", model="mlp", **{"fedl2p.learn": "bn"})
    write(tmp_path / "data", "shakespeare", 300, 60)
    texts: dict[str, Value] = {"data-dir": str(tmp_path / "data"), "samples-per-client": 0}
    with pytest.raises(ConfigurationError, match="texts"):
        run("refused", dataset="shakespeare", model="char-lstm", **texts)
    with pytest.raises(RunError, match="validation-fraction"):
        run("empty", **{"validation-fraction": 0.0001})


def test_one_client_learns_the_same_alone(run: Runs) -> None:
    """With a single client there is nothing to average: `l2p` keeps what `fedl2p` has on the server."""
    keys: dict[str, Value] = {"num-clients": 1, "classes-per-client": 10, "fedl2p.iterations": 2}
    together = read_checkpoint(run("together", **keys)).arrays
    path = run("alone", method="l2p", **keys)
    kept = load_file(sorted((path / "clients" / "0").glob("state-*"))[-1])
    for name, array in together.items():
        np.testing.assert_allclose(kept[name], array, rtol=1e-5, atol=1e-6)
    start = get_arrays(build_meta_nets(build("cnn-bn", (1, 8, 8), 10, 1), 0.01, 1))
    assert all(np.array_equal(read_checkpoint(path).arrays[name], array) for name, array in start.items())


def test_alone_clients_learn_in_turn(run: Runs) -> None:
    """Three of four learn in each of four rounds after the first: three times each."""
    run("alone", method="l2p", rounds=5, participation=0.75)
    rounds: dict[int, list[str]] = {}
    for message in run.grid.sent:
        if message.metadata.message_type == "train" and message.content["config"]["phase"] == "train":
            config = message.content["config"]
            rounds.setdefault(int(config["round"]), []).extend(config["clients"])
    assert all(len({*clients}) == len(clients) == 3 for clients in rounds.values())
    assert Counter(client for clients in rounds.values() for client in clients) == dict.fromkeys("0123", 3)


@pytest.mark.parametrize("method", ["fedbabu", "per-fedavg"])
def test_composes_with_other_trainings(run: Runs, method: str) -> None:
    """FedBABU keeps a body alone: the head beside it is the one that body was trained with, whatever the seed now."""
    trained = run("trained", method=method, rounds=1, **{"learning-rate": 1e-3})
    path = run("run", init=trained.name, seed=7, **{"fedl2p.pretraining-rounds": 0, "rounds": 1})
    first = get_arrays(build("cnn-bn", (1, 8, 8), 10, 1)) | read_checkpoint(trained).arrays
    for name, array in first.items():
        assert np.array_equal(read_checkpoint(path).state[BESIDE + name], array), name


def test_init_may_be_of_the_same_seed(run: Runs) -> None:
    run("trained-7", method="fedavg", rounds=1, seed=7)
    run("run", init="trained-{seed}", seed=7, **{"fedl2p.pretraining-rounds": 0, "rounds": 1})
    with pytest.raises(ConfigurationError, match="no run 'trained-8'"):
        run("other", init="trained-{seed}", seed=8, **{"fedl2p.pretraining-rounds": 0, "rounds": 1})


def test_alone_nothing_is_sent_back(run: Runs) -> None:
    run("alone", method="l2p", **{"rounds": 2})
    answers = [
        Reply.unpack(reply.content).arrays
        for message, reply in zip(run.grid.sent, run.grid.received, strict=True)
        if message.metadata.message_type == "train" and message.content["config"]["phase"] == "train"
    ]
    assert len(answers) == 2
    assert not any(answers)
