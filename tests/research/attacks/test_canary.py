"""The canary attack: its bounds against closed forms, and what it says of mechanisms that are not what they claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.stats import binomtest

from florilegium.clients.core.reduce import Reduction
from florilegium.clients.layers.noise import Contribution, Noise
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.privacy import sampling
from florilegium.privacy.noise import draw
from florilegium.research.attacks.canary import Canary, Releases, at_least, at_most, attack, judge, release
from florilegium.strategies.layers import client_privacy
from tests.runs import Runs
from tests.support import settings

KEYS: dict[str, Value] = {
    "method": "fedavg", "weighting": "uniform", "privacy.unit": "client", "privacy.sampling": "fixed",
    "privacy.noise-multiplier": 1.0, "privacy.clip-norm": 0.5,
}  # fmt: skip
SHARE = 0.7
"""Share of the claimed ε that the attack must find with 1,000 releases; it is 0.9 with 10,000."""


def _gaussian(z: float, count: int, of: int = 0, rate: float = 1.0) -> Releases:
    """Return ``count`` releases of the Gaussian mechanism with, and without, a canary."""
    rng = np.random.default_rng(0)
    took_part = rng.random(count) < rate
    enrolled = took_part + rng.normal(scale=z, size=count)
    absent = rng.normal(scale=z, size=count)
    return Releases(enrolled[took_part], enrolled, absent, z, rate, 1e-5, [])


def test_clopper_and_pearson_are_scipys() -> None:
    for hits, of in [(0, 20), (3, 20), (20, 20), (517, 1000)]:
        exact = binomtest(hits, of).proportion_ci(0.9, method="exact")  # both sides, 5 % each
        assert at_least(hits, of, 0.95) == pytest.approx(exact.low)
        assert at_most(hits, of, 0.95) == pytest.approx(exact.high)


@pytest.mark.parametrize("z", [0.5, 2.0])
def test_with_many_releases_the_bounds_are_the_mechanisms(z: float) -> None:
    found = judge(_gaussian(z, 300_000))
    assert found.multiplier == pytest.approx(z, rel=0.03)
    exact = from_gaussian_mechanism(z, value_discretization_interval=1e-3).get_epsilon_for_delta(1e-5)
    assert found.epsilon == pytest.approx(exact, rel=0.04)
    assert found.epsilon < exact
    assert 0 < found.any < exact


def test_the_rate_is_bounded_too() -> None:
    found = judge(_gaussian(1.0, 300_000, rate=0.25))
    assert 0.246 < found.rate < 0.25
    assert found.multiplier == pytest.approx(1.0, rel=0.03)


def test_where_nothing_shows_nothing_is_claimed() -> None:
    found = judge(_gaussian(1e3, 100))
    assert (found.multiplier, found.epsilon, found.any) == (np.inf, 0.0, 0.0)
    assert "≤ inf" in found.table()


def _found(count: int = 600, clients: int = 100, cohort: int = 100, **keys: Value) -> Canary:
    """Return what the attack finds of the code of runs, with noise from a fixed seed."""
    return judge(release(settings(**{**KEYS, **keys}), clients, cohort, count, np.random.default_rng(5)))


def test_the_code_of_runs_keeps_its_claim_and_uses_it_up() -> None:
    found = _found(1_000)
    exact = from_gaussian_mechanism(1.0).get_epsilon_for_delta(1e-5)
    assert found.releases.claimed == pytest.approx(exact, rel=1e-3)
    assert found.releases.present.mean() == pytest.approx(1.0, abs=0.15)  # in units of the clip norm
    assert found.releases.absent.std() == pytest.approx(1.0, abs=0.15)
    assert SHARE * exact < found.epsilon < exact


def _half_the_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_privacy, "draw", lambda rng, kind, scale, shape: draw(rng, kind, scale / 2, shape))


def _no_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Contribution, "__call__", lambda self, change: change)


def _clipping_after_averaging(patch: pytest.MonkeyPatch) -> None:
    whole, clip = Reduction.result, Noise.change
    counted: list[Noise] = []

    def change(self: Noise, index: int, update: Arrays, state: Any) -> Arrays:
        counted.append(self)
        return update

    def result(self: Any) -> Arrays:
        count, total = len(counted), whole(self)
        if not count:
            return total
        mean = clip(counted[-1], 0, {name: array / count for name, array in total.items()}, cast(Any, None))
        counted.clear()
        return {name: (array * count).astype(np.float32) for name, array in mean.items()}

    patch.setattr(Noise, "change", change)
    patch.setattr(Reduction, "result", result)


@pytest.mark.parametrize("mutation", [_half_the_noise, _no_clipping, _clipping_after_averaging])
def test_a_mechanism_that_is_not_what_it_claims_is_found_out(monkeypatch: pytest.MonkeyPatch, mutation: Any) -> None:
    mutation(monkeypatch)
    found = _found()
    assert found.epsilon > found.releases.claimed


def test_a_rate_beyond_the_accounts_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Value] = {"privacy.sampling": "poisson"}
    s = settings(**{**KEYS, **keys})
    honest = judge(release(s, 100, 50, 600, np.random.default_rng(5)))
    assert 0.4 < honest.rate < honest.releases.rate == 0.5
    monkeypatch.setattr(
        client_privacy, "poisson_sample", lambda rng, units, rate: sampling.poisson_sample(rng, units, 1.3 * rate)
    )
    cheat = judge(release(s, 100, 50, 600, np.random.default_rng(5)))
    assert cheat.rate > 0.5


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"privacy.unit": "example"}, "does not protect clients"),
        ({"privacy.noise-multiplier": 0.0, "privacy.epsilon": 1.0}, "does not protect clients"),
        ({"privacy.sampling": "slots", "privacy.mechanism": "tree"}, "takes single releases, all alike"),
        ({"secure-aggregation": True}, "takes single releases, all alike"),
    ],
)
def test_what_cannot_be_attacked(keys: dict[str, Value], message: str) -> None:
    with pytest.raises(RunError, match=message):
        _found(**keys)


@pytest.mark.long
@pytest.mark.parametrize(
    "keys",
    [
        {"privacy.sampling": "poisson"},
        {"privacy.sampling": "slots"},
        {"privacy.sampling": "fixed", "privacy.noise-at": "device"},
    ],
)
def test_ten_thousand_releases_of_a_finished_run(tmp_path: Path, keys: dict[str, Value]) -> None:
    """The noise is secret: a correct mechanism is found out once in twenty times, hence the margin of 3 %."""
    path = Runs(tmp_path, {
        **KEYS, **keys, "model": "linear", "num-clients": 20, "participation": 0.5, "rounds": 4, "local-epochs": 1,
    })("run")  # fmt: skip
    found = attack(path)
    assert len(found.releases.enrolled) >= 10_000
    assert 0.8 * found.claimed < found.of_run < 1.03 * found.claimed
    assert 0.8 * found.releases.claimed < found.epsilon < 1.03 * found.releases.claimed
    assert (path / "audit-canary.md").read_text() == found.table()
