"""Plan a privacy budget before any run: the noise it needs and the signal-to-noise ratio that remains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from florilegium.common.errors import ConfigurationError
from florilegium.common.pages import table_of
from florilegium.privacy.accounting import Release, repeated_multiplier, total
from florilegium.privacy.correlated import MECHANISMS, Kind, squared_sensitivity
from florilegium.privacy.correlated import Mechanism as Correlated
from florilegium.privacy.delta import MOST_DELTA
from florilegium.privacy.noise import colluding, least_honest

Sampling = Literal["poisson", "fixed", "slots"]


@dataclass(frozen=True)
class Devices:
    """Noise that devices add, each its share.

    Attributes:
        failing: f, number of clients of every cohort whose noise does not arrive.
        secure: whether sums are secure; then the noise is discrete, and some devices may collude or vanish.
        colluding, vanishing: the shares of a cohort that may (keys ``secure-colluding``, ``secure-vanishing``).
    """

    failing: int = 0
    secure: bool = False
    colluding: float = 0.0
    vanishing: float = 0.0

    @property
    def kind(self) -> Literal["gaussian", "discrete"]:
        """Kind of the noise."""
        return "discrete" if self.secure else "gaussian"

    def adding(self, cohort: int) -> int:
        """Return by how many clients the variance of the noise is divided: all, or the fewest that may be honest."""
        return least_honest(cohort, self.colluding, self.vanishing) if self.secure else cohort

    def arriving(self, cohort: int) -> float:
        """Return the share of the planned variance that arrives and that nobody knows, if f clients fail."""
        knowing = colluding(cohort, self.colluding) if self.secure else 0
        return max(0, cohort - self.failing - knowing) / self.adding(cohort)


@dataclass(frozen=True)
class Plan:
    """The parameters and cost of releasing sums of clipped contributions with Gaussian noise.

    Attributes:
        units: n, number of units that may take part: clients, or the examples of one client.
        cohort: m ≤ n, number of units in a release; the expected number if ``sampling`` is not "fixed".
        releases: T, number of rounds, or of training steps of one client.
        delta: δ of the guarantee.
        noise_multiplier: z, the standard deviation of the noise ÷ the clip norm C.
        sampling: "poisson": each unit takes part in each release independently with probability m/n, which amplifies
            privacy; "fixed": cohorts of a fixed size, for which no amplification is counted; "slots": each unit takes
            part in every E-th release, E = n/m.
        mechanism: how the noise of different releases is related.
        epsilon: ε of all releases together, for a unit that may take part in every one; with slots, in those of its
            slot.
        devices: noise by devices; None if the server adds it.
        left: ε if ``devices.failing`` clients fail in every round; infinite if no noise is left.
    """

    units: int
    cohort: int
    releases: int
    delta: float
    noise_multiplier: float
    sampling: Sampling
    mechanism: Correlated
    epsilon: float
    devices: Devices | None
    left: float

    def signal_to_noise(self, parameters: int) -> float:
        """Return m/(z·√d), the signal-to-noise ratio of the mean if all contributions are equal and of norm C.

        Args:
            parameters: d, the length of the summed vectors.
        """
        return self.cohort / (self.noise_multiplier * math.sqrt(parameters))

    def table(self, clip_norm: float, parameters: int) -> str:
        """Return the plan as a Markdown table; without the signal-to-noise ratio if ``parameters`` is 0."""
        z, m, noise = self.noise_multiplier, self.cohort, self.noise_multiplier * clip_norm
        accumulated = noise / m * math.sqrt(self.mechanism.accumulated(self.releases))
        rows = [
            ("contributions per release", f"{m} of {self.units}, {self._drawn()}"),
            ("releases", f"{self.releases}"),
            ("ε at δ", f"{self.epsilon:.3g} at {self.delta:g}"),
            ("noise multiplier z", f"{z:.4g}"),
            ("standard deviation of the noise on the sum, z·C", f"{noise:.4g}"),
            ("standard deviation of the noise on the mean, z·C/m", f"{noise / m:.4g}"),
            ("standard deviation of the noise on the sum of all means", f"{accumulated:.4g}"),
        ]
        if self.devices:
            adding = self.devices.adding(m)
            rows.append((f"each device adds, z·C/√{adding}", f"{noise / math.sqrt(adding):.4g}"))
            if self.devices.failing:
                rows.append((f"ε if {self.devices.failing} of {m} fail in every round", f"{self.left:.3g}"))
        if parameters:
            rows += [
                (
                    f"norm of the noise on the mean, {parameters:,} parameters",
                    f"{noise * math.sqrt(parameters) / m:.4g}",
                ),
                ("signal ÷ noise, at most m/(z·√d)", f"{self.signal_to_noise(parameters):.3g}"),
            ]
        return table_of(("", ""), rows)

    def _drawn(self) -> str:
        """Return in words who takes part."""
        if self.sampling == "slots":
            return f"every {self.mechanism.period}-th release"
        if self.sampling == "fixed":
            return "fixed, no sampling counted"
        return f"Poisson sampling, rate {self.cohort / self.units:.4g}"


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
    sampling: Sampling = "poisson",
    mechanism: Kind = "gaussian",
    devices: Devices | None = None,
) -> Plan:
    """Return the plan for a budget ``epsilon`` or for a ``noise_multiplier``; exactly one must be given.

    The budget is planned as runs plan it, for clients that all reply.

    Raises:
        ConfigurationError: if a number is out of range, both or neither of the two are given, or the other arguments do
            not go together.
    """
    _check_numbers(units, cohort, releases, delta, epsilon, noise_multiplier)
    _check_kinds(cohort, sampling, mechanism, devices)
    period = max(1, round(units / cohort)) if sampling == "slots" else 1
    made = MECHANISMS[mechanism](period, releases)
    # All releases of a mechanism with slots are one, with multiplier z/√S; the others are T releases with z each.
    size = math.sqrt(squared_sensitivity(made, releases)) if sampling == "slots" else 1.0
    times = 1 if sampling == "slots" else releases
    rate = cohort / units if sampling == "poisson" else 1.0
    kind = devices.kind if devices else "gaussian"
    z = noise_multiplier or size * repeated_multiplier(epsilon, delta, times, rate, kind)

    def cost(share: float) -> float:
        """Return ε where this share of the noise's variance arrives."""
        return total([Release(kind, z * math.sqrt(share) / size, times, rate)], delta) if share else math.inf

    left = cost(devices.arriving(cohort)) if devices else cost(1.0)
    return Plan(units, cohort, releases, delta, z, sampling, made, cost(1.0), devices, left)


def _check_numbers(
    units: int, cohort: int, releases: int, delta: float, epsilon: float, noise_multiplier: float
) -> None:
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


def _check_kinds(cohort: int, sampling: Sampling, mechanism: Kind, devices: Devices | None) -> None:
    if mechanism != "gaussian" and sampling != "slots":
        raise ConfigurationError(f"mechanism: '{mechanism}' needs sampling = 'slots' (found: '{sampling}')")
    if devices is None:
        return
    if sampling != "fixed":
        raise ConfigurationError(f"noise-at: 'device' needs sampling = 'fixed' (found: '{sampling}')")
    if not 0 <= devices.failing <= cohort:
        raise ConfigurationError(f"failing: {devices.failing} of a cohort of {cohort} cannot fail")
    if devices.adding(cohort) < 1:
        raise ConfigurationError(f"cohort: of {cohort} clients all may collude or vanish, and none adds noise")
