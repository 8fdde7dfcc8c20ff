"""Attack client-level privacy with worst-case clients: bound from below the ε of the mechanism that runs use.

Every client is a canary: its update is ten times as long as allowed and points in a direction of its own. A few real
exchanges (cohorts, clipping, sums, noise, division) then make thousands of independent releases, one for each client
that took part, and one for each further direction, in which nobody moves the model. Likelihood ratios rise with the
released coordinate, so that the best attack on a release is a threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm
from torch import nn, zeros

from florilegium.apps.engines.one_process import OneProcess
from florilegium.apps.runs.personal import reopened
from florilegium.apps.settings.configuration import Settings
from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.node.host import Host
from florilegium.common.errors import RunError
from florilegium.common.files import write_text
from florilegium.common.pages import table_of
from florilegium.common.settings import Section
from florilegium.models.parameters import Arrays
from florilegium.partitions.clientdata import CPU, ClientData, Examples
from florilegium.privacy.accounting import Release, total
from florilegium.privacy.ledger import History
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.roster import Member, Roster
from florilegium.strategies.fedavg import FedAvg
from florilegium.strategies.folder.results import read_summary
from florilegium.strategies.folder.run_folder import RunFolder
from florilegium.strategies.layers.noise import Noise

RELEASES = 10_000
CONFIDENCE = 0.95
LENGTH = 10.0
"""Norm of a canary's update, in units of the clip norm."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Releases:
    """Released coordinates, in units of the clip norm C: noise of deviation z, plus 1 where a canary took part.

    Attributes:
        present: of canaries that took part, (a,).
        enrolled: of all canaries that might have taken part, (b,).
        absent: of directions in which nobody moves the model, (c,).
        multiplier: z by the run's configuration.
        rate: probability q that a client takes part, as the account assumes it.
        delta: δ.
        history: what the run's own account has recorded of one release.
    """

    present: Array
    enrolled: Array
    absent: Array
    multiplier: float
    rate: float
    delta: float
    history: History

    @cached_property
    def claimed(self) -> float:
        """ε of one release by the run's own account."""
        return total([Release("gaussian", z, times, q) for z, q, times in self.history], self.delta)


class CanaryClient(BaseClient):
    """A client whose update is too long, and moves nothing but the entry of the model that has its number."""

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Return the received array ``weight`` (1, d) with the client's own entry raised."""
        moved = arrays["weight"].copy()
        moved[0, int(self.client_id)] += LENGTH * self.settings.privacy.clip_norm
        return Answer({"weight": moved}, 1, {"loss": 0.0})


class _Canaries:
    """A simulated node's clients, without data."""

    pinned = False
    allowance = None
    capacity = 1.0
    identity = None

    def __init__(self, count: int) -> None:
        self._count = count

    def clients(self) -> list[str]:
        return [str(i) for i in range(self._count)]

    def data(self, client_id: str) -> ClientData:
        nothing = Examples(zeros(0, 1), zeros(0))
        return ClientData(lambda: nothing, lambda: nothing, labeled=True, simulated=True, device=CPU)

    def class_counts(self) -> None:
        """There are no examples."""


def release(
    settings: Settings, clients: int, cohort: int, count: int = RELEASES, rng: np.random.Generator | None = None
) -> Releases:
    """Make at least ``count`` releases with a canary that might have taken part, and as many without one.

    Args:
        settings: a run's configuration, with ``privacy.unit = "client"``.
        clients, cohort: how many clients there are, and take part in a round (the expected number).
        count: number of releases.
        rng: what noise and cohorts are drawn from, where the server draws them; by default secret, as in runs.

    Raises:
        RunError: if the releases have no noise, or do not resemble each other, or sums are secure.
    """
    p = settings.privacy
    if p.unit != "client" or not p.noise_multiplier or not math.isfinite(p.clip_norm):
        raise RunError(
            "the run does not protect clients by noise (privacy.unit = 'client'); there is no claim to attack"
        )
    if p.mechanism != "gaussian" or p.clip_quantile or settings.secure_aggregation:
        raise RunError(
            "the canary attack takes single releases, all alike: not those of privacy.mechanism = 'tree' or 'matrix', "
            "privacy.clip-quantile, or secure-aggregation"
        )
    rounds = math.ceil(count / (clients if p.sampling == "poisson" else cohort))
    with TemporaryDirectory() as folder:
        s = settings.model_copy(update={
            "method": "fedavg", "rounds": rounds, "num_clients": clients, "cohort_size": cohort, "oversample": 1.0,
            "final_participation": 0.0, "vectorise": "1", "min_success": 0.0, "validation_fraction": 0.0,
        })  # fmt: skip
        host = Host(CanaryClient, s, Section(), nn.Linear(2 * clients, 1, bias=False), _Canaries(clients), folder)
        roster = Roster(lambda: [Member(str(i), 1, 0) for i in range(clients)], clients, "")
        strategy = FedAvg(Setup(s, Section(), CanaryClient, roster, RunFolder(Path(folder), {}, "")))
        protection = next(layer.protection for layer in strategy.federation.layers if isinstance(layer, Noise))
        grid = OneProcess(host, "")
        roster.wait(grid, 0.0)
        if rng is not None:
            protection.rng = rng
        protection.plan([cohort] * rounds, clients)
        slots = protection.slots
        expected = clients / slots.mechanism.period if slots else float(cohort)
        present, enrolled, absent = [], [], []
        history: History = []
        for number in range(1, rounds + 1):
            this = Round(strategy.federation, grid, number)
            drawn = this.sample()
            sent = {"weight": np.zeros((1, 2 * clients), np.float32)}
            outcome = this.ask("train", drawn, send=sent, reduce="delta")
            x = outcome.arrays["weight"][0] / outcome.weight * expected / p.clip_norm
            took_part = x[[int(client) for client in drawn]]
            present.append(took_part)
            enrolled.append(x[:clients] if p.sampling == "poisson" else took_part)
            absent.append(x[clients:])
            history = history or protection.ledger.history
    rate = cohort / clients if p.sampling == "poisson" else 1.0
    a, b, c = (np.concatenate(part).astype(np.float64) for part in (present, enrolled, absent))
    return Releases(a, b, c, p.noise_multiplier, rate, p.delta, history)


@dataclass(frozen=True)
class Canary:
    """What the attack finds, each bound at 95 % confidence.

    Attributes:
        releases: the releases.
        multiplier: upper bound on z; infinite if nothing shows.
        rate: lower bound on q.
        any: lower bound on ε of one release, whatever the mechanism.
        times: number of releases of the whole run in which a client may take part; 0: not asked for.
        claimed: ε of the whole run by its account.
    """

    releases: Releases
    multiplier: float
    rate: float
    any: float
    times: int = 0
    claimed: float = math.nan

    @cached_property
    def epsilon(self) -> float:
        """Lower bound on ε of one release: a sum with Gaussian noise that has a client with probability q."""
        return self._cost(1)

    @cached_property
    def of_run(self) -> float:
        """The same for all releases of the run."""
        return self._cost(self.times)

    def _cost(self, times: int) -> float:
        if math.isinf(self.multiplier):
            return 0.0
        return total([Release("gaussian", self.multiplier, times, self.rate)], self.releases.delta)

    def table(self) -> str:
        """Return the attack's result as a Markdown table."""
        r = self.releases
        sizes = len(r.present), len(r.enrolled), len(r.absent)
        rows = [
            ("", "claimed", f"at {CONFIDENCE:.0%} confidence"),
            ("releases: a canary takes part, might, does not", "", ", ".join(map(str, sizes))),
            ("noise multiplier z", f"{r.multiplier:.4g}", f"≤ {self.multiplier:.4g}"),
            ("probability of taking part q", f"{r.rate:.4g}", f"≥ {self.rate:.4g}"),
            (f"ε of one release, δ = {r.delta:g}", f"{r.claimed:.3g}", f"≥ {self.epsilon:.3g}"),
            ("the same, without assuming a mechanism", f"{r.claimed:.3g}", f"≥ {self.any:.3g}"),
        ]
        if self.times:
            rows.append(("ε of the run", f"{self.claimed:.3g}", f"≥ {self.of_run:.3g}"))
        return table_of(rows[0], rows[1:])


def judge(found: Releases, times: int = 0, claimed: float = math.nan) -> Canary:
    """Bound z, q and ε by the error rates of threshold attacks, with Clopper–Pearson intervals.

    Thresholds are those that would be best if the claim were exact, so that they do not depend on what is tested.

    *Fit*: with Gaussian noise a threshold has Φ⁻¹(TPR) − Φ⁻¹(FPR) = 1/z on canaries that took part; so one-sided bounds
    on TPR, FPR and q, each at confidence 1 − 5 %/3, give bounds on z and q, and the account turns these into ε.
    *Any mechanism*: (ε, δ)-privacy requires TPR ≤ e^ε·FPR + δ, here with bounds at confidence 1 − 5 %/2.

    Args:
        found: the releases.
        times, claimed: those of :class:`Canary`.
    """
    z, q, δ = found.multiplier, found.rate, found.delta
    grid = np.linspace(-2.0, 1.0 + 4.0 * z, 400)
    never, took = norm.sf(grid / z), norm.sf((grid - 1) / z)
    sizes = len(found.present), len(found.enrolled), len(found.absent)

    def inverse(hits: Any, false: Any) -> Any:
        """Return the lower bound on 1/z for so many hits and false alarms."""
        sure = 1 - (1 - CONFIDENCE) / 3
        return norm.ppf(at_least(hits, sizes[0], sure)) - norm.ppf(at_most(false, sizes[2], sure))

    def logarithm(hits: Any, false: Any) -> Any:
        """Return the lower bound on ε for so many hits and false alarms."""
        sure = 1 - (1 - CONFIDENCE) / 2
        ratio = (at_least(hits, sizes[1], sure) - δ) / at_most(false, sizes[2], sure)
        return np.log(np.maximum(ratio, 1.0))

    def at_best(bound: Callable[[Any, Any], Any], samples: Array, rates: Array) -> float:
        """Return the bound at the threshold that is best by expectation; ``rates``: true positives, by threshold."""
        best = grid[np.nanargmax(bound(len(samples) * rates, sizes[2] * never))]
        return float(bound((samples > best).sum(), (found.absent > best).sum()))

    steep = at_best(inverse, found.present, took)
    most = 1 / steep if steep > 0 else math.inf
    least = float(at_least(sizes[0], sizes[1], 1 - (1 - CONFIDENCE) / 3)) if q < 1 else 1.0

    untold = at_best(logarithm, found.enrolled, (1 - q) * never + q * took)
    return Canary(found, most, least, untold, times, claimed)


def at_least(hits: Any, of: int, confidence: float) -> Any:
    """Return Clopper and Pearson's one-sided lower bound on a probability, for ``hits`` of ``of`` trials."""
    return np.where(np.asarray(hits) <= 0, 0.0, beta.ppf(1 - confidence, np.maximum(hits, 1e-9), of - hits + 1))


def at_most(hits: Any, of: int, confidence: float) -> Any:
    """Return Clopper and Pearson's one-sided upper bound on a probability, for ``hits`` of ``of`` trials."""
    return 1 - at_least(of - np.asarray(hits), of, confidence)


def attack(run: Path) -> Canary:
    """Attack the mechanism of a finished run.

    Raises:
        RunError: as :func:`release`.
    """
    with reopened(run) as again:
        s, strategy = again.settings, again.strategy
        clients, cohort = len(strategy.trainable()), strategy.federation.cohort_size(1)
    told = read_summary(run).get("privacy", {})
    exact = {"epsilon": 0.0, "noise_multiplier": float(told.get("noise_multiplier") or 0.0)}
    found = release(s.model_copy(update={"privacy": s.privacy.model_copy(update=exact)}), clients, cohort)
    result = judge(found, int(told["releases"]), float(told["epsilon"]))  # with slots, those of one slot
    write_text(run / "audit-canary.md", result.table())
    return result
