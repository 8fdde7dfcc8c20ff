"""FedSR: the regularisers against torch's own densities, its limits, what is learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torch.func import functional_call
from torch.nn.functional import softplus

from florilegium.apps.settings.configuration import parse
from florilegium.clients.core.wire import BESIDE
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays, set_arrays
from florilegium.models.representation import build_representation
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import assert_rounded, config, make_client, perform

KEYS: dict[str, Value] = {
    "method": "fedsr", "model": "mlp", "num-clients": 6, "participation": 0.5, "rounds": 4, "local-epochs": 1,
    "learning-rate": 0.05, "evaluate-every": 1,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def test_information_against_samples() -> None:
    """E_z [log p(c·z|x) − log r(c·z|y)] over many samples; the densities are torch's."""
    representation = build_representation(3, 2, 1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        representation.class_means.copy_(torch.randn(2, 3, generator=generator))
        representation.scale.fill_(1.7)
        p = representation(torch.randn(4, 3, generator=generator))
        y = torch.tensor([0, 1, 1, 0])
        scaled = Normal(1.7 * p.loc, 1.7 * p.scale)
        z = scaled.loc + scaled.scale * torch.randn(200_000, 4, 3, generator=generator)
        r = Normal(representation.class_means[y], torch.nn.functional.softplus(representation.class_spreads[y]))
        estimate = (scaled.log_prob(z) - r.log_prob(z)).sum(dim=2).mean()
        assert representation.information(p, y).item() == pytest.approx(estimate.item(), rel=0.02)


def test_information_is_zero_where_inputs_tell_no_more_than_the_class() -> None:
    representation = build_representation(3, 2, 1)
    with torch.no_grad():
        representation.class_means.copy_(torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]))
        spread = torch.nn.functional.softplus(representation.class_spreads[:1])
        p = Normal(torch.tensor([[1.0, 2.0, 3.0]]), spread)
        assert representation.information(p, torch.tensor([0])).item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("norm", ["length", "squared"])
def test_step_is_along_the_objective(norm: str) -> None:
    """One full-batch step, against autograd's gradient of ℓ + α_L2R·E‖z‖ (or ‖z‖²) + α_CMI·E KL, written out."""
    keys = {**KEYS, "local-steps": 1, "batch-size": 8, "learning-rate": 1.0, "momentum": 0.0, "fedsr.norm": norm,
            "fedsr.norm-penalty": 0.3, "fedsr.information-penalty": 0.2}  # fmt: skip
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 1, 8, 8, generator=g), torch.randint(10, (8,), generator=g)
    client = make_client(Examples(x, y), model := build("mlp", (1, 8, 8), 10, 1), **keys)
    start = {name: torch.from_numpy(array) for name, array in get_arrays(model).items()}
    spread = build_representation(32, 10, 1)
    r = {name: 0.3 * torch.randn(p.shape, generator=g) + (name == "scale") for name, p in spread.named_parameters()}
    sent = {n: a.numpy() for n, a in start.items()} | {BESIDE + n: a.numpy() for n, a in r.items()}
    answer = perform(client, "train", sent).arrays

    leaves = {name: array.clone().requires_grad_() for name, array in (start | r).items()}
    rows = torch.randperm(8, generator=client.generator())
    ε = torch.randn((8, 32), generator=client.generator("noise"))
    μ = functional_call(model[:-1], {name: leaves[name] for name in start if not name.startswith("fc3")}, x[rows])
    σ = softplus(μ @ leaves["spread.weight"].T + leaves["spread.bias"])
    z = μ + σ * ε
    c, m, s = leaves["scale"], leaves["class_means"][y[rows]], softplus(leaves["class_spreads"][y[rows]])
    kl = (torch.log(s / (c * σ)) + ((c * σ) ** 2 + (c * μ - m) ** 2) / (2 * s**2) - 0.5).sum(dim=1).mean()
    squares = (z**2).sum(dim=1)
    scores = z @ leaves["fc3.weight"].T + leaves["fc3.bias"]
    loss = -torch.log_softmax(scores, dim=1)[torch.arange(8), y[rows]].mean()
    (loss + 0.3 * (squares if norm == "squared" else squares.sqrt()).mean() + 0.2 * kl).backward()
    for name, leaf in leaves.items():
        moved = sent[name if name in start else BESIDE + name] - answer[name if name in start else BESIDE + name]
        np.testing.assert_allclose(moved, leaf.grad, rtol=2e-3, atol=2e-4)


def test_without_information_penalty_nothing_is_drawn() -> None:
    """z = μ(x) in training too; a representation of zeros has no slope."""
    keys = {**KEYS, "local-steps": 1, "batch-size": 2, "fedsr.information-penalty": 0.0}
    client = make_client(
        Examples(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1])), build("mlp", (1, 8, 8), 10, 1), **keys
    )
    zeros = {name: np.zeros_like(array) for name, array in get_arrays(client.model).items()}
    own = {BESIDE + name: array for name, array in get_arrays(build_representation(32, 10, 1)).items()}
    answer = perform(client, "train", zeros | own).arrays
    assert all(np.isfinite(array).all() for array in answer.values())
    assert not answer["fc3.weight"].any()


def test_defaults_are_the_authors() -> None:
    _, hyper = parse(config(method="fedsr"))
    assert (hyper.norm_penalty, hyper.information_penalty, hyper.norm) == (0.01, 0.001, "length")


def test_without_penalties_it_is_fedavg(run: Runs) -> None:
    none = read_checkpoint(run("none", **{"fedsr.norm-penalty": 0.0, "fedsr.information-penalty": 0.0})).arrays
    plain = read_checkpoint(run("plain", method="fedavg")).arrays
    for name, array in plain.items():
        assert_rounded(none[name], array)


def test_representations_get_shorter(run: Runs) -> None:
    """The mean squared output of the last hidden layer, under a strong penalty and without."""
    lengths = []
    for penalty in (0.0, 1.0):
        path = run(f"at-{penalty}", **{"fedsr.norm-penalty": penalty, "fedsr.information-penalty": 0.0})
        network = build("mlp", (1, 8, 8), 10, 1)
        set_arrays(network, read_checkpoint(path).arrays)
        x = torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        lengths.append(network[:-1](x).square().sum(dim=1).mean().item())
    assert lengths[1] < 0.8 * lengths[0]


def test_representation_is_learned_and_averaged(run: Runs) -> None:
    state = read_checkpoint(run("run", **{"fedsr.information-penalty": 0.1})).state
    start = get_arrays(build_representation(32, 10, 1))
    assert state.keys() == {BESIDE + name for name in start}
    assert all(not np.array_equal(state[BESIDE + name], array) for name, array in start.items())


def test_resume_and_packing(run: Runs) -> None:
    run.check_resume_and_packing()


def test_network_without_a_classifier_of_its_own(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match="blocks"):
        run("refused", model="linear")
