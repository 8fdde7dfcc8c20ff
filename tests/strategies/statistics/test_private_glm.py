"""Private fits: what one row can change, the budget, and intervals that cover as often as stated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from numpy.typing import NDArray

from florilegium.clients.hyper.statistics import GLMHyper
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.statistics.glm import FAMILIES, Rows, bounded_poisson, sums
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.privacy.accounting import multiplier
from florilegium.privacy.clipping import clip_rows
from florilegium.strategies.statistics.private_glm import PrivateGLM, linear, newton
from tests.runs import Runs
from tests.support import CACHE

Array = NDArray[np.float64]
TRUE = np.array([-0.3, 0.8, -0.5, 0.0])
CLIP, STEPS, ROWS = 4.0, 6, 4000


def _design(rng: np.random.Generator) -> Array:
    return clip_rows(np.column_stack([np.ones(ROWS), rng.normal(size=(ROWS, 3))]), CLIP)


@pytest.mark.parametrize(("family", "m"), [("logistic", 1), ("multinomial", 3), ("poisson", 1)])
def test_one_row_changes_sums_by_no_more_than_the_bounds(family: str, m: int) -> None:
    rng, one = np.random.default_rng(1), bounded_poisson(7.0) if family == "poisson" else FAMILIES[family]
    largest = [0.0, 0.0]
    for _ in range(500):
        z = clip_rows(rng.normal(size=(1, 3)) * 100, CLIP)
        y = np.eye(m + 1)[rng.integers(m + 1)][None, 1:] * (7.0 if family == "poisson" else 1.0)
        θ = rng.normal(size=(m, 3)) * rng.choice([0.01, 1, 100])
        found = sums(one, Rows(z, y, np.ones(1), np.zeros(1)), θ)
        largest = [
            max(a, float(np.linalg.norm(found[n]))) for a, n in zip(largest, ("gradient", "hessian"), strict=True)
        ]
    bounds = (one.residual * CLIP, one.slope_norm * CLIP**2)
    assert 0.7 * bounds[0] < largest[0] <= bounds[0] * (1 + 1e-9)
    assert 0.7 * bounds[1] < largest[1] <= bounds[1] * (1 + 1e-9)


def _logistic(epsilon: float) -> Iterator[tuple[Array, Array]]:
    """Yield estimates and standard errors of repeated private logistic fits."""
    family = FAMILIES["logistic"]
    each = np.sqrt(2 * STEPS) * multiplier("gaussian", epsilon, 1e-6)
    scales = each * family.residual * CLIP, each * family.slope_norm * CLIP**2
    for seed in range(200):
        rng = np.random.default_rng(seed)
        z = _design(rng)
        y = (rng.random(ROWS) < 1 / (1 + np.exp(-z @ TRUE))).astype(float)[:, None]
        θ, covariance = np.zeros((1, 4)), np.eye(4)
        for _ in range(STEPS):
            found = sums(family, Rows(z, y, np.ones(ROWS), np.zeros(ROWS)), θ)
            step = newton(found["gradient"], found["hessian"], θ, scales, rng)
            θ, covariance = step["theta"], step["covariance"]
        yield θ[0], np.sqrt(np.diag(covariance))


def _linear(epsilon: float) -> Iterator[tuple[Array, Array]]:
    """Yield estimates and standard errors of repeated private linear fits."""
    bound = 10.0
    scale = multiplier("gaussian", epsilon, 1e-6) * CLIP**2
    for seed in range(200):
        rng = np.random.default_rng(seed)
        z = np.column_stack([np.ones(ROWS), np.clip(rng.normal(size=(ROWS, 3)), -2, 2)])
        y = z @ TRUE + rng.normal(size=ROWS)
        joint = clip_rows(np.column_stack([z, np.clip(y / bound, -1, 1)]), CLIP)
        found = linear(joint.T @ joint, scale, bound, rng)
        yield found["theta"][0], np.sqrt(np.diag(found["covariance"]))


def test_the_bounded_loss_goes_with_its_mean_and_slope() -> None:
    """Below the bound it is the Poisson loss; everywhere its derivatives are μ − y and the slope."""
    one, η, y = bounded_poisson(7.0), np.linspace(-3, 5, 4001)[:, None], np.full((4001, 1), 2.0)
    loss = one.loss(y, η)
    np.testing.assert_allclose(np.gradient(loss, η[:, 0])[1:-1], (one.mean(η) - y)[1:-1, 0], atol=1e-2)
    low = η[:, 0] < np.log(7)
    np.testing.assert_allclose(loss[low], FAMILIES["poisson"].loss(y, η)[low])
    np.testing.assert_allclose(one.slope(one.mean(η))[:, 0, 0], np.where(low, np.exp(η[:, 0]), 0), rtol=1e-12)


def _poisson(epsilon: float) -> Iterator[tuple[Array, Array]]:
    """Yield estimates and standard errors of repeated private Poisson fits; rows count five times."""
    hyper = GLMHyper(privacy_unit="example", epsilon=epsilon, clip=CLIP, steps=STEPS, target_bound=12.0)
    private, family = PrivateGLM(hyper, "poisson"), bounded_poisson(12.0)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        z = np.concatenate([_design(rng) for _ in range(5)])
        y = np.minimum(rng.poisson(np.exp(z @ TRUE)), 12.0)[:, None]
        rows = Rows(z, y, np.ones(len(z)), np.zeros(len(z)))
        θ, step = np.zeros((1, 4)), {}
        for _ in range(STEPS):
            step = private.step(lambda phase, shapes, at=θ: (sums(family, rows, at), 3), θ, rng)  # noqa: B023
            θ = step["theta"]
        yield θ[0], np.sqrt(np.diag(step["covariance"]))


@pytest.mark.parametrize("fits", [_logistic, _linear, _poisson])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_cover(fits, epsilon: float) -> None:
    """95 % intervals of 200 repetitions hold each true coefficient in 90 to 100 % of them, 93 to 99 % on the whole."""
    covered = []
    for estimate, error in fits(epsilon):
        covered.append(np.abs(estimate - TRUE) <= 1.96 * error)
    shares = np.mean(covered, axis=0)
    assert (shares >= 0.90).all()
    assert 0.93 <= shares.mean() <= 0.99


@pytest.mark.parametrize(("family", "releases"), [("logistic", 12), ("linear", 1)])
def test_the_budget_is_spent_and_no_more(family: str, releases: int) -> None:
    found = PrivateGLM(GLMHyper(privacy_unit="example", epsilon=2.0, target_bound=1.0), family).guarantee()
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(found["noise_multiplier"]), releases))
    assert found["releases"] == releases
    assert found["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert accountant.get_epsilon(1e-6) == pytest.approx(2.0, rel=2e-2)


class TestRuns:
    KEYS: dict[str, Value] = {  # noqa: RUF012
        "method": "glm", "partitioner": "natural", "num-clients": 0, "rounds": 10, "evaluate-every": 0,
        "glm.privacy-unit": "example",
    }  # fmt: skip

    @staticmethod
    def _data(task: str) -> str:
        rng = np.random.default_rng(1)
        x = rng.normal(size=(2000, 3)).astype(np.float32)
        η = x @ TRUE[1:] + TRUE[0]
        y = (η + rng.normal(size=2000)).astype(np.float32) if task == "regression" else (η > rng.logistic(size=2000))
        y = np.minimum(rng.poisson(np.exp(η)), 8).astype(np.float32) if task == "counts" else y
        owners = np.array(["a", "b", "c"])[rng.integers(3, size=2000)]
        return array_dataset((x, y.astype(int) if task == "classification" else y, owners), cache_dir=str(CACHE))

    @pytest.mark.parametrize("task", ["classification", "regression"])
    def test_a_run_tells_its_guarantee_and_nothing_exact(self, task: str, tmp_path: Path) -> None:
        keys = {**self.KEYS, "dataset": self._data(task), "glm.target-bound": 8.0, "glm.epsilon": 8.0}
        path = Runs(tmp_path, keys)("private")
        summary = json.loads((path / "summary.json").read_text())
        fit = summary["glm"]
        assert summary["privacy"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
        assert summary["rounds"] == (6 if task == "classification" else 1)
        assert not {"log_likelihood", "aic", "rows", "dispersion"} & fit.keys()
        found = np.array([line["coefficient"] for line in fit["coefficients"]])
        errors = np.array([line["standard_error"] for line in fit["coefficients"]])
        assert (np.abs(found - TRUE) < 4 * errors).all()
        assert (errors > 1 / np.sqrt(2000)).all()
        other = Runs(tmp_path, keys)("other", seed=9)
        assert json.loads((other / "summary.json").read_text())["glm"]["coefficients"] != fit["coefficients"]

    def test_a_linear_model_needs_a_bound_of_its_targets(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"glm\.target-bound: a private linear model needs a bound"):
            Runs(tmp_path, {**self.KEYS, "dataset": self._data("regression")})("no")

    @pytest.mark.parametrize("task", ["classification", "regression", "counts"])
    def test_clients_noise_covers_and_is_wider(self, task: str, tmp_path: Path) -> None:
        """With noise of each client, whose sum has √3 times the deviation, in the same run."""
        keys = {**self.KEYS, "dataset": self._data(task), "task": task, "glm.target-bound": 8.0, "glm.epsilon": 50.0}
        fits = {}
        for noise in ("server", "client"):
            path = Runs(tmp_path, {**keys, "glm.noise": noise})(noise)
            fits[noise] = json.loads((path / "summary.json").read_text())["glm"]["coefficients"]
            found = np.array([line["coefficient"] for line in fits[noise]])
            errors = np.array([line["standard_error"] for line in fits[noise]])
            assert (np.abs(found - TRUE) < 4 * errors).all()
        server, client = (np.array([line["standard_error"] for line in fits[noise]]) for noise in ("server", "client"))
        assert (client > server).all()
        assert (client < 2.5 * server).all()

    def test_counts_need_a_bound(self) -> None:
        with pytest.raises(ConfigurationError, match=r"target-bound: a private poisson model needs a bound"):
            PrivateGLM(GLMHyper(privacy_unit="example"), "poisson")
