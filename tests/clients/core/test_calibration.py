"""``vectorise = "auto"``: the number of clients with the least time is taken, and remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from florilegium.clients.core import calibration
from florilegium.clients.core.calibration import UNSTACKED, fastest
from florilegium.clients.core.stacked_training import Training
from florilegium.clients.core.together import Company
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples
from tests.support import TASK, settings

EXAMPLES = Examples(torch.randn(12, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3)


@pytest.mark.parametrize(
    ("per_client", "best"),
    [
        ({1: 1.0, 4: 0.9, 16: 0.5, 64: 0.6}, 16),
        ({1: 1.0, 4: 1.2, 16: 1.1, 64: 0.5}, 64),  # no gain at 4 is no reason to stop
        ({1: 1.0, 4: 0.97, 16: 0.96, 64: 0.96}, 1),  # too small a gain to be sure of
        ({1: 1.0, 4: 1.6, 16: 0.1, 64: 0.1}, 1),  # hopeless
    ],
)
def test_the_fastest_number_is_taken_and_remembered(
    per_client: Mapping[int, float], best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = build("mlp", (1, 4, 4), 3, 1)
    company, run, together = Company(network, {"train": Training.of}), Company.run, list[int]()
    monkeypatch.setattr(Company, "run", lambda self, tasks: together.append(len(tasks)) or run(self, tasks[:2]))

    def seconds(work: Callable[[], object], examples: Examples) -> float:
        work()
        size = together.pop() if together else 1
        return size * per_client[size]

    monkeypatch.setattr(calibration, "_seconds", seconds)
    before, draws = get_arrays(network), torch.default_generator.get_state()
    options = settings(**{"cache-dir": str(tmp_path)})
    assert fastest(company, options, EXAMPLES, task=TASK) == best
    assert all(np.array_equal(array, before[name]) for name, array in get_arrays(network).items())
    assert torch.equal(torch.default_generator.get_state(), draws)
    monkeypatch.setattr(calibration, "_seconds", None)  # nothing is measured again
    assert fastest(company, options, EXAMPLES, task=TASK) == best


def test_a_network_that_cannot_be_stacked_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_seconds", None)
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3))
    assert fastest(Company(network, {"train": Training.of}), settings(), EXAMPLES, task=TASK) == UNSTACKED
