"""FedProx's adaptive μ: the rule, where it starts, and that clients get it (its steps: ``test_rounds.py``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.fedprox import FedProxClient
from florilegium.models.parameters import Arrays
from florilegium.strategies.fedprox import AdaptiveMu
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs


def _course(losses: list[float], start: float = 1.0) -> list[float]:
    """Return μ after each of the losses."""
    rule, found = AdaptiveMu(start), []
    for loss in losses:
        rule.observe(loss)
        found.append(rule.mu)
    return found


def test_means_of_five_rounds_are_compared() -> None:
    lower, higher = [3.0, 1.0, 1.0, 1.0, 2.0], [9.0, 0.0, 0.0, 0.0, 1.0]  # means 1.6 and 2
    assert _course([*higher, *lower]) == pytest.approx([1.0] * 9 + [0.9])
    assert _course([*lower, *higher]) == pytest.approx([1.0] * 9 + [1.1])
    assert _course([*lower, *lower[::-1]]) == pytest.approx([1.0] * 10)
    # The third five are compared with the second five alone.
    assert _course([*higher, *lower, *higher])[-1] == pytest.approx(1.0)
    assert _course([*higher, *lower, *lower])[-1] == pytest.approx(0.9)


def test_mu_is_never_negative() -> None:
    assert _course(list(np.linspace(2, 1, 20)), start=0.15)[-1] == 0.0
    assert _course([*np.linspace(2, 1, 20), *[5.0] * 5], start=0.15)[-1] == pytest.approx(0.1)


def test_noise_alone_moves_mu_up_as_often_as_down() -> None:
    """A loss that falls with noise ends at μ = 0; pure noise leaves μ near its start. Means over 40 draws."""
    rng, rounds = np.random.default_rng(1), np.arange(200)
    ends = {"falling": 2 * np.exp(-rounds / 100), "level": np.ones(200)}
    for name, mean in ends.items():
        found = [_course(list(mean + 0.02 * rng.normal(size=200)), start=2.0)[-1] for _ in range(40)]
        assert np.mean(found) == pytest.approx({"falling": 0.0, "level": 2.0}[name], abs=0.2)


def test_clients_get_mu_from_its_start_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of round t is t: it has risen after ten rounds."""

    def train(client: FedProxClient, arrays: Arrays, *, mu: float | None = None) -> Answer:
        return Answer(arrays, len(client.data.train), {"loss": float(client.round)})

    monkeypatch.setattr(FedProxClient, "train", phase(train))
    keys = {"method": "fedprox", "num-clients": 4, "rounds": 11, "evaluate-every": 0}
    for adaptive, last in ((True, 0.47), (False, 0.37)):
        run = Runs(tmp_path, {**keys, "fedprox.mu": 0.37, "fedprox.adaptive": adaptive})
        path = run(f"adaptive-{adaptive}", nodes=1)
        asked = [m.content["config"]["mu"] for m in run.grid.sent if m.metadata.message_type == "train"]
        assert asked == pytest.approx([0.37] * 10 + [last])
        assert read_checkpoint(path).facts["own"]["mu"]["mu"] == pytest.approx(last)
