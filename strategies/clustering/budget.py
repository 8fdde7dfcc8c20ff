"""The privacy budget of a clustering: the sums that are released, the noise on each, and the total cost."""

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
    """A sum over clients that the server asks for.

    Attributes:
        name: name of the sum.
        phase: the phase in which it is asked for.
        kind: kind of its noise.
        share: share of the budget for all its releases together.
        times: number of releases.
    """

    name: str
    phase: str
    kind: Kind
    share: float
    times: int = 1


@dataclass(frozen=True)
class Spending:
    """A query with its ε per release, its sensitivity (bound on one unit's contribution), and its noise scale."""

    query: Query
    epsilon: float
    sensitivity: float
    scale: float


def init_queries(hyper: KMeansHyper, steps: int) -> list[Query]:
    """Return the sums that FedDP-Init asks for, if ``steps`` steps of FedDP-Lloyds follow (algorithm 11)."""
    left = 1 - hyper.lloyds_share if steps else 1.0
    shares = [left * share for share in parse_numbers(hyper.split)]
    return [
        Query("outer", "outer", "gaussian", shares[0]),
        Query("weights", "weigh", "laplace", shares[1]),
        Query("sums", "locate", "gaussian", shares[2]),
        Query("counts", "locate", "laplace", shares[3]),
    ]


def lloyds_queries(hyper: KMeansHyper, steps: int, whole: float) -> list[Query]:
    """Return the sums that ``steps`` steps of FedDP-Lloyds ask for, with share ``whole`` of the budget (alg. 12)."""
    if not steps:
        return []
    gaussian, laplace = (whole * share for share in parse_numbers(hyper.lloyds_split))
    return [
        Query("sums", "lloyd", "gaussian", gaussian, steps),
        Query("counts", "lloyd", "laplace", laplace, steps),
    ]


class Budget:
    """The ε of each query, and the clipping and noise that follow from it.

    Args:
        hyper: keys ``kmeans.*``.
        queries: all sums that the run will release.
        sensitivities: by the name of the sum: how much one unit (example or client) can change it.
        clipped: whether clients clip their contribution to the sensitivity; if not, their clipped points bound it.

    Raises:
        ConfigurationError: if ``kmeans.epsilons`` does not have one ε for each query, or a sensitivity is not positive
            and finite.
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
        """Return clipping bound and noise for every sum of ``phase``, by the sum's name."""
        return {
            s.query.name: Guard(s.query.kind, s.sensitivity if self._clipped else float("inf"), s.scale)
            for s in self.spendings
            if s.query.phase == phase
        }

    def lines(self) -> list[str]:
        """Return a description of the budget: a line for each query, and one for the total."""
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
