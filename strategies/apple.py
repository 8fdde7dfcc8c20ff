"""APPLE, server side (Luo and Wu 2022, Algorithm 1): clients combine core models by relationships that they learn.

The server keeps each client's core model w_j and its directed relationships p_i. A client of the cohort receives p_i,
the core models of at most M others, and, if there are more, the sum Σ p_ij·w_j of the rest; it returns its new core
model and p_i. p_i begins with p_0, the clients' shares of all training examples. A client that has not trained yet has
the mean of the bank as its core model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.apple import INITIAL, RELATIONS
from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.bank import APPLEHyper
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays, shapes_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.families.bank import MODELS_REACH_CLIENTS, Banked

BASE = 1.5
"""The least base b of the probabilities ∝ b^|p_ij| with which models are drawn; that of the authors' code."""


class APPLE(Banked):
    """Sends core models, and keeps what clients learn about them.

    Attributes:
        relations: the learned p_ij, by client i and by client j; without entry: p_0j.
    """

    messages = MODELS_REACH_CLIENTS
    hyper: APPLEHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.relations: dict[str, dict[str, float]] = {}

    def check_roster(self) -> None:
        """Check that there are clients to combine models with."""
        super().check_roster()
        if self.settings.rounds and len(self.trainable()) < 2:
            raise ConfigurationError(
                "method 'apple' combines the models of several clients, but only one can train; let more clients with "
                "labels take part"
            )

    def train_cohort(self, round: Round, model: Arrays, cohort: Sequence[str]) -> Outcome:
        """Send each client core models and relationships; keep the relationships that it returns."""
        p0 = self._shares()
        p = {client: {**p0, **self.relations.get(client, {})} for client in cohort}
        m = len(self.members) - any(client in self.members for client in cohort)
        m = min(m, self.hyper.models) if self.hyper.models else m
        choices = [self._choose(round.number, client, p[client], m) for client in cohort]
        scatter = self.deal(round, model, choices)
        if m + 1 < len(p0):
            rest = self._rest(round, model, cohort, choices, p)
            scatter = {name: np.concatenate([a, rest[name][:, None]], axis=1) for name, a in scatter.items()}
        rows = [[client, *chosen] for client, chosen in zip(cohort, choices, strict=True)]
        scatter[RELATIONS] = np.array([[p[row[0]][j] for j in row] for row in rows], dtype=np.float32)
        scatter[INITIAL] = np.array([[p0[j] for j in row] for row in rows], dtype=np.float32)
        outcome = round.ask(
            "train", cohort, reduce="stack", scatter={BESIDE + name: array for name, array in scatter.items()},
            shapes={**shapes_of(model), RELATIONS: (m + 1,)}, base=self.last(round, model), count=len(p0),
        )  # fmt: skip
        learned = dict(zip(outcome.clients, outcome.arrays.pop(RELATIONS), strict=True))
        for row in rows:
            if row[0] in learned:
                own = self.relations.setdefault(row[0], {})
                own.update(zip(row, (float(value) for value in learned[row[0]]), strict=True))
        return outcome

    def _shares(self) -> dict[str, float]:
        """Return p_0: the share of each client that can train, or has trained, of their total weight."""
        weights = {client: self.weight(client) for client in self.trainable()} | self.members
        total = sum(weights.values())
        return {client: weight / total for client, weight in weights.items()}

    def _choose(self, server_round: int, client: str, p: Mapping[str, float], m: int) -> list[str]:
        """Return the m members whose core models a client receives.

        Those that it has never received come first, in random order; the others are drawn with probabilities
        proportional to b^|p_ij|, where b grows with the number of times that a model has been received.
        """
        others = [other for other in self.members if other != client]
        if m >= len(others):
            return others
        rng = numpy_generator(self.settings.seed, "models", server_round, client)
        known = self.relations.get(client, {})
        new = [other for other in others if other not in known]
        if len(new) >= m:
            return [new[i] for i in rng.permutation(len(new))[:m]]
        old = [other for other in others if other in known]
        b = max(BASE, server_round * m / len(self.members))
        # The largest of the logarithms plus Gumbel noise are such a sample without replacement, whatever a client says.
        keys = np.log(b) * np.abs([p[other] for other in old]) + rng.gumbel(size=len(old))
        return new + [old[i] for i in np.argsort(-keys)[: m - len(new)]]

    def _rest(
        self,
        round: Round,
        model: Arrays,
        cohort: Sequence[str],
        choices: Sequence[Sequence[str]],
        p: Mapping[str, Mapping[str, float]],
    ) -> Arrays:
        """Return for each client the sum of p_ij·w_j over the clients whose models it does not receive, (c, *shape)."""
        column = {member: position for position, member in enumerate(self.members)}
        coefficients: NDArray[np.float64] = np.zeros((len(cohort), len(column) + 1))  # the last is that of the mean
        for row, (client, chosen) in enumerate(zip(cohort, choices, strict=True)):
            sent = {client, *chosen}
            for other, value in p[client].items():
                if other not in sent:
                    coefficients[row, column.get(other, -1)] += value
        return self.combine(round, model, coefficients)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return who is in the bank, and the relationships."""
        arrays, facts = super().state()
        return arrays, {**facts, "relations": self.relations}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore who is in the bank, and the relationships."""
        super().restore(arrays, facts)
        self.relations = {client: dict(own) for client, own in facts["relations"].items()}
