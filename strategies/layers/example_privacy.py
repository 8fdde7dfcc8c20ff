"""Example-level differential privacy, server side: the privacy costs that clients report.

Each client clips and adds noise itself (:mod:`florilegium.privacy.dp_sgd`) and keeps its own account. The server knows
only what clients report: the ε spent so far, and whether a budget is exhausted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.privacy.ledger import SPENT
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.settings.server import ServerSettings


class ClientAccounts:
    """Privacy costs that the clients of one run have reported; empty without example-level privacy.

    Attributes:
        spent: ids of the clients whose budgets do not suffice for another training.
        epsilons: for each client the ε spent so far, as last reported.
    """

    def __init__(self) -> None:
        self.spent: set[str] = set()
        self.epsilons: dict[str, float] = {}

    def hear(self, outcome: Outcome) -> None:
        """Record the ε and spent budgets reported in an exchange; remove ``epsilon`` from the outcome's metrics."""
        if "epsilon" in outcome.metrics:
            self.epsilons |= dict(zip(outcome.clients, outcome.metrics.pop("epsilon").tolist(), strict=True))
        self.spent |= {client for client, reason in outcome.failures.items() if reason.startswith(SPENT)}

    def facts(self) -> dict[str, Any]:
        """Return the reported costs for checkpoints; JSON values."""
        return {"epsilons": self.epsilons, "spent": sorted(self.spent)}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the reported costs that :meth:`facts` returned."""
        self.epsilons, self.spent = dict(facts.get("epsilons", {})), set(facts.get("spent", []))

    def report(self, delta: float) -> dict[str, Any]:
        """Return the block ``privacy`` of ``summary.json``; empty if no client has reported a cost."""
        if not self.epsilons:
            return {}
        paid = list(self.epsilons.values())
        facts = {"unit": "example", "delta": delta, "clients": len(paid), "clients_spent": len(self.spent)}
        return {"privacy": {**facts, "epsilon_max": max(paid), "epsilon_mean": float(np.mean(paid))}}


def expected_trainings(settings: ServerSettings, shares: Sequence[float]) -> dict[str, float]:
    """Return the expected number of rounds in which a client trains, and of its tests; its budget must cover these.

    Args:
        settings: the run's configuration.
        shares: for every round, the probability that a client is asked to train in it.
    """
    every, rounds = settings.evaluate_every, settings.rounds
    tests = {r for r in range(1, rounds + 1) if r == rounds or (every and r % every == 0)}
    return {"trainings": float(sum(shares)), "tests": float(len(tests))}
