"""FedGTST, server side (Ma et al. 2024, algorithm 1): FedAvg whose clients also exchange gradient norms.

Sends the model, the guide norm Ĵ, and the ids of the clients that also train without the regulariser, a random share
of the cohort. Receives updates, and a gradient norm from every client. The next Ĵ is the largest of these norms, or of
those after training without the regulariser (``fedgtst.guide``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.clients.hyper.federated import FedGTSTHyper
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays, shapes_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg

log = logging.getLogger("flwr")

LARGEST = 1e15
"""Norms from this value on are not used as guide norm, since their square nearly overflows in single precision."""


class FedGTST(FedAvg):
    """FedAvg whose clients regularise their gradient norms towards a common guide norm."""

    messages = Messages("sum", features="whole", individual="the guide norm is the largest that a client has sent")
    hyper: FedGTSTHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._course: list[dict[str, float]] = []

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Carry out a training round; with ``fedgtst.diagnose``, first measure the variance of clients' gradients."""
        self._course.append({"round": round.number})
        if self.hyper.diagnose:
            cohort = round.sample()
            outcome = round.ask("gradient", cohort, send=model, reduce="sum", shapes=shapes_of(model))
            round = round.keeping(cohort)
            count = len(outcome.clients)
            mean_square = sum(float(np.square(total / count).sum()) for total in outcome.arrays.values())
            self._course[-1]["vector_variance"] = float(np.mean(outcome.told("square"))) - mean_square
        return super().train_round(round, model)

    def train_arguments(self, round: Round, cohort: Sequence[str]) -> dict[str, Any]:
        """Return Ĵ, and the ids of the clients that also train without the regulariser; nothing in round 1."""
        if len(self._course) < 2:
            return {}
        rng = numpy_generator(self.settings.seed, "standard", round.number)
        count = min(len(cohort), max(1, int(np.rint(self.hyper.standard_share * len(cohort)))))
        chosen = rng.choice(len(cohort), size=count if self.hyper.standard_share else 0, replace=False)
        return {"guide": self._course[-2]["guide"], "standard": [cohort[i] for i in sorted(chosen)]}

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Compute the next Ĵ from the received norms."""
        norms = outcome.told("norm")
        candidates = outcome.told("standard_norm") if self.hyper.guide == "standard" else norms
        usable = candidates[candidates < LARGEST]
        if len(usable) < len(candidates):
            log.warning("norms of %g and more are not used as guide norm: training diverges", LARGEST)
        before = self._course[-2]["guide"] if len(self._course) > 1 else 0.0
        entry = {"norm": float(norms.mean()), "variance": float(norms.var())}
        entry["guide"] = float(usable.max()) if len(usable) else before
        self._course[-1] |= entry
        log.info("gradient norms: mean %(norm).4g, variance %(variance).4g, guide %(guide).4g", entry)

    def check_roster(self) -> None:
        super().check_roster()
        if self.hyper.diagnose and self.clients.deployed:
            raise ConfigurationError("fedgtst.diagnose: devices send their norms alone; it is for simulations")

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return FedAvg's state, and the norms of all rounds so far."""
        arrays, facts = super().state()
        return arrays, {**facts, "course": self._course}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore FedAvg's state and the norms."""
        super().restore(arrays, facts)
        self._course = list(facts["course"])

    def report(self) -> dict[str, Any]:
        """Return mean and variance of the norms, and the guide norm, for every round."""
        return {"fedgtst": {"course": self._course}}
