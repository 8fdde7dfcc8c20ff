"""Clients of different size, server side: each is sent as much of the model as its device holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from florilegium.clients.hyper.capacity import Levels
from florilegium.common.seeds import numpy_generator
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.exchange.evaluation import Evaluation
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.requests import Cohort
from florilegium.strategies.fedavg import FedAvg


class Sized(FedAvg):
    """FedAvg over groups of clients, all of one size in each; tells how large clients are and how each size fares."""

    column: ClassVar[str] = "capacity"
    """Column of a client's size in ``clients.csv``."""
    block: ClassVar[str] = "capacities"
    """Block of ``summary.json`` with a size's clients and their main figure."""

    hyper: Levels

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._rows: list[dict[str, object]] = []  # of the last evaluation

    def capacity(self, client: str) -> float:
        """Return a client's capacity r: what its device states or, in a simulation, a draw from key ``levels``."""
        if self.clients.deployed:
            return self.clients[client].capacity
        levels, shares = self.hyper.law
        return float(numpy_generator(self.settings.seed, "capacity", client).choice(levels, p=shares))

    def size(self, client: str) -> float:
        """Return a client's size; clients of one size are sent the same. By default: its capacity."""
        return self.capacity(client)

    def by_size(self, clients: Iterable[str]) -> dict[float, list[str]]:
        """Return the clients of each size, the largest first."""
        found: dict[float, list[str]] = {}
        for client in clients:
            found.setdefault(self.size(client), []).append(client)
        return dict(sorted(found.items(), reverse=True))

    def cohorts(self, cohort: Cohort) -> dict[float, Cohort]:
        """Return the clients of a cohort by size, each size with its share of the replies that are needed."""
        share = cohort.wanted / max(1, len(cohort))
        return {size: Cohort(own, math.ceil(len(own) * share)) for size, own in self.by_size(cohort).items()}

    def figures(self, outcome: Outcome) -> Evaluation:
        """Return the figures of each group; a client's size is in its row."""
        found = super().figures(outcome)
        self._rows = [{**row, self.column: self.size(str(row["client"]))} for row in found.rows] or self._rows
        return Evaluation(found.figures, self._rows)

    def report(self) -> dict[str, Any]:
        """Return for each size the number of evaluated clients and their mean main figure, for ``summary.json``."""
        found: dict[str, Any] = {}
        for size in sorted({float(str(row[self.column])) for row in self._rows}, reverse=True):
            rows = [row for row in self._rows if row[self.column] == size]
            values = np.array([float(str(row.get(self.task.main, np.nan))) for row in rows])
            told = values[~np.isnan(values)]
            found[f"{size:g}"] = {"clients": len(rows), self.task.main: float(told.mean()) if len(told) else np.nan}
        return {self.block: found}
