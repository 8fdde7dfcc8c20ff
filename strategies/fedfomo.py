"""FedFomo, server side (Zhang et al. 2021, section 3): clients receive the models of those who have helped them most.

The server keeps the model θ_n of every client and an affinity p_i for each of them. A client of the cohort receives the
models of M others: each the one with the highest affinity, or, with probability ε, one at random. It returns its new
model and the weights w_n of the received ones, and p_i ← p_i + w. A client that has not trained has no affinities: it
receives the mean of the bank as one of its M models, and random others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.fedfomo import AFFINITY
from florilegium.clients.hyper.bank import FedFomoHyper
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays, shapes_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome, joined
from florilegium.strategies.families.bank import MODELS_REACH_CLIENTS, READ_AT_ONCE, Banked


class FedFomo(Banked):
    """Chooses for each client whose models it receives.

    Attributes:
        affinity: p_i, by client and by other client; without entry: 0.
    """

    messages = MODELS_REACH_CLIENTS
    hyper: FedFomoHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.affinity: dict[str, dict[str, float]] = {}

    def train_cohort(self, round: Round, model: Arrays, cohort: Sequence[str]) -> Outcome:
        """Send each client M models; update its affinities by the weights that it returns with its new model."""
        choices = self.choices(round, cohort)
        m = len(choices[0])
        outcome = round.ask(
            "train", cohort, reduce="stack", scatter=self._beside(round, model, choices),
            shapes={**shapes_of(model), AFFINITY: (m,)}, base=self.last(round, model),
        )  # fmt: skip
        chosen = dict(zip(cohort, choices, strict=True))
        for client, weights in zip(outcome.clients, outcome.arrays.pop(AFFINITY), strict=True):
            own = self.affinity.setdefault(client, {})
            for other, w in zip(chosen[client], weights, strict=True):
                if other is not None:
                    own[other] = own.get(other, 0.0) + float(w)
        return outcome

    def choices(self, round: Round, clients: Sequence[str]) -> list[list[str | None]]:
        """Return whose models each client receives, for all equally many; None stands for the mean of the bank."""
        m = max(1, min(self.hyper.models, len(self.members) - 1))
        return [self._choose(round.number, client, m) for client in clients]

    def _choose(self, server_round: int, client: str, m: int) -> list[str | None]:
        others = [other for other in self.members if other != client]
        mean: list[str | None] = [] if client in self.members and others else [None]
        rng = numpy_generator(self.settings.seed, "models", server_round, client)
        ε = max(self.hyper.exploration - (server_round - 1) * self.hyper.exploration_decay, 0.0)
        p = self.affinity.get(client, {})
        at_random, shuffled = ([others[i] for i in rng.permutation(len(others))] for _ in range(2))
        best = sorted(shuffled, key=lambda other: -p.get(other, 0.0))  # ties in random order
        chosen: list[str | None] = []
        for explores in rng.random(min(m - len(mean), len(others))) < ε:
            source = at_random if explores else best
            chosen.append(next(other for other in source if other not in chosen))
        return mean + chosen

    def _beside(self, round: Round, model: Arrays, choices: Sequence[Sequence[str | None]]) -> Arrays:
        return {BESIDE + name: array for name, array in self.deal(round, model, choices).items()}

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have clients test; labeled ones without a model of their own receive M models to combine."""
        new = [c for c in clients if c not in self.members and self.clients[c].labeled and self.members]
        others = [client for client in clients if client not in {*new}]
        outcomes = []
        if others:
            outcomes.append(round.ask("test", others, reduce="sum", send=model, evaluation=True, out_of=0))
        for first in range(0, len(new), READ_AT_ONCE):
            some = new[first : first + READ_AT_ONCE]
            scatter = self._beside(round, model, self.choices(round, some))
            outcomes.append(
                round.ask("test", some, reduce="sum", send=model, scatter=scatter, evaluation=True, out_of=0)
            )
        return round.require(joined(outcomes), len(clients))

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return who is in the bank, and the affinities."""
        arrays, facts = super().state()
        return arrays, {**facts, "affinity": self.affinity}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore who is in the bank, and the affinities."""
        super().restore(arrays, facts)
        self.affinity = {client: dict(own) for client, own in facts["affinity"].items()}
