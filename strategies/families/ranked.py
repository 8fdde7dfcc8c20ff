"""LoRA with unequal ranks, server side: clients return their own matrices, and the server combines their products.

A client of capacity c has rank ⌈c·r⌉, with r = ``adapter.rank``, and is sent so many rows of each A and columns of each
B. All clients scale their updates alike, s·B·A with s = α/r, so that products of different rank are of one kind. All
other arrays are averaged with FedAvg's weights p_k.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.hyper.capacity import RanksHyper
from florilegium.common.errors import ConfigurationError
from florilegium.models.low_rank import CORRECTION, A, B, layers_of, mean, taken
from florilegium.models.parameters import Arrays, num_bytes, shapes_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.server_step import refuse_optimizers
from florilegium.strategies.exchange.exchange import Outcome, joined
from florilegium.strategies.exchange.requests import Group
from florilegium.strategies.families.sized import Sized

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Trained:
    """What the clients of a round return.

    Attributes:
        clients: their ids.
        weights: p_k / Σ p_k of each.
        arrays: the arrays of each, of its own rank.
        numbers: what they report, one number for each.
    """

    clients: list[str]
    weights: list[float]
    arrays: list[Arrays]
    numbers: Mapping[str, NDArray[np.float64]]


class Ranked(Sized):
    """Base strategy of methods that combine clients' A and B in another way than by their means.

    Attributes:
        layers: the layers with LoRA.
    """

    column: ClassVar[str] = "rank"
    block: ClassVar[str] = "ranks"
    corrects: ClassVar[bool] = False
    """Whether the method adds to the frozen weights of layers."""
    hyper: RanksHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        refuse_optimizers(self.settings, "computes the new matrices from clients' products")
        names = self._sent
        self.layers = sorted(layers_of(names))
        if not self.layers:
            raise ConfigurationError(
                f"adapter.kind, adapter.fixed: method '{self.settings.method}' combines LoRA's A and B, both of which "
                "must be trained; set adapter.kind = 'lora' and adapter.fixed = ''"
            )
        if self.corrects and not any(name.startswith(CORRECTION) for name in names):
            raise ConfigurationError(
                f"adapter.correction: method '{self.settings.method}' adds to the weights of layers; set it to true"
            )

    @property
    def _sent(self) -> Arrays:
        start = self.federation.start
        return start.built.rest(start.whole)

    # ----------------------------------------------------------------------------------------- ranks

    def size(self, client: str) -> float:
        """Return a client's rank, ⌈c·r⌉."""
        return math.ceil(self.capacity(client) * self.settings.adapter.rank)

    def ranks(self, model: Arrays, rank: int) -> dict[str, int]:
        """Return the rank of each layer for a client of this rank."""
        return dict.fromkeys(self.layers, rank)

    def network_bytes(self, client: str) -> int:
        """Return the size of what a simulated client trains, with matrices of its rank."""
        sent = self._sent
        return num_bytes(taken(sent, dict.fromkeys(self.layers, int(self.size(client)))))

    def _group(self, clients: Sequence[str], model: Arrays, rank: float, *, trains: bool = False) -> Group:
        sent = taken(model, self.ranks(model, int(rank)))
        own = {name: array for name, array in sent.items() if not name.startswith(CORRECTION)} if trains else {}
        return Group(clients, sent, shapes=shapes_of(own), base=(lambda client: own) if trains else None)

    # -------------------------------------------------------------------------------------- training

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have the cohort train matrices of its ranks; return the model that the method makes of them."""
        cohort = round.sample()
        sizes = self.cohorts(cohort)
        groups = [self._group(members, model, rank, trains=True) for rank, members in sizes.items()]
        outcomes = round.ask_groups("train", groups, reduce="stack")
        whole = round.require(joined(outcomes), cohort.wanted)
        log.info("round %d: loss %.4g, clients %d", round.number, whole.mean("loss"), len(whole.clients))
        trained = self._trained(outcomes, whole)
        pairs = {kind + layer for layer in self.layers for kind in (A, B)}
        others = trained.arrays[0].keys() - pairs
        new = {name: mean(trained.arrays, name, trained.weights, model[name].shape) for name in others}
        new |= self.combined(round, model, trained)
        return {name: new.get(name, array).reshape(array.shape).astype(array.dtype) for name, array in model.items()}

    @abstractmethod
    def combined(self, round: Round, model: Arrays, trained: Trained) -> Mapping[str, NDArray[np.float64]]:
        """Return the new matrices A and B of all layers, of rank r, and corrections if the method sets these."""

    def _trained(self, outcomes: Sequence[Outcome], whole: Outcome) -> Trained:
        dues = self.clients.dues(whole.clients)
        weights = [
            min(float(told), dues[client])
            for client, told in zip(whole.clients, whole.metrics["weight"], strict=True)
        ]  # fmt: skip
        arrays = [
            {name: stack[row] for name, stack in outcome.arrays.items()}
            for outcome in outcomes
            for row in range(len(outcome.clients))
        ]
        return Trained(whole.clients, [weight / sum(weights) for weight in weights], arrays, whole.metrics)

    # ------------------------------------------------------------------------------------ evaluation

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have each client test the model with matrices of its rank."""
        groups = [self._group(members, model, rank) for rank, members in self.by_size(clients).items()]
        outcomes = round.ask_groups("test", groups, reduce="sum", evaluation=True)
        return round.require(joined(outcomes, clients), len(clients))
