"""The audit: its bound against closed forms, and runs that remember their canaries or do not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.research.attacks.audit import Canary, attack, audit, canaries, chance, lower_bound
from tests.runs import Runs

KEYS: dict[str, Value] = {
    "method": "fedavg", "model": "mlp", "num-clients": 2, "participation": 1.0, "rounds": 8, "local-epochs": 15,
    "learning-rate": 0.1, "momentum": 0.9, "batch-size": 32, "evaluate-every": 0, "canaries": 100,
}  # fmt: skip


def test_all_right() -> None:
    """Where all c guesses are right, (e^ε/(1 + e^ε))^c = 5 % at the bound."""
    for count in (10, 100, 1000):
        right = 0.05 ** (1 / count)
        assert lower_bound(count, count, count, 0.0) == pytest.approx(math.log(right / (1 - right)), abs=2e-4)


def test_half_right_says_nothing() -> None:
    assert lower_bound(100, 100, 50, 0.0) == 0
    assert lower_bound(100, 100, 58, 0.0) == 0  # of which the chance is 7 %
    assert lower_bound(100, 100, 59, 0.0) > 0  # 4 %


def test_a_mechanism_that_is_private_is_not_accused() -> None:
    """Randomised response is right with probability e^ε/(1 + e^ε): the bound is beyond ε one time in twenty."""
    rng, ε = np.random.default_rng(1), 1.5
    correct = rng.binomial(200, 1 / (1 + math.exp(-ε)), 2000)
    bounds = {v: lower_bound(200, 200, int(v), 0.0) for v in np.unique(correct)}
    beyond = np.mean([bounds[v] > ε for v in correct])
    assert 0.01 < beyond < 0.065


def test_delta_adds_its_share() -> None:
    """By the theorem's sum, written out."""
    w = binom(40, 1 / (1 + math.exp(-1.0)))
    α = max((sum(w.pmf(35 - j) for j in range(1, i + 1))) / i for i in range(1, 36))
    assert chance(60, 40, 35, 1.0, 1e-3) == pytest.approx(w.sf(34) + 2 * 1e-3 * 60 * α, rel=1e-9)
    assert chance(60, 40, 35, 1.0, 0.0) == pytest.approx(w.sf(34), rel=1e-12)


def test_the_lowest_losses_are_guessed_present() -> None:
    found = Canary(np.array([0.1, 3.0, 0.2, 5.0, 1.0]), np.array([True, False, False, False, True]))
    result = attack(found, math.inf, 0.0)
    assert (result.guesses, result.correct, result.advantage) == (4, 3, 0.5)


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_model_that_learns_by_heart_tells_and_a_private_one_does_not(tmp_path: Path, method: str) -> None:
    run = Runs(tmp_path, {**KEYS, "method": method})
    open_book = audit(run("open"))
    assert open_book.advantage > 0.5
    assert open_book.bound > 0.5
    assert open_book.claimed == math.inf
    assert "| ε by the run's account, δ = 0 | none |" in (tmp_path / "open" / "audit.md").read_text()
    private = audit(run("private", **{
        "privacy.unit": "example", "privacy.epsilon": 2.0, "privacy.clip-norm": 0.5,
    }))  # fmt: skip
    assert private.bound <= 2.0
    assert private.advantage < open_book.advantage / 2
    assert 1.9 < private.claimed <= 2.0


def test_clients_are_looked_for_in_the_servers_model(tmp_path: Path) -> None:
    run = Runs(tmp_path, {**KEYS, "num-clients": 24, "canaries": 12, "canary-unit": "client", "local-epochs": 5})
    path = run("run")
    found = canaries(path)
    assert len(found.losses) == 12
    assert found.losses[found.present].mean() < found.losses[~found.present].mean()
    with pytest.raises(RunError, match="has no whole model"):
        audit(run("fedper", method="fedper", rounds=1))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"canary-unit": "client", "canaries": 2}, "protects each example, but its canaries .* are clients"),
        ({"finetune-epochs": 1}, "made for every test anew"),
    ],
)
def test_what_the_account_does_not_speak_of(tmp_path: Path, keys: dict[str, Value], message: str) -> None:
    run = Runs(tmp_path, {**KEYS, "num-clients": 6, "rounds": 1, "local-epochs": 1})
    path = run("run", **{"privacy.unit": "example", "privacy.noise-multiplier": 1.0, **keys})
    with pytest.raises(RunError, match=message):
        audit(path)


def test_a_run_without_canaries_cannot_be_audited(tmp_path: Path) -> None:
    path = Runs(tmp_path, {**KEYS, "canaries": 0, "rounds": 1, "local-epochs": 1})("run")
    with pytest.raises(RunError, match="has 0 canaries; set key canaries"):
        audit(path)
