"""PPFE for linear regression with exact local solutions, server side (Emrani et al., section 6.1).

A round is a stage. First, ``exchanges`` times, clients solve for every λ of the grid at once, and the server averages
the solutions. Of the λ that are no larger than the previous stage's, the one with the smallest error on the clients'
held-out examples is chosen. Averaging is repeated with this λ and all examples; then every client finishes the stage by
itself. Sends and receives a vector for each λ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.hyper.ppfe import PPFELinearHyper, parse_stages
from florilegium.clients.ppfe_linear import BIAS, WEIGHT
from florilegium.common.settings import parse_numbers
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages

Array = NDArray[np.float64]


class PPFELinear(CohortStrategy):
    """Stages of shared and personal ridge regression, with penalties that never increase."""

    messages = Messages("statistics", individual="the server learns every client's β, and nothing protects that")
    hyper: PPFELinearHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._plan = parse_stages(self.hyper.stages)
        self._stages: list[dict[str, Any]] = []
        self.hyper.check_with(self.settings)

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the initial model, ψ = 0."""
        return {name: np.zeros_like(array) for name, array in arrays.items()}

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Carry out stage t = ``round.number``; return the new ψ."""
        stage = self._plan[round.number - 1]
        ψ, penalties = model[WEIGHT].astype(np.float64), np.array(parse_numbers(self.hyper.penalties))
        if stage == "personal" and (earlier := [s["penalty"] for s in self._stages if s["stage"] == "personal"]):
            penalties = penalties[penalties <= earlier[-1]]
        if stage != "local":
            candidates = self._average(round, ψ, penalties, whole=False)
            personal = stage == "personal"
            errors = self._ask("validate", "errors", penalties.shape, round, candidates, penalties, personal=personal)
            penalties = penalties[[int(errors.argmin())]]
            ψ = self._average(round, ψ, penalties, whole=True)
        done = round.ask(
            "finish", self.clients.online(self.trainable()), send=_message(ψ, penalties), reduce="sum", stage=stage
        )
        chosen = {"penalty": float(penalties[0])} if stage != "local" else {}
        self._stages.append({"stage": stage, **chosen, "beta": float(np.mean(done.told("beta")))})
        return {WEIGHT: ψ.astype(np.float32), BIAS: model[BIAS]}

    def _average(self, round: Round, ψ: Array, penalties: Array, *, whole: bool) -> Array:
        """Return the averaged solutions (G, d), one for each penalty, starting from ψ (1, d)."""
        shared: Array = np.repeat(ψ, len(penalties), axis=0)
        for _ in range(1 if self._plan[round.number - 1] == "averaged" else self.hyper.exchanges):
            shared = self._ask("solve", "solutions", shared.shape, round, shared, penalties, whole=whole)
        return shared

    def _ask(
        self, phase: str, name: str, shape: tuple[int, ...], round: Round, shared: Array, penalties: Array,
        **arguments: Any,
    ) -> Array:  # fmt: skip
        """Have the round's cohort carry out ``phase``; return the weighted mean of the clients' array ``name``."""
        outcome = round.ask(
            phase, round.sample(), send=_message(shared, penalties), reduce="sum", shapes={name: shape}, **arguments
        )  # fmt: skip
        mean: Array = outcome.arrays[name] / max(outcome.weight, 1.0)
        return mean

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the report on the finished stages."""
        return {}, {"stages": self._stages}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the report on the finished stages."""
        self._stages = list(facts["stages"])

    def report(self) -> dict[str, Any]:
        """Return for each stage its kind, λ, and the clients' mean β."""
        return {"ppfe": {"stages": self._stages}}


def _message(shared: Array, penalties: Array) -> Arrays:
    return {"shared": shared, "penalties": penalties}
