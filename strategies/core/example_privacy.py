"""Example-level differential privacy of a run: what clients' own accounts say, and what a run must be for it.

Each client clips and adds noise itself (:mod:`florilegium.privacy.dp_sgd`) and keeps its own account. The server
knows what clients report: what their examples have paid so far, and that a budget is exhausted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.privacy.ledger import SPENT
from florilegium.strategies.core.exchange import Outcome
from florilegium.strategies.core.settings import ServerSettings


class ClientAccounts:
    """What the clients of one run have said of their accounts; empty where examples are not protected.

    Attributes:
        spent: the clients whose budgets do not suffice for another training.
        epsilons: what each client's examples have paid, as it last said.
    """

    def __init__(self) -> None:
        self.spent: set[str] = set()
        self.epsilons: dict[str, float] = {}

    def hear(self, outcome: Outcome) -> None:
        """Take in what the clients of an exchange say; it is no figure of theirs any more."""
        if "epsilon" in outcome.metrics:
            self.epsilons |= dict(zip(outcome.clients, outcome.metrics.pop("epsilon").tolist(), strict=True))
        self.spent |= {client for client, reason in outcome.failures.items() if reason.startswith(SPENT)}

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of them."""
        return {"epsilons": self.epsilons, "spent": sorted(self.spent)}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Take back what :meth:`facts` returned."""
        self.epsilons, self.spent = dict(facts.get("epsilons", {})), set(facts.get("spent", []))

    def report(self, delta: float) -> dict[str, Any]:
        """Return the block of ``summary.json``; none where nobody has said anything."""
        if not self.epsilons:
            return {}
        paid = list(self.epsilons.values())
        facts = {"unit": "example", "delta": delta, "clients": len(paid), "clients_spent": len(self.spent)}
        return {"privacy": {**facts, "epsilon_max": max(paid), "epsilon_mean": float(np.mean(paid))}}


def expected_trainings(settings: ServerSettings, shares: Sequence[float]) -> dict[str, float]:
    """Return in how many rounds a client trains on average, and how often it is tested: what a budget must do for.

    Args:
        settings: the run's configuration.
        shares: of every round, the probability that a client is asked to train in it.
    """
    every, rounds = settings.evaluate_every, settings.rounds
    tests = {r for r in range(1, rounds + 1) if r == rounds or (every and r % every == 0)}
    return {"trainings": sum(shares), "tests": float(len(tests))}
