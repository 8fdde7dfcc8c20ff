"""The noise of a private fit: how often sums are released, with which multiplier, and what one row can change."""

from __future__ import annotations

from math import sqrt

from florilegium.clients.hyper.statistics import GLMHyper
from florilegium.models.statistics.glm import FAMILIES, Family, bounded_poisson
from florilegium.privacy.accounting import multiplier


def releases_of(hyper: GLMHyper, name: str) -> int:
    """Return the number of releases of a fit of the family ``name``: products once, or two sums for each step."""
    return 1 if name == "linear" else 2 * hyper.steps


def each_of(hyper: GLMHyper, name: str) -> float:
    """Return the noise multiplier of each release, with which all together cost ε."""
    return sqrt(releases_of(hyper, name)) * multiplier("gaussian", hyper.epsilon, hyper.delta)


def private_family(hyper: GLMHyper, name: str) -> Family:
    """Return the family of a private fit, whose residuals and slopes are bounded."""
    return bounded_poisson(hyper.target_bound) if name == "poisson" else FAMILIES[name]


def scales_of(hyper: GLMHyper, family: Family, name: str) -> tuple[float, float]:
    """Return the standard deviations of the noise on gradient and Hessian: ρR and νR² times the multiplier."""
    each, R = each_of(hyper, name), hyper.clip
    return each * family.residual * R, each * family.slope_norm * R**2
