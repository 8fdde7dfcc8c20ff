"""What the server knows of a cohort's numbers where single clients' are masked: their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from florilegium.strategies.exchange.evaluation import Figures, pooled
from florilegium.tasks.task import Task


@dataclass(frozen=True)
class Totals:
    """Sums over the clients of an exchange.

    Attributes:
        clients: number of clients.
        weight, examples: sums of their weights and of their numbers of examples.
        uniform: whether weights are 1 rather than numbers of examples.
        metrics: for each metric: how many clients report it, its sum, the sum of its squares, and its sum times
            numbers of examples.
        bytes_down, bytes_up: bytes that the clients have received and sent.
    """

    clients: int
    weight: float
    examples: float
    uniform: bool
    metrics: Mapping[str, tuple[float, float, float, float]]
    bytes_down: float
    bytes_up: float

    def sums(self, metric: str, by: str) -> tuple[float, float]:
        """Return Σ wᵢ·mᵢ and Σ wᵢ over the clients that report ``metric``; ``by``: as for ``Outcome.sums``."""
        known, total, _, by_examples = self.metrics.get(metric, (0.0, 0.0, 0.0, 0.0))
        if by == "clients" or (by == "weight" and self.uniform):
            return total, known
        return by_examples, self.examples if known else 0.0

    def lacking(self, task: Task) -> dict[str, int]:
        """Return how many clients report none of each figure of the task, where some do not."""
        known = {name: int(self.metrics.get(name, (0.0,))[0]) for name in task.figures}
        return {name: self.clients - count for name, count in known.items() if count < self.clients}

    def figures(self, task: Task) -> Figures:
        """Return summary figures, as ``summarise`` does of single clients' numbers, where sums tell them."""
        told = {name: numbers for name, numbers in self.metrics.items() if numbers[0] >= 1}
        figures = {name: total / known for name, (known, total, _, _) in told.items() if name not in task.sums}
        if task.main in figures and self.examples >= 1:
            known, _, squares, _ = self.metrics[task.main]
            figures |= pooled(task, lambda name: self.metrics[name][3] / self.examples, told)
            figures["std"] = math.sqrt(max(0.0, squares / known - figures[task.main] ** 2))
        return figures
