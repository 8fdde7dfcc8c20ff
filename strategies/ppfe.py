"""PPFE, server side (Emrani et al., Algorithm 1): T stages of FedAvg on ever fewer blocks.

Sent and received in a round of stage t: the shared blocks ψ, the mean of which is taken as in FedAvg. After a stage's
last round every client gets the final ψ^(t) (phase ``finish``) and computes, alone, its coefficient β_k^(t) and its
next example weights. Stage 1 with nothing personal is FedAvg.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from florilegium.clients.hyper.ppfe import PPFEHyper
from florilegium.clients.ppfe_plan import plan
from florilegium.common.errors import BudgetSpentError, ConfigurationError
from florilegium.models.blocks import of_blocks
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.cohort import Setup, sums_of_updates
from florilegium.strategies.core.round import Round
from florilegium.strategies.fedavg import FedAvg

log = logging.getLogger("flwr")


class PPFE(FedAvg):
    """Progressive personalised federated ensembles."""

    privacy_gap = staticmethod(sums_of_updates)

    hyper: PPFEHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        s = self.settings
        self._plan = plan(self.hyper, s.model, s.dataset, s.seed)
        if s.patience:
            raise ConfigurationError("patience: the stages of ppfe have lengths of their own; set it to 0")
        if self._plan.rounds != s.rounds:
            raise ConfigurationError(
                f"ppfe.stage-rounds: '{self.hyper.stage_rounds}' is {self._plan.rounds} rounds, but rounds = {s.rounds}"
            )
        self._first: Arrays = {}  # ψ^(1), where later stages start from it
        self._stage = 1  # that the shared blocks are of
        self._stages: list[dict[str, float]] = []

    @staticmethod
    def transfer_gap(hyper: Any) -> str:
        """Return why features cannot be transferred."""
        return "later stages share fewer blocks, and the last one's are what is left"

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the shared blocks of the first stage."""
        return of_blocks(arrays, self._plan.shared(1))

    def is_final(self, server_round: int) -> bool:
        """Every stage has a last round."""
        return self._plan.is_last(server_round)

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Begin a stage, train, or end a stage, as the plan says.

        A stage begins and ends, too, where a cohort's budgets are spent and nothing is trained.
        """
        stage = self._plan.stage(round.number)
        if stage > self._stage:
            model = self._begin(stage, model)
        self._stage = stage
        with _as_far_as_paid(round.number):
            model = super().train_round(round, model)
        if self._plan.is_last(round.number):
            with _as_far_as_paid(round.number):
                outcome = round.ask("finish", self.trainable(), send=model, reduce="sum")
                means = {name: float(outcome.metrics[name].mean()) for name in ("beta", "largest_weight")}
                self._stages.append({"parameters_sent": sum(array.size for array in model.values()), **means})
        return model

    def _begin(self, stage: int, arrays: Arrays) -> Arrays:
        """Return the shared blocks that a stage starts from, ``arrays`` being the final ones of the stage before."""
        if not self._first:
            self._first = arrays
        self._velocity = self._squares = None
        shared = self._plan.shared(stage)
        source = of_blocks(arrays, shared)
        if self.hyper.warm_start == "first":
            reduced = shared & self._plan.reduced(stage)
            source = of_blocks(source, shared - reduced) | of_blocks(self._first, reduced)
        return self._plan.convert(source, stage)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """FedAvg's state, ψ^(1), and what is known of the finished stages."""
        arrays, facts = super().state()
        own = {f"velocity/{name}": array for name, array in arrays.items()}
        own |= {f"first/{name}": array for name, array in self._first.items()}
        return own, {**facts, "stage": self._stage, "stages": self._stages}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Take it back."""

        def part(prefix: str) -> Arrays:
            return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}

        super().restore(part("velocity/"), facts)
        self._first, self._stage, self._stages = part("first/"), facts["stage"], list(facts["stages"])

    def report(self) -> dict[str, Any]:
        """For each stage: parameters that travel, and the clients' mean β and mean largest example weight."""
        return {"ppfe": {"stages": self._stages}}


@contextmanager
def _as_far_as_paid(server_round: int) -> Iterator[None]:
    """Go on where the budgets of clients do not suffice for what is asked of them: a stage must begin and end."""
    try:
        yield
    except BudgetSpentError as error:
        log.warning("round %d does less: %s", server_round, error)
