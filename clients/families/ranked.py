"""LoRA with matrices of the client's own rank, client side.

Receives the model with the first k rows of every A and columns of every B. Trains them in the one network of its
process, behind whose k-th row and column there are zeros, which training leaves as they are; returns what it received,
without corrections of frozen weights, which the server alone sets. With k = r this is FedAvg.
"""

from __future__ import annotations

import math

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.capacity import RanksHyper
from florilegium.common.errors import RunError
from florilegium.models.low_rank import CORRECTION, padded, ranks_of, taken
from florilegium.models.parameters import Arrays, exchanged

NOISY = "noise on gradients would fill the rows that a client of lower rank lacks (ranks.levels = 1)"
"""Why DP-SGD does not go with unequal ranks."""


class RankedClient(BaseClient):
    """Trains and tests matrices of the rank that it receives, at most that of its device."""

    hyper: RanksHyper

    @staticmethod
    def training(hyper: RanksHyper) -> Training:
        """Return that DP-SGD sees all gradients; that it goes with equal ranks alone."""
        return Training("gradients" if hyper.equal else NOISY, stacked=True)

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received matrices on the client's data; return them, and the mean loss."""
        answer = super().train(self._whole(arrays))
        own = {name: answer.arrays[name] for name in arrays if not name.startswith(CORRECTION)}
        return Answer(taken(own, ranks_of(arrays)), answer.num_examples, answer.metrics)

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the received matrices, and the personal model made from them, as any client does."""
        return super().test(self._whole(arrays))

    def _whole(self, arrays: Arrays) -> Arrays:
        """Return the received arrays in the shapes of the network.

        Raises:
            RunError: if the client's device does not hold matrices of this rank, or noise would raise it.
        """
        ranks, most = ranks_of(arrays), self.settings.adapter.rank
        highest = math.ceil(self.capacity * most)
        if max(ranks.values(), default=0) > highest:
            raise RunError(f"asked for matrices of rank {max(ranks.values())}, this device holds {highest}")
        if self.settings.privacy.unit == "example" and min(ranks.values(), default=most) < most:
            raise RunError(f"privacy.unit: 'example' needs rank {most}, received {min(ranks.values())}: {NOISY}")
        try:
            return padded(arrays, {name: tensor.shape for name, tensor in exchanged(self.model).items()})
        except ValueError as error:
            raise RunError(
                f"method '{self.settings.method}' received what does not fit its network: {error}"
            ) from error
