"""FedL2P, server side (Lee et al. 2023, algorithm 1): FedAvg of λ, the meta-nets that determine how clients fine-tune.

Sends λ and, beside it, the model θ_g, from ``init`` or from FedAvg in the first rounds. Receives λ. The result, with
which clients are also tested, is the λ with the lowest validation loss, averaged over the last loss of each client.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.fedl2p import make_meta_nets
from florilegium.clients.hyper.fedl2p import FedL2PHyper
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg

log = logging.getLogger("flwr")
BEST = "best."


class FedL2P(FedAvg):
    """FedAvg of meta-nets for a given model."""

    messages = Messages(
        "sum",
        features="it learns how to fine-tune features, not features",
        individual="the λ of the lowest validation loss is chosen, and the clients' losses are not protected",
    )
    hyper: FedL2PHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._best: Arrays = {}
        self._best_round: int | None = None
        self._best_loss: float | None = None
        self._last: dict[str, tuple[float, float]] = {}  # last loss and weight of every client that has returned one
        self._best_losses: dict[str, float] = {}  # the clients' last losses in the round of the best λ
        self._skipped = 0

    def server_part(self, arrays: Arrays) -> Arrays:
        """Keep the network's arrays as θ_g; return the initial λ."""
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
        spec = dataset_of(s)
        if spec.kind in ("characters", "words"):
            raise ConfigurationError(
                f"dataset: '{s.dataset}' has texts, whose mean and standard deviation LRNet cannot use"
            )
        self.beside = {BESIDE + name: array for name, array in arrays.items()}
        nets = make_meta_nets(
            spec.shape, self.task.outputs[0], s, self.hyper.initial_rate, s.seed, self.hyper.hidden_biases
        )
        if self.hyper.learn == "bn" and nets.bn is None:
            raise ConfigurationError(
                f"fedl2p.learn: '{s.model}' has no batch norm, so BNNet alone has nothing to learn"
            )
        if nets.bn is None:
            log.warning("model '%s' has no batch norm: LRNet alone is learned", s.model)
        self._best = get_arrays(nets)
        return self._best

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Train λ, or in the first ``pretraining-rounds`` rounds the model θ_g."""
        if round.number > self.hyper.pretraining_rounds:
            return super().train_round(round, model)
        network = {name.removeprefix(BESIDE): array for name, array in self.beside.items()}  # θ_g
        outcome = round.ask("pretrain", round.sample(), send=network, reduce="delta")
        self.beside = {
            BESIDE + name: (w + outcome.arrays[name] / outcome.weight).astype(w.dtype) for name, w in network.items()
        }
        return model

    def finished(self, server_round: int) -> bool:
        """Return whether the run ends early, with ``server_round``; never in the pretraining rounds."""
        return server_round > self.hyper.pretraining_rounds and super().finished(server_round)

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Keep the λ that was sent as the best one, if the clients' last validation losses are the lowest so far.

        The comparison uses the clients that had already returned a loss when the previous best λ was sent. While the
        last reply of any client has no loss, no λ is chosen. Devices that are offline are not counted.
        """
        self.count_skipped(outcome)
        losses = outcome.metrics.get("loss", np.full(len(outcome.clients), np.nan))
        losses = np.where(losses >= 0, losses, np.inf)  # skipping clients without a loss would bias the mean
        answers = zip(losses.tolist(), outcome.metrics["weight"].tolist(), strict=True)
        self._last |= zip(outcome.clients, answers, strict=True)
        heard = [client for client in self._last if client in self.clients]
        last, weight = np.array([self._last[client] for client in heard]).T
        lowest = np.array([self._best_losses.get(client, np.nan) for client in heard])
        loss = float(np.average(last, weights=weight)) if weight.any() else math.nan
        log.info("round %d: validation loss %.4f, of %d clients", round.number, loss, len(heard))
        if not math.isfinite(loss):
            return
        both = np.isfinite(lowest)
        if not (both & (weight > 0)).any() or np.average(last[both] - lowest[both], weights=weight[both]) < 0:
            self._best, self._best_round, self._best_loss = model, round.number, loss
            self._best_losses = dict(zip(heard, last.tolist(), strict=True))

    def count_skipped(self, outcome: Outcome) -> None:
        """Count the steps that clients have skipped because fine-tuning diverged."""
        if skipped := int(outcome.told("skipped").sum()):
            self._skipped += skipped
            log.warning("%d steps of meta-nets were skipped: fine-tuning gave NaN or infinity", skipped)

    @property
    def result(self) -> Arrays:
        """The λ with the lowest validation loss, and the model beside it."""
        return self._best | self.beside

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test with the best λ."""
        return super().measure(round, clients, self.result)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return FedAvg's state, the best λ, and the clients' validation losses."""
        arrays, facts = super().state()
        best = {BEST + name: array for name, array in self._best.items()}
        last = {client: (loss if math.isfinite(loss) else None, w) for client, (loss, w) in self._last.items()}
        chosen = {"best_round": self._best_round, "best_loss": self._best_loss, "best_losses": self._best_losses}
        return arrays | best, {**facts, **chosen, "last_losses": last, "skipped": self._skipped}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        self._best = {name.removeprefix(BEST): array for name, array in arrays.items() if name.startswith(BEST)}
        super().restore({name: array for name, array in arrays.items() if not name.startswith(BEST)}, facts)
        self._best_round, self._best_loss, self._best_losses = (facts[f"best_{x}"] for x in ("round", "loss", "losses"))
        self._last = {c: (math.inf if loss is None else loss, w) for c, (loss, w) in facts["last_losses"].items()}
        self._skipped = facts["skipped"]

    def report(self) -> dict[str, Any]:
        """Return the lowest validation loss, the round of its λ, and the number of skipped steps."""
        if self._best_round is None:
            log.warning(
                "no λ was chosen, the first one is the result: in every round some client's last reply had no loss"
            )
        chosen = {"validation_loss": self._best_loss, "round": self._best_round}
        return {"fedl2p": {**chosen, "skipped_steps": self._skipped}}
