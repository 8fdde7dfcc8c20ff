"""FedL2P, server side (Lee et al. 2023, algorithm 1): FedAvg of λ, the meta-nets that say how a client fine-tunes.

Sent: λ, and beside it the model θ_g, which ``init`` names or the first rounds make. Received: λ. The λ of the lowest
validation loss is the result, and what clients are tested with; every client counts with the last loss it answered.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from clients.fedl2p import make_meta_nets
from clients.hyper import FedL2PHyper
from clients.wire import BESIDE, pack
from common.errors import ConfigurationError
from models.parameters import Arrays, get_arrays
from partitions.datasets import find_spec
from strategies.exchange import Outcome
from strategies.fedavg import FedAvg

log = logging.getLogger("flwr")
BEST = "best."
Losses = dict[str, tuple[float, float]]
"""Clients' validation losses, each with its client's weight."""


class FedL2P(FedAvg):
    """FedAvg of meta-nets for a given model."""

    hyper: FedL2PHyper

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._best: Arrays = {}
        self._best_round: int | None = None
        self._last: Losses = {}  # of the clients heard so far
        self._lowest: Losses = {}  # what they are compared with: those of the best λ
        self._skipped = 0

    @classmethod
    def transfer_gap(cls, hyper: Any) -> str:
        """Return what is missing."""
        return "it learns how to fine-tune a model, which stays as it is; transfer the run that made it"

    def privacy_gap(self) -> str:
        """Return what is not protected."""
        return "the λ of the lowest validation loss is chosen, and the clients' losses are not protected"

    def server_part(self, arrays: Arrays) -> Arrays:
        """Keep the network's arrays as θ_g; return the first λ."""
        s = self.settings
        if not s.validation_fraction or not s.finetune_epochs:
            raise ConfigurationError(
                f"method '{s.method}' learns from validation losses after fine-tuning: set validation-fraction and "
                f"finetune-epochs (found: {s.validation_fraction:g}, {s.finetune_epochs})"
            )
        if not s.init and not self.hyper.pretraining_rounds:
            raise ConfigurationError(
                f"method '{s.method}' fine-tunes a trained model: name a run with init, or set "
                "fedl2p.pretraining-rounds"
            )
        if self.hyper.pretraining_rounds >= s.rounds:
            raise ConfigurationError(
                f"fedl2p.pretraining-rounds: {self.hyper.pretraining_rounds} of rounds = {s.rounds} leave none to learn"
            )
        if find_spec(s.dataset).kind in ("characters", "words"):
            raise ConfigurationError(f"dataset: '{s.dataset}' has texts, whose mean and deviation say nothing to LRNet")
        self.beside = {BESIDE + name: array for name, array in arrays.items()}
        nets = make_meta_nets(s.dataset, s.model, self.hyper.initial_rate, s.seed, self.hyper.hidden_biases)
        if self.hyper.learn == "bn" and nets.bn is None:
            raise ConfigurationError(
                f"fedl2p.learn: '{s.model}' has no batch norm, so that BNNet alone has nothing to do"
            )
        if nets.bn is None:
            log.warning("model '%s' has no batch norm: LRNet alone is learned", s.model)
        self._best = get_arrays(nets)
        return self._best

    def train_round(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> ArrayRecord:
        """Learn λ; in the first rounds, where asked for, the model."""
        if server_round > self.hyper.pretraining_rounds:
            return super().train_round(server_round, arrays, grid)
        model = {name.removeprefix(BESIDE): array for name, array in self.beside.items()}
        cohort = self.sample(server_round)
        outcome = self.exchange(grid, cohort, server_round, "pretrain", reduce="delta", arrays=pack(model))
        self.beside = {
            BESIDE + name: (w + outcome.arrays[name] / outcome.weight).astype(w.dtype) for name, w in model.items()
        }
        return arrays

    def finished(self, server_round: int) -> bool:
        """Return whether the run may end early; not before there is something to learn from."""
        return server_round > self.hyper.pretraining_rounds and super().finished(server_round)

    def learn(self, outcome: Outcome) -> None:
        """Remember the λ that was sent, if the clients' last validation losses are the lowest so far.

        A client that is heard for the first time counts alike for this λ and the best one before. One whose last answer
        had no loss keeps any λ from being chosen, until it has answered again or its device has gone.
        """
        self.count_skipped(outcome)
        losses = outcome.metrics.get("loss", np.full(len(outcome.clients), np.nan))
        losses = np.where(losses >= 0, losses, np.inf)  # without clients that have none the mean would flatter λ
        answers = zip(losses.tolist(), outcome.metrics["weight"].tolist(), strict=True)
        heard = {c: last for c, last in self._last.items() if c in self.roster.clients or math.isfinite(last[0])}
        self._last = heard | dict(zip(outcome.clients, answers, strict=True))
        loss = mean(self._last)
        log.info("round %d: validation loss %.4f, of %d clients", self._round, loss, len(self._last))
        if not math.isfinite(loss):
            return
        self._lowest = {client: self._lowest.get(client, last) for client, last in self._last.items()}
        if self._best_round is None or loss < mean(self._lowest):
            self._lowest, self._best, self._best_round = self._last, self._model, self._round

    def count_skipped(self, outcome: Outcome) -> None:
        """Count the steps that clients have left out, as fine-tuning had diverged."""
        if skipped := int(outcome.metrics["skipped"].sum()):
            self._skipped += skipped
            log.warning("%d steps of meta-nets were skipped: fine-tuning gave NaN or infinity", skipped)

    @property
    def result(self) -> ArrayRecord:
        """The λ of the lowest validation loss, and the model beside it."""
        return pack(self._best | self.beside)

    def measure(
        self, clients: Sequence[str], server_round: int, arrays: ArrayRecord, grid: Grid, config: ConfigRecord
    ) -> Outcome:
        """Have clients test with the best λ."""
        return super().measure(clients, server_round, self.result, grid, config)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """FedAvg's state, and the best λ."""
        arrays, facts = super().state()
        best = {BEST + name: array for name, array in self._best.items()}
        last = {client: (loss if math.isfinite(loss) else None, w) for client, (loss, w) in self._last.items()}
        judged = {"best_round": self._best_round, "last_losses": last, "lowest_losses": self._lowest}
        return arrays | best, {**facts, **judged, "skipped": self._skipped}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Take it back."""
        self._best = {name.removeprefix(BEST): array for name, array in arrays.items() if name.startswith(BEST)}
        super().restore({name: array for name, array in arrays.items() if not name.startswith(BEST)}, facts)
        self._best_round, self._skipped = facts["best_round"], int(facts["skipped"])
        self._last = {c: (math.inf if loss is None else loss, w) for c, (loss, w) in facts["last_losses"].items()}
        self._lowest = {client: (loss, w) for client, (loss, w) in facts["lowest_losses"].items()}

    def report(self) -> dict[str, Any]:
        """The lowest validation loss, the round that its λ was sent in, and the steps that were skipped."""
        if self._best_round is None:
            log.warning(
                "no λ was chosen, the first one is the result: in every round some client's last answer had no loss"
            )
        lowest = mean(self._lowest) if self._lowest else None
        return {"fedl2p": {"validation_loss": lowest, "round": self._best_round, "skipped_steps": self._skipped}}


def mean(losses: Losses) -> float:
    """Return the weighted mean of the losses of one client or more."""
    pairs = np.array([*losses.values()])
    return float(np.average(pairs[:, 0], weights=pairs[:, 1]))
