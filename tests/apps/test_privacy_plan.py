"""The planner of budgets, against Opacus' accountant and against noise that is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from opacus.accountants import PRVAccountant
from typer.testing import CliRunner

from florilegium.apps.cli import cli
from florilegium.apps.privacy_plan import make_plan
from florilegium.common.errors import ConfigurationError
from florilegium.privacy.delta import delta_warning


@pytest.mark.parametrize(("cohort", "releases", "epsilon"), [(100, 200, 8.0), (10, 1000, 1.0)])
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
    fixed = make_plan(1000, 10, 50, 1e-5, epsilon=2.0, poisson=False)
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
