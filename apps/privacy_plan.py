"""Plan a privacy budget before any run: the noise it needs and the signal-to-noise ratio that remains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from florilegium.common.errors import ConfigurationError
from florilegium.privacy.accounting import Release, repeated_multiplier, total
from florilegium.privacy.delta import MOST_DELTA


@dataclass(frozen=True)
class Plan:
    """The parameters and cost of releasing sums of clipped contributions with Gaussian noise.

    Attributes:
        units: n, number of units that may take part: clients, or the examples of one client.
        cohort: m ≤ n, number of units in a release; the expected number if ``poisson``.
        releases: T, number of rounds, or of training steps of one client.
        delta: δ of the guarantee.
        noise_multiplier: z, the standard deviation of the noise ÷ the clip norm C.
        poisson: whether each unit takes part in each release independently with probability m/n, which amplifies
            privacy. With cohorts of a fixed size no amplification is counted.
        epsilon: ε of all releases together, for a unit that may take part in every one.
    """

    units: int
    cohort: int
    releases: int
    delta: float
    noise_multiplier: float
    poisson: bool
    epsilon: float

    def signal_to_noise(self, parameters: int) -> float:
        """Return m/(z·√d), the signal-to-noise ratio of the mean if all contributions are equal and of norm C.

        Args:
            parameters: d, the length of the summed vectors.
        """
        return self.cohort / (self.noise_multiplier * math.sqrt(parameters))

    def table(self, clip_norm: float, parameters: int) -> str:
        """Return the plan as a Markdown table; without the signal-to-noise ratio if ``parameters`` is 0."""
        z, m = self.noise_multiplier, self.cohort
        rows = [
            ("contributions per release", f"{m} of {self.units}, {'Poisson' if self.poisson else 'fixed, no'} sampling"
             f"{f', rate {m / self.units:.4g}' if self.poisson else ' counted'}"),
            ("releases", f"{self.releases}"),
            ("ε at δ", f"{self.epsilon:.3g} at {self.delta:g}"),
            ("noise multiplier z", f"{z:.4g}"),
            ("standard deviation of the noise on the sum, z·C", f"{z * clip_norm:.4g}"),
            ("standard deviation of the noise on the mean, z·C/m", f"{z * clip_norm / m:.4g}"),
        ]  # fmt: skip
        if parameters:
            rows += [
                (
                    f"norm of the noise on the mean, {parameters:,} parameters",
                    f"{z * clip_norm * math.sqrt(parameters) / m:.4g}",
                ),
                ("signal ÷ noise, at most m/(z·√d)", f"{self.signal_to_noise(parameters):.3g}"),
            ]
        return "\n".join(["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])


def check_shown(clip_norm: float, parameters: int) -> None:
    """Raise :class:`ConfigurationError` if a plan cannot be shown for this clip norm and number of parameters."""
    if not 0 < clip_norm < math.inf:
        raise ConfigurationError(f"clip-norm: {clip_norm:g} is not a positive number, to which noise is proportional")
    if parameters < 0:
        raise ConfigurationError(f"parameters: {parameters} is below 0; leave it out if signal and noise do not matter")


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
    """Return the plan for a budget ``epsilon`` or for a ``noise_multiplier``; exactly one must be given.

    Raises:
        ConfigurationError: if a number is out of range, or both or neither of the two are given.
    """
    if bool(epsilon) == bool(noise_multiplier):
        raise ConfigurationError("give either epsilon, for the noise it needs, or noise-multiplier, for what it costs")
    for name, value in (("epsilon", epsilon), ("noise-multiplier", noise_multiplier)):
        if value < 0 or not math.isfinite(value):
            raise ConfigurationError(f"{name}: {value:g} is not a positive number")
    if not 0 < delta <= MOST_DELTA:
        raise ConfigurationError(f"delta: {delta:g} is not between 0 and {MOST_DELTA}; usually less than 1/{units}")
    if releases < 1:
        raise ConfigurationError(f"rounds: {releases} are too few; at least 1")
    if not 1 <= cohort <= units:
        raise ConfigurationError(f"cohort: {cohort} cannot be drawn of {units} clients; 1 to {units} can")
    rate = cohort / units if poisson else 1.0
    z = noise_multiplier or repeated_multiplier(epsilon, delta, releases, rate)
    return Plan(units, cohort, releases, delta, z, poisson, total([Release("gaussian", z, releases, rate)], delta))
