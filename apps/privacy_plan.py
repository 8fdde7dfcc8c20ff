"""A budget, planned before any run: the noise that it asks for, and what is left of the signal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from florilegium.common.errors import ConfigurationError
from florilegium.privacy.accounting import Release, repeated_multiplier, total


@dataclass(frozen=True)
class Plan:
    """Sums of clipped contributions, released with Gaussian noise.

    Attributes:
        units: n, those who may take part: clients, or one client's examples.
        cohort: m ≤ n, how many take part in a release, in expectation where ``poisson``.
        releases: T, rounds; or one client's steps.
        delta: δ.
        noise_multiplier: z, the noise's deviation ÷ the clip norm C.
        poisson: whether each unit takes part with probability m/n each time anew, which amplifies privacy; otherwise
            nothing is amplified.
        epsilon: ε that all releases cost a unit that may take part in all of them.
    """

    units: int
    cohort: int
    releases: int
    delta: float
    noise_multiplier: float
    poisson: bool
    epsilon: float

    def signal_to_noise(self, parameters: int) -> float:
        """Return m/(z·√d), the mean's norm ÷ the noise's, where all contributions are of norm C and agree.

        Args:
            parameters: d, how many numbers are summed.
        """
        return self.cohort / (self.noise_multiplier * math.sqrt(parameters))

    def table(self, clip_norm: float, parameters: int) -> str:
        """Return the plan as a Markdown table; without the signal where ``parameters`` is 0."""
        z, m = self.noise_multiplier, self.cohort
        rows = [
            ("taking part in a release", f"{m} of {self.units}, {'Poisson' if self.poisson else 'fixed, no'} sampling"
             f"{f', rate {m / self.units:.4g}' if self.poisson else ' counted'}"),
            ("releases", f"{self.releases}"),
            ("ε at δ", f"{self.epsilon:.3g} at {self.delta:g}"),
            ("noise multiplier z", f"{z:.4g}"),
            ("deviation of the noise on the sum, z·C", f"{z * clip_norm:.4g}"),
            ("and on the mean, z·C/m", f"{z * clip_norm / m:.4g}"),
        ]  # fmt: skip
        if parameters:
            rows += [
                (f"norm of that for {parameters:,} parameters", f"{z * clip_norm * math.sqrt(parameters) / m:.4g}"),
                ("signal ÷ noise, at most m/(z·√d)", f"{self.signal_to_noise(parameters):.3g}"),
            ]
        return "\n".join(["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])


def make_plan(
    units: int,
    cohort: int,
    releases: int,
    delta: float,
    *,
    epsilon: float = 0.0,
    noise_multiplier: float = 0.0,
    poisson: bool = True,
) -> Plan:
    """Return the plan for a budget ``epsilon``, or for the noise, of which one must be given.

    Raises:
        ConfigurationError: if the numbers do not go together.
    """
    if bool(epsilon) == bool(noise_multiplier):
        raise ConfigurationError("give either epsilon, for the noise it needs, or noise-multiplier, for what it costs")
    for name, value in (("epsilon", epsilon), ("noise-multiplier", noise_multiplier)):
        if value < 0 or not math.isfinite(value):
            raise ConfigurationError(f"{name}: {value:g} is not a positive number")
    if not 0 < delta < 1:
        raise ConfigurationError(f"delta: {delta:g} is not between 0 and 1; usual is less than 1/{units}")
    if releases < 1:
        raise ConfigurationError(f"rounds: {releases} are too few; at least 1")
    if not 1 <= cohort <= units:
        raise ConfigurationError(f"cohort: {cohort} cannot be drawn of {units} clients; 1 to {units} can")
    rate = cohort / units if poisson else 1.0
    z = noise_multiplier or repeated_multiplier(epsilon, delta, releases, rate)
    return Plan(units, cohort, releases, delta, z, poisson, total([Release("gaussian", z, releases, rate)], delta))
