"""FedTTA: the adaptation step, its limit, what is trained, clients without labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from florilegium.clients.fedtta import PREFIX
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.called import as_function
from florilegium.models.mlp import adaptation_network
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, perform

KEYS: dict[str, Value] = {
    "method": "fedtta", "model": "mlp", "num-clients": 8, "participation": 1.0, "rounds": 3, "local-epochs": 1,
    "batch-size": 32, "learning-rate": 0.1, "fedtta.width": 16,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def test_adaptation_is_a_step_down_the_learned_loss() -> None:
    """θ' − θ = −α ∇ of the root mean square of φ(f(x; θ)), by central differences in double precision."""
    model, φ = build("mlp", (1, 8, 8), 10, 1).double(), adaptation_network(10, 16, 1).double()
    x = torch.randn(9, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    examples = Examples(x, torch.zeros(9, dtype=torch.int64))
    client = make_client(examples, model, **{**KEYS, "fedtta.adaptation-rate": 0.5})
    client.data.labeled = False
    θ = dict(model.named_parameters())
    adapted = dict(
        zip(θ, client.adapted(φ, x, [*θ.values()], as_function(model, θ), differentiable=False), strict=True)
    )
    rng, step = np.random.default_rng(1), 1e-6

    def loss() -> float:
        with torch.no_grad():
            return float(φ(model(x)).square().mean().sqrt())

    for name, parameter in model.named_parameters():
        for _ in range(3):
            index = tuple(int(rng.integers(n)) for n in parameter.shape)
            before = parameter.detach()[index].item()
            ends = []
            for sign in (1, -1):
                parameter.data[index] = before + sign * step
                ends.append(loss())
            parameter.data[index] = before
            slope = (ends[0] - ends[1]) / (2 * step)
            assert adapted[name][index].item() - before == pytest.approx(-0.5 * slope, rel=1e-4, abs=1e-8)


def test_each_even_part_of_the_inputs_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven inputs, six at most at once: a step for four and one for three, not for six and one."""
    monkeypatch.setattr("florilegium.clients.fedtta.EVALUATION_BATCH", 6)
    x = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    examples, network = Examples(x, torch.zeros(7, dtype=torch.int64)), build("mlp", (1, 8, 8), 10, 1)
    client, φ = make_client(examples, network, **KEYS), adaptation_network(10, 16, 1)
    names = [name for name, _ in network.named_parameters()]
    θ = [p.detach().clone().requires_grad_() for p in network.parameters()]
    for part in (x[:4], x[4:]):
        adapted = client.adapted(φ, part, θ, as_function(network, names), differentiable=False)
        θ = [p.detach().requires_grad_() for p in adapted]
    expected = dict(zip(names, θ, strict=True))
    sent = get_arrays(network) | {PREFIX + name: array for name, array in get_arrays(φ).items()}
    perform(client, "test", sent)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter, expected[name])
        assert not np.array_equal(parameter.detach().numpy(), sent[name])


def test_nothing_to_adapt_to_is_said() -> None:
    nothing, network = Examples(torch.zeros(0, 1, 8, 8), torch.zeros(0).long()), build("mlp", (1, 8, 8), 10, 1)
    sent = get_arrays(network) | {PREFIX + n: a for n, a in get_arrays(adaptation_network(10, 16, 1)).items()}
    with pytest.raises(RunError, match="no inputs to adapt to"):
        perform(make_client(nothing, network, **KEYS), "test", sent)


def test_training_looks_through_the_step() -> None:
    """One full-batch step: −η times the gradient of ℓ(θ'(θ, φ)) in θ and φ, by central differences in double precision.

    α is large, so that the gradient without the second derivatives is another one.
    """
    α, η = 2.0, 0.1
    keys = {**KEYS, "fedtta.adaptation-rate": α, "learning-rate": η, "momentum": 0.0, "batch-size": 9}
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(9, 1, 8, 8, generator=generator), torch.randint(10, (9,), generator=generator)
    model = build("mlp", (1, 8, 8), 10, 1)
    client = make_client(Examples(x, y), model, **keys)
    start = get_arrays(model) | {PREFIX + n: a for n, a in get_arrays(adaptation_network(10, 16, 1)).items()}
    moved = perform(client, "train", start).arrays
    network, φ = build("mlp", (1, 8, 8), 10, 1).double(), adaptation_network(10, 16, 1).double()
    own = {**dict(network.named_parameters()), **{PREFIX + name: p for name, p in φ.named_parameters()}}

    def loss() -> float:
        θ = dict(network.named_parameters())
        rms = φ(network(x.double())).square().mean().sqrt()
        slopes = torch.autograd.grad(rms, list(θ.values()))
        adapted = {name: p - α * g for (name, p), g in zip(θ.items(), slopes, strict=True)}
        with torch.no_grad():
            return float(cross_entropy(functional_call(network, adapted, (x.double(),)), y))

    rng, step = np.random.default_rng(1), 1e-5
    for name, parameter in own.items():
        for _ in range(3):
            index = tuple(int(rng.integers(n)) for n in parameter.shape)
            before, ends = parameter.detach()[index].item(), []
            for sign in (1, -1):
                parameter.data[index] = before + sign * step
                ends.append(loss())
            parameter.data[index] = before
            slope = (ends[0] - ends[1]) / (2 * step)
            assert moved[name][index] - start[name][index] == pytest.approx(-η * slope, rel=2e-2, abs=2e-6)


def test_without_adaptation_it_is_fedavg(run: Runs) -> None:
    none = read_checkpoint(run("none", **{"fedtta.adaptation-rate": 1e-12})).arrays
    plain = read_checkpoint(run("plain", method="fedavg")).arrays
    for name, array in plain.items():
        np.testing.assert_allclose(none[name], array, rtol=1e-4, atol=1e-6)
    assert {name for name in none if not name.startswith(PREFIX)} == plain.keys()


def test_a_broken_run_goes_on_to_the_same_end_in_any_packing(run: Runs) -> None:
    # A full batch a round: sums in another order differ by rounding, of which no long training makes more.
    run.check_resume_and_packing(**{"labeled-fraction": 0.5, "evaluate-every": 1, "batch-size": 10_000})


def test_the_loss_is_learned_too(run: Runs) -> None:
    trained = read_checkpoint(run("both")).arrays
    start = get_arrays(adaptation_network(10, 16, 1))
    # The last bias moves every output alike, and so does every layer before it.
    assert all(not np.array_equal(trained[PREFIX + name], array) for name, array in start.items())


def test_clients_without_labels_are_served(run: Runs) -> None:
    keys = {"rounds": 15, "num-clients": 16, "batch-size": 10, "labeled-fraction": 0.6, "unseen-fraction": 0.2}
    final = json.loads((run("served", **keys) / "summary.json").read_text())["final"]
    assert set(final) == {"seen", "unseen", "unlabeled"}
    for figures in final.values():
        assert figures["accuracy"] > 0.4
        assert figures["loss"] != figures["loss_global"]  # accuracies of few test examples may be the same
    # Where it was learned, adaptation helps: over seeds 1 to 5 the loss falls by 0.01 to 0.04.
    assert final["seen"]["loss"] < final["seen"]["loss_global"]
