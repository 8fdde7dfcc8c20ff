"""Client-level differential privacy of a run: sampling of clients, noise on sums, and the privacy cost.

The guarantee protects the presence of one client. In every sum of updates that the server uses, each client's update is
clipped to norm C, and the sum gets Gaussian noise of standard deviation z·C (McMahan et al. 2018). It is divided by the
*expected* number of contributions, since the true number is secret too. The server is trusted: it sees sums of each
node's clients, and the metrics that clients report. If devices add the noise, each its share, the server need not be
trusted with the sum; its noise then depends on the number of clients that have replied.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.wire import CLIP_NORM, NOISE, WITHIN_NOISE
from florilegium.clients.layers.noise import WITHIN
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.models.parameters import Arrays
from florilegium.privacy.accounting import Release, calibrate, repeated_multiplier
from florilegium.privacy.correlated import squared_sensitivity
from florilegium.privacy.delta import delta_warning
from florilegium.privacy.ledger import Ledger
from florilegium.privacy.noise import colluding, draw, least_honest, secret_generator
from florilegium.privacy.sampling import poisson_sample
from florilegium.privacy.secure_sum.ring import PRECISION
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.folder.run_folder import RunFolder
from florilegium.strategies.layers.slots import Slots
from florilegium.strategies.settings.server import ServerSettings

log = logging.getLogger("flwr")

LEDGER = "privacy.json"
CLIP_RATE = 0.2
"""η_C, learning rate of the adaptive clipping bound; the default of Andrew et al. (2021, section 3)."""
COUNT_NOISE = 1 / 20
"""σ_b ÷ m, for the noise on the count of updates within the bound; the default of Andrew et al. (2021)."""


class ClientPrivacy:
    """Noise, Poisson sampling and privacy account of one run.

    Args:
        settings: the run's configuration, with ``privacy.unit = "client"``.
        run: the run's folder, which keeps the account.

    Attributes:
        rng: secret generator of noise and cohorts; with a known seed, both could be reproduced.
        clip_norm: the present clipping bound C.
        slots: the clients' slots with ``privacy.sampling = "slots"``, after :meth:`plan`; else None.
    """

    def __init__(self, settings: ServerSettings, run: RunFolder) -> None:
        self._settings = settings
        self._run = run
        self._z = settings.privacy.noise_multiplier
        self.clip_norm = settings.privacy.clip_norm
        self.slots: Slots | None = None
        self._ledger: Ledger | None = None
        self.rng: np.random.Generator = secret_generator()

    @property
    def ledger(self) -> Ledger:
        """The record of all releases, including those before the run was resumed."""
        if self._ledger is None:
            self._ledger = Ledger(
                self._run.path / LEDGER, self._settings.privacy.delta, discrete=self._kind == "discrete"
            )
        return self._ledger

    def plan(self, cohorts: Sequence[int], of: int) -> None:
        """Set up the clients' slots, if they have any; compute the noise multiplier from the budget, if one is given.

        Args:
            cohorts: expected number of clients in each of the run's rounds.
            of: number of clients that are sampled from.

        Raises:
            ConfigurationError: if the bound is adaptive, but cohorts are too small for the noise on the count.
        """
        p = self._settings.privacy
        if warning := delta_warning("privacy.delta", p.delta, of, "clients"):
            log.warning("%s", warning)
        if p.sampling == "slots" and cohorts:
            self.slots = Slots(p.mechanism, max(1, round(of / cohorts[0])), len(cohorts), self._settings.seed)
            if p.epsilon:
                size = math.sqrt(squared_sensitivity(self.slots.mechanism, len(cohorts)))
                self._z = size * repeated_multiplier(p.epsilon, p.delta, 1)
        elif p.epsilon and cohorts:
            counted = [self._counted(cohort / of) for cohort in cohorts]
            times = {rate: counted.count(rate) for rate in counted}
            self._z = 1 / calibrate(
                lambda scale: [Release(self._kind, 1 / scale, n, rate) for rate, n in times.items()], p.epsilon, p.delta
            )
        if p.clip_quantile and any(2 * COUNT_NOISE * cohort <= self._z for cohort in cohorts):
            raise ConfigurationError(
                f"privacy.clip-quantile: cohorts of {min(cohorts)} are too small to count in with z = {self._z:.3g}; "
                f"it takes more than {self._z / (2 * COUNT_NOISE):.0f} clients a round"
            )

    def choose(self, clients: Sequence[str], rate: float, number: int) -> list[str]:
        """Return those of ``clients`` that take part in round ``number``: its slot, or a Poisson sample.

        In a sample each takes part independently with probability ``rate``.
        """
        if self.slots is not None:
            return self.slots.members(clients, number)
        return poisson_sample(self.rng, clients, rate)

    def request(self, expected: int) -> dict[str, float]:
        """Return a request's privacy fields: the adaptive bound, and each of ``expected`` clients' share of noise."""
        p, (own, count) = self._settings.privacy, self._deviations(expected)
        told = {CLIP_NORM: self.clip_norm} if p.clip_quantile else {}
        if self._settings.secure_aggregation:  # rounding to integers may make an update longer
            told[CLIP_NORM] = self.clip_norm * (1 - PRECISION)
        if p.noise_at == "device":
            adding = expected if self._kind == "gaussian" else self._least_honest(expected)
            told |= {NOISE: own / math.sqrt(adding), WITHIN_NOISE: count / math.sqrt(adding)}
        return told

    def protect(
        self, outcome: Outcome, expected: int, of: int, like: Arrays, phase: str, number: int, asked: Sequence[str]
    ) -> Outcome:
        """Return the outcome with noise on its sums and the expected weight as divisor; record the privacy cost.

        Args:
            outcome: the sums of clipped updates.
            expected: m, the expected number of clients that take part.
            of: number of clients that are sampled from.
            like: the arrays that clients were sent, which give names and shapes if no client has replied.
            phase, number: the exchange's phase and round.
            asked: the clients that were asked.
        """
        p, (own, count) = self._settings.privacy, self._deviations(expected)
        z, summed = self._z, len(outcome.clients) or outcome.revealed
        if self._kind == "discrete":  # those who collude with the server know their own noise
            honest = summed - colluding(expected, self._settings.secure_colluding)
            if outcome.clients and honest < 1:
                raise RunError(
                    f"privacy.noise-at: {len(outcome.clients)} clients, all of whom may collude, add no noise"
                )
            z, own = z * math.sqrt(max(honest, 0) / self._least_honest(expected)), 0.0
        elif p.noise_at == "device":  # each client has added 1/m of the noise's variance
            z, own, count = z * math.sqrt(summed / expected), 0.0, 0.0
        self._record(z, expected / of, phase, number)  # before the sum is used
        noisy = {name: sent.shape for name, sent in like.items()}
        if self.slots is not None:
            divisor = of / self.slots.mechanism.period
            noise = self.slots.noise(phase, number, own, asked, noisy)
        else:
            divisor = expected
            noise = {name: draw(self.rng, "gaussian", own, shape) for name, shape in noisy.items()} if own else {}
        arrays: Arrays = {}
        for name, sent in like.items():
            total: NDArray[Any] = outcome.arrays.get(name, np.zeros(sent.shape))
            arrays[name] = total + noise[name] if name in noise else total
        if p.clip_quantile:
            within = outcome.arrays.get(WITHIN, np.zeros(1)) + draw(self.rng, "gaussian", count, (1,))
            self.clip_norm *= math.exp(-CLIP_RATE * (float(within[0]) / expected + 0.5 - p.clip_quantile))
        return Outcome(outcome.clients, arrays, outcome.metrics, outcome.failures, divisor, outcome.totals)

    def _record(self, z: float, rate: float, phase: str, number: int) -> None:
        """Record what a release with noise multiplier ``z`` costs; nothing without noise."""
        if not z:
            return
        if self.slots is None:
            self.ledger.add(z, self._counted(rate))
        elif charge := self.slots.charge(phase, number):
            self.ledger.add(z / math.sqrt(charge), 1.0)

    @property
    def _kind(self) -> Literal["gaussian", "discrete"]:
        """The mechanism: with secure aggregation devices add discrete noise to integers."""
        s = self._settings
        return "discrete" if s.secure_aggregation and s.privacy.noise_at == "device" else "gaussian"

    def _least_honest(self, expected: int) -> int:
        return least_honest(expected, self._settings.secure_colluding, self._settings.secure_vanishing)

    def _deviations(self, expected: int) -> tuple[float, float]:
        """Return the standard deviations of the noise on the sum of updates, and on the count of those within bound.

        Together they are one release with multiplier z: z⁻² = z_Δ⁻² + (2σ_b)⁻² (Andrew et al. 2021, theorem 1).
        """
        if not self._z or not self._settings.privacy.clip_quantile:
            return (self._z * self.clip_norm if self._z else 0.0), 0.0
        count = COUNT_NOISE * expected
        if 2 * count <= self._z:
            raise RunError(f"privacy.clip-quantile: {expected} clients are too few to add a count to; many have left")
        return self.clip_norm / math.sqrt(self._z**-2 - (2 * count) ** -2), count

    def spent(self, rate: float, number: int) -> bool:
        """Return whether a release in round ``number``, with sampling rate ``rate``, would exceed the budget."""
        p = self._settings.privacy
        if not p.epsilon:
            return False
        if self.slots is None:
            return self.ledger.epsilon((self._z, self._counted(rate), 1)) > p.epsilon
        charge = self.slots.next_charge(number)
        return bool(charge) and self.ledger.epsilon((self._z / math.sqrt(charge), 1.0, 1)) > p.epsilon

    def report(self) -> dict[str, Any]:
        """Return the block ``privacy`` of ``summary.json``; ε is None without noise."""
        p = self._settings.privacy
        return {
            "privacy": {
                "unit": p.unit,
                "epsilon": self.ledger.epsilon() if self._z else None,
                "delta": p.delta,
                "noise_multiplier": self._z,
                "clip_norm": self.clip_norm if math.isfinite(self.clip_norm) else None,
                "noise_at": p.noise_at,
                "sampling": p.sampling,
                **({} if self.slots is None else {"mechanism": p.mechanism, "slots": self.slots.mechanism.period}),
                "releases": len(self.ledger),
            }
        }

    def _counted(self, rate: float) -> float:
        """Return the sampling rate for the account: ``rate`` with Poisson sampling; 1 for cohorts of a fixed size."""
        return round(rate, 12) if self._settings.privacy.sampling == "poisson" else 1.0
