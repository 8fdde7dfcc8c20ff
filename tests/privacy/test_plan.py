"""The planner of budgets, against Opacus' accountant, noise that is drawn, and what runs plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opacus.accountants import PRVAccountant
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.privacy.correlated import noise
from florilegium.privacy.delta import delta_warning
from florilegium.privacy.plan import Devices, make_plan
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.folder.run_folder import RunFolder
from florilegium.strategies.layers.client_privacy import ClientPrivacy
from tests.support import settings


@pytest.mark.parametrize(
    ("cohort", "releases", "epsilon"), [(100, 200, 8.0), pytest.param(10, 1000, 1.0, marks=pytest.mark.long)]
)
def test_opacus_agrees_about_the_cost(cohort: int, releases: int, epsilon: float) -> None:
    plan = make_plan(1000, cohort, releases, 1e-5, epsilon=epsilon)
    accountant = PRVAccountant()
    accountant.history = [(plan.noise_multiplier, cohort / 1000, releases)]
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, abs=0.02)  # its own bound on its error is 0.01
    assert plan.epsilon == pytest.approx(epsilon, rel=2e-3)
    assert plan.epsilon <= epsilon
    again = make_plan(1000, cohort, releases, 1e-5, noise_multiplier=plan.noise_multiplier)
    assert again.epsilon == plan.epsilon


def test_without_poisson_sampling_nothing_is_amplified() -> None:
    fixed = make_plan(1000, 10, 50, 1e-5, epsilon=2.0, sampling="fixed")
    everybody = make_plan(1000, 1000, 50, 1e-5, epsilon=2.0)
    assert fixed.noise_multiplier == everybody.noise_multiplier
    assert fixed.noise_multiplier > 10 * make_plan(1000, 10, 50, 1e-5, epsilon=2.0).noise_multiplier


def test_signal_to_noise_of_drawn_noise() -> None:
    plan, d, clip = make_plan(500, 50, 10, 1e-5, noise_multiplier=1.5), 20_000, 0.7
    contributions = np.zeros((50, d))
    contributions[:, 0] = clip
    noise = np.random.default_rng(1).normal(scale=1.5 * clip, size=d)
    found = np.linalg.norm(contributions.mean(axis=0)) / np.linalg.norm(noise / 50)
    assert plan.signal_to_noise(d) == pytest.approx(found, rel=0.02)
    table = plan.table(clip, d)
    assert "| standard deviation of the noise on the sum, z·C | 1.05 |" in table
    assert "20,000 parameters" in table
    assert "parameters" not in plan.table(clip, 0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"epsilon": 1.0, "mechanism": "tree"}, "mechanism: 'tree' needs sampling = 'slots'"),
        ({"epsilon": 1.0, "devices": Devices()}, "noise-at: 'device' needs sampling = 'fixed'"),
        ({"epsilon": 1.0, "sampling": "fixed", "devices": Devices(11)}, "failing: 11 of a cohort of 10"),
        ({}, "give either epsilon"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "give either epsilon"),
        ({"epsilon": -1.0}, "epsilon: -1 is not a positive number"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta: 1 is not between 0 and 0.5"),
        ({"epsilon": 1.0, "delta": 0.6}, "delta: 0.6 is not between 0 and 0.5"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta: 0 is not between 0 and 0.5"),
        ({"epsilon": 1.0, "delta": float("nan")}, "delta: nan is not between 0 and 0.5"),
        ({"epsilon": float("inf")}, "epsilon: inf is not a positive number"),
        ({"epsilon": float("nan")}, "epsilon: nan is not a positive number"),
        ({"noise_multiplier": float("inf")}, "noise-multiplier: inf is not a positive number"),
        ({"epsilon": 1.0, "cohort": 101}, "cohort: 101 cannot be drawn of 100 clients"),
        ({"epsilon": 1.0, "releases": 0}, "rounds: 0 are too few"),
    ],
)
def test_what_is_refused(keys, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_plan(**{"units": 100, "cohort": 10, "releases": 5, "delta": 1e-5} | keys)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--clip-norm", "0", "clip-norm: 0 is not a positive number"),
        ("--clip-norm", "-1", "clip-norm: -1 is not a positive number"),
        ("--clip-norm", "inf", "clip-norm: inf is not a positive number"),
        ("--clip-norm", "nan", "clip-norm: nan is not a positive number"),
        ("--parameters", "-5", "parameters: -5 is below 0"),
    ],
)
def test_what_the_command_refuses(option: str, value: str, message: str) -> None:
    words = ["privacy", "--epsilon", "8", "--clients", "100", "--cohort", "10", "--rounds", "5", option, value]
    with pytest.raises(ConfigurationError, match=message):
        CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize(
    ("units", "told"), [(99_999, ""), (100_000, "d: δ = 1e-05 is not below 1/100000, one over the")]
)
def test_a_delta_of_one_over_the_number_of_units_is_told(units: int, told: str) -> None:
    assert delta_warning("d", 1e-5, units, "clients").startswith(told)
    assert bool(delta_warning("d", 1e-5, units, "clients")) == bool(told)


def _run(folder: Path, **keys: Value) -> ClientPrivacy:
    """Return the protection of a run."""
    return ClientPrivacy(
        settings(method="fedavg", weighting="uniform", **{"privacy.unit": "client", **keys}), RunFolder(folder, {}, "")
    )


@pytest.mark.parametrize(
    ("sampling", "mechanism"), [("fixed", "gaussian"), ("slots", "gaussian"), ("slots", "tree"), ("slots", "matrix")]
)
def test_runs_plan_the_same_noise(tmp_path: Path, sampling: Any, mechanism: Any) -> None:
    plan = make_plan(100, 25, 13, 1e-5, epsilon=6.0, sampling=sampling, mechanism=mechanism)
    run = _run(tmp_path, **{"privacy.epsilon": 6.0, "privacy.sampling": sampling, "privacy.mechanism": mechanism})
    run.plan([25] * 13, 100)
    assert plan.noise_multiplier == run.report()["privacy"]["noise_multiplier"]
    assert plan.epsilon == pytest.approx(6.0, rel=2e-3)


def test_noise_that_is_correlated_hurts_less_in_the_model() -> None:
    """Against what each mechanism draws: the last running total over the slots' rounds, at the same ε."""
    found = {}
    for mechanism in ("gaussian", "tree", "matrix"):
        plan = make_plan(40, 10, 16, 1e-5, epsilon=4.0, sampling="slots", mechanism=mechanism)
        drawn = sum(
            noise(plan.mechanism, 3, number, plan.noise_multiplier, {"a": (40_000,)})["a"] for number in range(1, 17)
        )
        table = plan.table(1.0, 0)
        assert "| 10 of 40, every 4-th release |" in table
        found[mechanism] = float(table.partition("noise on the sum of all means | ")[2].split()[0])
        assert found[mechanism] == pytest.approx(drawn.std() / 10, rel=0.02)
    assert found["matrix"] < found["gaussian"]


def test_noise_that_devices_add_is_accounted_as_in_a_run(tmp_path: Path) -> None:
    """Plain shares z·C/√m: 5 of 25 failing leave 80 % of the variance. Discrete ones: as the run's own account has."""
    plan = make_plan(100, 25, 10, 1e-5, noise_multiplier=5.0, sampling="fixed", devices=Devices(5))
    assert plan.left == make_plan(100, 25, 10, 1e-5, noise_multiplier=5 * 0.8**0.5, sampling="fixed").epsilon
    assert "| each device adds, z·C/√25 | 2 |" in plan.table(2.0, 0)
    secure = make_plan(100, 25, 10, 1e-5, epsilon=8.0, sampling="fixed", devices=Devices(2, True, 0.1, 0.2))
    keys: dict[str, Value] = {"privacy.epsilon": 8.0, "privacy.sampling": "fixed", "privacy.noise-at": "device"}
    run = _run(tmp_path, **{"secure-aggregation": True, **keys})
    run.plan([25] * 10, 100)
    assert secure.noise_multiplier == run.report()["privacy"]["noise_multiplier"]
    assert f"z·C/√{25 - 3 - 5} |" in secure.table(1.0, 0)
    assert run.request(25)["noise"] == pytest.approx(secure.noise_multiplier / 17**0.5)
    metrics = {"weight": np.ones(23)}
    for number in range(10):
        run.protect(Outcome([str(i) for i in range(23)], {}, metrics), 25, 100, {}, "train", number, [])
    assert secure.left == pytest.approx(run.ledger.epsilon())
    assert secure.left < secure.epsilon
