"""What a round of training did, collected from its exchanges: the entry ``training`` of a line of ``metrics.jsonl``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from florilegium.clients.core.wire import GRADIENT_NORM, UPDATE_NORM
from florilegium.models.parameters import Arrays, distance
from florilegium.strategies.exchange.exchange import Outcome

SERVER = "server"
"""Stands among the phases for the server's own time."""


class RoundRecord:
    """Collects what the exchanges of one round report, whatever the method.

    If several exchanges of a round report the same number, its mean is over all of them.

    Attributes:
        asked: the clients that were asked to train.
        failures: the reasons of those that failed.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self.asked: set[str] = set()
        self.failures: dict[str, str] = {}
        self._loss, self._update_norm, self._gradient_norm = _Mean(), _Mean(), _Mean()

    def add(self, phase: str, seconds: float, cohort: Iterable[str], outcome: Outcome, *, evaluation: bool) -> None:
        """Add an exchange.

        Args:
            phase: the phase that clients carried out.
            seconds: time from the preparation of the requests to the merged replies.
            cohort: the clients that were asked.
            outcome: their merged replies.
            evaluation: whether the exchange evaluates rather than trains; then only its time counts.
        """
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
        if evaluation:
            return
        self.asked |= {*cohort}
        self.failures |= outcome.failures
        if outcome.clients:
            self._loss.add(*outcome.sums("loss"))
            for mean, name in ((self._update_norm, UPDATE_NORM), (self._gradient_norm, GRADIENT_NORM)):
                mean.add(*outcome.sums(name, by="clients"))

    def entry(self, seconds: float, learning_rate: float, before: Arrays, after: Arrays) -> dict[str, Any]:
        """Return what the round did, as JSON values; what no client has reported is left out.

        Args:
            seconds: duration of the round.
            learning_rate: the clients' learning rate in this round.
            before, after: the global model.
        """
        loss = self._loss.value()
        found = {
            "loss": loss,
            "learning_rate": None if loss is None else learning_rate,
            "clients": len(self.asked),
            "failed": len(self.failures),
            "gradient_norm": self._gradient_norm.value(),
            "client_update_norm": self._update_norm.value(),
            "update_norm": _change(before, after),
            "seconds": {
                phase: round(part, 4)
                for phase, part in {**self._seconds, SERVER: seconds - sum(self._seconds.values())}.items()
            },
        }
        return {name: value for name, value in found.items() if value is not None}


class _Mean:
    """A weighted mean of numbers, of which sums arrive in several parts."""

    def __init__(self) -> None:
        self._total = self._weight = 0.0

    def add(self, total: float, weight: float) -> None:
        self._total += total
        self._weight += weight

    def value(self) -> float | None:
        return self._total / self._weight if self._weight and math.isfinite(self._total) else None


def _change(before: Arrays, after: Arrays) -> float | None:
    """Return the Euclidean norm of the model's change; None without a model, or if its arrays are others now."""
    if not after or {n: a.shape for n, a in before.items()} != {n: a.shape for n, a in after.items()}:
        return None
    norm = distance(after, before)
    return norm if math.isfinite(norm) else None
