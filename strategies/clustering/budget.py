"""The privacy budget of a clustering: what is released, with how much noise, and what it costs altogether."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from florilegium.clients.hyper.clustering import KMeansHyper
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import parse_numbers
from florilegium.privacy.accounting import Release, calibrate, multiplier, total
from florilegium.privacy.guard import Guard
from florilegium.privacy.noise import Kind


@dataclass(frozen=True)
class Query:
    """A sum that is asked for.

    Attributes:
        name: of the sum.
        phase: the phase in which it is asked for.
        kind: its noise.
        share: its share of the budget, of all its ``times`` together.
        times: how often.
    """

    name: str
    phase: str
    kind: Kind
    share: float
    times: int = 1


@dataclass(frozen=True)
class Spending:
    """A query and what it costs: its ε each time, the bound on one unit's contribution, and the noise's scale."""

    query: Query
    epsilon: float
    sensitivity: float
    scale: float


def init_queries(hyper: KMeansHyper, steps: int) -> list[Query]:
    """Return the sums that FedDP-Init asks for where ``steps`` of FedDP-Lloyds follow (algorithm 11)."""
    left = 1 - hyper.lloyds_share if steps else 1.0
    shares = [left * share for share in parse_numbers(hyper.split)]
    return [
        Query("outer", "outer", "gaussian", shares[0]),
        Query("weights", "weigh", "laplace", shares[1]),
        Query("sums", "locate", "gaussian", shares[2]),
        Query("counts", "locate", "laplace", shares[3]),
    ]


def lloyds_queries(hyper: KMeansHyper, steps: int, whole: float) -> list[Query]:
    """Return the sums that ``steps`` of FedDP-Lloyds ask for, ``whole`` being their share (algorithm 12)."""
    if not steps:
        return []
    gaussian, laplace = (whole * share for share in parse_numbers(hyper.lloyds_split))
    return [
        Query("sums", "lloyd", "gaussian", gaussian, steps),
        Query("counts", "lloyd", "laplace", laplace, steps),
    ]


class Budget:
    """What each query may cost, and the guards that follow.

    Args:
        hyper: the method's keys.
        queries: all that will be released.
        sensitivities: by the name of the sum: how much one unit (example or client) can change it.
        clipped: whether clients scale what they send down to the sensitivity; otherwise clipped points bound it.

    Raises:
        ConfigurationError: if ``kmeans.epsilons`` has not one ε for each query.
    """

    def __init__(
        self, hyper: KMeansHyper, queries: Sequence[Query], sensitivities: dict[str, float], *, clipped: bool
    ) -> None:
        self._hyper, self._clipped = hyper, clipped
        given = parse_numbers(hyper.epsilons)
        if given and len(given) != len(queries):
            wanted = ", ".join(f"{query.phase}'s {query.name}" for query in queries) or "none"
            raise ConfigurationError(
                f"kmeans.epsilons: '{hyper.epsilons}' has {len(given)} numbers, but {len(queries)} sums are asked for: "
                f"{wanted}"
            )

        def epsilons(scale: float) -> list[float]:
            shares = given or [scale * query.share for query in queries]
            return [share / query.times for query, share in zip(queries, shares, strict=True)]

        def releases(scale: float) -> list[Release]:
            pairs = zip(queries, epsilons(scale), strict=True)
            return [Release(query.kind, self._multiplier(query, ε), query.times) for query, ε in pairs]

        for name, sensitivity in sensitivities.items():
            if not 0 < sensitivity < float("inf"):
                raise ConfigurationError(
                    f"kmeans: one {hyper.privacy_unit} changes '{name}' by {sensitivity:g} at most"
                )

        scale = 1.0 if given or not queries else calibrate(releases, hyper.epsilon, hyper.delta)
        self.epsilon = total(releases(scale), hyper.delta)
        self.spendings = [
            Spending(query, ε, sensitivities[query.name], sensitivities[query.name] * self._multiplier(query, ε))
            for query, ε in zip(queries, epsilons(scale), strict=True)
        ]

    def _multiplier(self, query: Query, epsilon: float) -> float:
        return multiplier(query.kind, epsilon, self._hyper.delta, self._hyper.gaussian)

    def guards(self, phase: str) -> dict[str, Guard]:
        """Return the guard of every sum of ``phase``."""
        return {
            s.query.name: Guard(s.query.kind, s.sensitivity if self._clipped else float("inf"), s.scale)
            for s in self.spendings
            if s.query.phase == phase
        }

    def lines(self) -> list[str]:
        """Return the budget in words, a line for each query and one for all."""
        lines = [
            f"{s.query.phase}: {s.query.name} with {s.query.kind} noise of scale {s.scale:.4g} "
            f"(sensitivity {s.sensitivity:.4g}, ε = {s.epsilon:.4g}{f', {s.query.times} times' * (s.query.times > 1)})"
            for s in self.spendings
        ]
        h = self._hyper
        return [*lines, f"all together (ε = {self.epsilon:.4g}, δ = {h.delta:g})-private for one {h.privacy_unit}"]

    def record(self) -> dict[str, Any]:
        """Return the budget as JSON values."""
        h = self._hyper
        releases = [{**asdict(s.query), "epsilon": s.epsilon, "sensitivity": s.sensitivity, "scale": s.scale}
                    for s in self.spendings]  # fmt: skip
        return {"unit": h.privacy_unit, "epsilon": self.epsilon, "delta": h.delta, "noise_at": h.noise_at,
                "releases": releases}  # fmt: skip
