"""PPFE, server side (Emrani et al., Algorithm 1): T stages of FedAvg, with fewer shared blocks in each stage.

A round of stage t sends and receives the shared blocks ψ, which are averaged as in FedAvg. After a stage's last round
every client receives the final ψ^(t) (phase ``finish``), and computes by itself its coefficient β_k^(t) and its next
example weights. Stage 1 without personal blocks is FedAvg.
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
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg

log = logging.getLogger("flwr")


class PPFE(FedAvg):
    """Progressive personalised federated ensembles."""

    messages = Messages("sum", features="later stages share fewer blocks, and the last one's are what is left")
    hyper: PPFEHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        s = self.settings
        spec = dataset_of(s)
        self._plan = plan(self.hyper, s, spec.shape, spec.classes, s.seed, codes=spec.codes)
        if s.patience or s.keep == "best":
            raise ConfigurationError("patience, keep: the stages of ppfe have lengths of their own; leave both out")
        if self.hyper.coefficients == "held-out":
            s.need_held_out("ppfe.coefficients")
        if self._plan.rounds != s.rounds:
            raise ConfigurationError(
                f"ppfe.stage-rounds: '{self.hyper.stage_rounds}' is {self._plan.rounds} rounds, but rounds = {s.rounds}"
            )
        self._first: Arrays = {}  # ψ^(1), where later stages start from it
        self._stage = 1  # stage of the present shared blocks
        self._stages: list[dict[str, float]] = []

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the shared blocks of the first stage."""
        return of_blocks(arrays, self._plan.shared(1))

    def is_final(self, server_round: int) -> bool:
        """Return whether ``server_round`` is the last round of a stage, to which ``final-participation`` applies."""
        return self._plan.is_last(server_round)

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Carry out a round of training; before it start a new stage, or after it end a stage, as the plan says.

        Stages also start and end if a cohort's privacy budgets are spent, and nothing is trained.
        """
        stage = self._plan.stage(round.number)
        if stage > self._stage:
            model = self._begin(stage, model)
        self._stage = stage
        with _as_far_as_paid(round.number):
            model = super().train_round(round, model)
        if self._plan.is_last(round.number):
            with _as_far_as_paid(round.number):
                outcome = round.ask("finish", self.clients.online(self.trainable()), send=model, reduce="sum")
                means = {name: outcome.mean(name, "clients") for name in ("beta", "largest_weight")}
                self._stages.append({"parameters_sent": sum(array.size for array in model.values()), **means})
        return model

    def _begin(self, stage: int, arrays: Arrays) -> Arrays:
        """Return the initial shared blocks of a stage; ``arrays`` are the final ones of the previous stage."""
        if not self._first:
            self._first = arrays
        self.step.forget()
        shared = self._plan.shared(stage)
        source = of_blocks(arrays, shared)
        if self.hyper.warm_start == "first":
            reduced = shared & self._plan.reduced(stage)
            source = of_blocks(source, shared - reduced) | of_blocks(self._first, reduced)
        return self._plan.convert(source, stage)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return FedAvg's state, ψ^(1), the present stage, and the report on finished stages."""
        arrays, facts = super().state()
        own = {f"velocity/{name}": array for name, array in arrays.items()}
        own |= {f"first/{name}": array for name, array in self._first.items()}
        return own, {**facts, "stage": self._stage, "stages": self._stages}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""

        def part(prefix: str) -> Arrays:
            return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}

        super().restore(part("velocity/"), facts)
        self._first, self._stage, self._stages = part("first/"), facts["stage"], list(facts["stages"])

    def report(self) -> dict[str, Any]:
        """Return for each stage the number of parameters sent, the clients' mean β and mean largest example weight."""
        return {"ppfe": {"stages": self._stages}}


@contextmanager
def _as_far_as_paid(server_round: int) -> Iterator[None]:
    """Context that ignores spent privacy budgets of all clients, so that a stage still starts and ends as planned."""
    try:
        yield
    except BudgetSpentError as error:
        log.warning("round %d is only partly carried out: %s", server_round, error)
