"""LoRA with matrices of the client's own rank, client side.

Receives the model with the first k rows of every A and columns of every B. Trains them in the one network of its
process, behind whose k-th row and column there are zeros, which training leaves as they are; returns what it received,
without corrections of frozen weights, which the server alone sets. With k = r this is FedAvg.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import GradientHook
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.capacity import RanksHyper
from florilegium.common.errors import RunError
from florilegium.models.low_rank import CORRECTION, A, B, padded, ranks_of, taken
from florilegium.models.parameters import Arrays, exchanged, trained


class RankedClient(BaseClient):
    """Trains and tests matrices of the rank that it receives, at most that of its device."""

    training = Training("gradients", stacked=True)
    hyper: RanksHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received matrices on the client's data; return them, and the mean loss."""
        answer = super().train(self._whole(arrays))
        own = {name: answer.arrays[name] for name in arrays if not name.startswith(CORRECTION)}
        return Answer(taken(own, self.ranks), answer.num_examples, answer.metrics)

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the received matrices, and the personal model made from them, as any client does."""
        return super().test(self._whole(arrays))

    def gradient_hook(self) -> GradientHook | None:
        """Return a hook that takes the noise of DP-SGD from what the client lacks; None if there is none."""
        lower = {layer: rank for layer, rank in self.ranks.items() if rank < self.settings.adapter.rank}
        if self.settings.privacy.unit != "example" or not lower:
            return None
        parameters = trained(self.model)

        @torch.no_grad()
        def hook(model: nn.Module, rows: Tensor) -> None:
            for layer, rank in lower.items():
                for lacking in ((A, slice(rank, None)), (B, (slice(None), slice(rank, None)))):
                    gradient = parameters[lacking[0] + layer].grad
                    if gradient is not None:
                        gradient[lacking[1]] = 0.0

        return hook

    def _whole(self, arrays: Arrays) -> Arrays:
        """Note the ranks of the received arrays; return the arrays in the shapes of the network.

        Raises:
            RunError: if the client's device does not hold matrices of this rank, or they do not fit the network.
        """
        self.ranks = ranks_of(arrays)
        asked, held = max(self.ranks.values(), default=0), math.ceil(self.capacity * self.settings.adapter.rank)
        if asked > held:
            raise RunError(f"asked for matrices of rank {asked}, this device holds {held}")
        try:
            return padded(arrays, {name: tensor.shape for name, tensor in exchanged(self.model).items()})
        except ValueError as error:
            raise RunError(f"method '{self.settings.method}': the network is another one: {error}") from error
