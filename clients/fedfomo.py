"""FedFomo, client side (Zhang et al. 2021, section 3.2, equations 3 to 5): a step towards the models that help.

Receives models θ_n of other clients. θ_i is the client's model before its last training; the model after it counts
among the θ_n. The client computes w_n = (L(θ_i) − L(θ_n)) / ‖θ_n − θ_i‖, where L is its loss on examples that it does
not train on, and moves to θ_i + Σ_n w̃_n·(θ_n − θ_i) with w̃_n = max(w_n, 0) / Σ_m max(w_m, 0). Then it trains, and
returns its model and the w_n of the received ones. A client without a model takes the first received one, the mean of
all, as θ_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import evaluate
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import BESIDE, of_network
from florilegium.clients.families.banked import BankedClient
from florilegium.clients.hyper.bank import FedFomoHyper
from florilegium.common.seeds import torch_generator
from florilegium.models.parameters import Arrays, distance, get_arrays, part, set_arrays, without_statistics
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import LOSS

AFFINITY = "affinity"
"""Name of the array (M,) with the weights w_n of the received models, which a client returns with its own."""
BEFORE = "before"
"""Part of a client's state: the model from which its last training started."""


class FedFomoClient(BankedClient):
    """Combines received models by how much they improve on its own, then trains."""

    training = Training(stacked=True)
    hyper: FedFomoHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Combine the received models with the client's own; train; return the model and the weights."""
        received = _models(self.receive(arrays))
        own = self.state.load()
        start = self.state.load(BEFORE) or received[0]  # θ_i
        w = self.weigh(start, received if own is None else [*received, own])
        θ = combined(start, received if own is None else [*received, own], w)
        self.state.save(θ, BEFORE)
        set_arrays(self.model, θ)
        train, _ = self._split
        loss = self.descend(examples=train)
        trained = get_arrays(self.model)
        self.state.save(trained)
        return Answer(trained | {AFFINITY: w[: len(received)]}, len(train), {"loss": loss})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the mean of all models, and the client's own, which new clients combine from received models."""
        self._received = _models(part(arrays, BESIDE))
        return super().test(of_network(arrays))

    def personalise(self) -> bool:
        """Take the client's own model; if it has none, combine the received ones, and fine-tune the combination."""
        if not self._received or self.state.load() is not None:
            return super().personalise()
        start = get_arrays(self.model)
        set_arrays(self.model, combined(start, self._received, self.weigh(start, self._received)))
        super().personalise()
        return True

    def weigh(self, start: Arrays, models: Sequence[Arrays]) -> NDArray[np.float64]:
        """Return w_n for each of ``models`` (n,), compared with ``start``.

        It is 0 for a model that is equal to ``start``, and for one without a finite loss, which would spoil all others.
        """
        loss, w = self._loss(start), np.zeros(len(models))
        for n, model in enumerate(models):
            gain, apart = loss - self._loss(model), distance(without_statistics(model), start)
            if math.isfinite(gain) and apart > 0:
                w[n] = gain / apart
        return w

    def _loss(self, model: Arrays) -> float:
        set_arrays(self.model, model)
        return evaluate(self.model, self._split[1], self.task)[LOSS]

    @cached_property
    def _split(self) -> tuple[Examples, Examples]:
        """The examples to train on and those to compare models on, the same in every round.

        If the share amounts to less than one example, models are compared on the training examples.
        """
        generator = torch_generator(self.settings.seed, "fedfomo", self.client_id)
        data = self.data.hold_back(self.hyper.validation_share, generator, self.task)
        return data.train, data.validation if len(data.validation) else data.train


def combined(start: Arrays, models: Sequence[Arrays], w: NDArray[np.float64]) -> Arrays:
    """Return θ_i + Σ_n w̃_n·(θ_n − θ_i) for θ_i = ``start``, in double precision; θ_i itself if no w_n is positive."""
    positive = np.maximum(w, 0.0)
    if not positive.any():
        return start
    share = positive / positive.sum()
    result = {}
    for name, array in start.items():
        total = np.zeros(array.shape)
        for n in np.flatnonzero(share).tolist():
            total += share[n] * models[n][name]
        result[name] = total.astype(array.dtype)
    return result


def _models(stacked: Arrays) -> list[Arrays]:
    """Return the models that are stacked along the arrays' first axes; none if there are no arrays."""
    count = len(next(iter(stacked.values()))) if stacked else 0
    return [{name: array[n] for name, array in stacked.items()} for n in range(count)]
