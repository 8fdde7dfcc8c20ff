"""FedSR: the regularisers against torch's own densities, its limits, what is learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from florilegium.clients.core.wire import BESIDE
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays, set_arrays
from florilegium.models.representation import build_representation
from florilegium.strategies.core.run_folder import read_checkpoint
from tests.runs import Runs

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


def test_without_penalties_it_is_fedavg(run: Runs) -> None:
    none = read_checkpoint(run("none", **{"fedsr.norm-penalty": 0.0, "fedsr.information-penalty": 0.0})).arrays
    plain = read_checkpoint(run("plain", method="fedavg")).arrays
    for name, array in plain.items():
        np.testing.assert_allclose(none[name], array, rtol=1e-5, atol=1e-7)


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
