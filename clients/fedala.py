"""FedALA, client side (Zhang et al. 2023, Algorithm 1): mix the global model into the local one, element by element.

Receives the global model Θ. The last p blocks of the model that the client trains are Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i,
where Θ_i are those blocks after its last training and W_i ∈ [0, 1] are weights, at first 1; the other blocks are Θ's.
Before training, W_i ← W_i − η∇_{W_i} ℓ(Θ̂_i), clipped to [0, 1], on a random share s of the client's examples: until
convergence when the client has a Θ_i for the first time, and one epoch later. Returns the trained model, as in FedAvg;
Θ_i and W_i are kept. Before a test the client mixes in the same way.

Strategy: FedAvg (``strategies/fedavg.py``).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.training import batches, features, gradients, shuffled
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.mixing import FedALAHyper
from florilegium.models.blocks import block_names, block_of, cut
from florilegium.models.parameters import Arrays, trained, whole
from florilegium.partitions.clientdata import Examples

WEIGHTS = "weights"
"""Part of the client's state that holds W_i; the other part holds Θ_i."""
WINDOW = 10
"""Number of epochs whose losses decide whether W_i has converged."""


class FedALAClient(BaseClient):
    """Starts its training from a learned mixture of the global model and its own."""

    training = Training("the weights of its mixture are made of all examples together", stacked=True)
    hyper: FedALAHyper
    model: nn.Sequential

    def local_training(self) -> float:
        """Mix, train, and keep W_i and the last p blocks."""
        if (weights := self._mix()) is not None:
            self.state.save(weights, WEIGHTS)
        loss = self.descend()
        self.state.save({name: parameter.detach().cpu().numpy().copy() for name, parameter in self._last().items()})
        return loss

    def personalise(self) -> bool:
        """Mix with a W_i that is learned for this test alone; then fine-tune for ``finetune-epochs``."""
        mixed = self._mix() is not None
        return super().personalise() or mixed

    # --------------------------------------------------------------------------------------- details

    def _blocks(self) -> list[str]:
        """Return the names of the last p blocks."""
        return block_names(whole(self.model))[-self.hyper.blocks :]

    def _last(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the last p blocks by their names in the network, without frozen ones."""
        blocks = self._blocks()
        return {name: parameter for name, parameter in trained(self.model).items() if block_of(name) in blocks}

    def _mix(self) -> Arrays | None:
        """Replace the last p blocks of the received model by the mixture; return W_i.

        None, and no mixture, for a client without Θ_i, and if these blocks are frozen.
        """
        kept, known = self.state.load(), self.state.load(WEIGHTS)
        if not kept:
            return None
        data, last, η = self.data.train, self._last(), self.hyper.weight_learning_rate
        received = {name: parameter.detach().clone() for name, parameter in last.items()}  # Θ
        own = {name: torch.from_numpy(kept[name]).to(data.y.device) for name in last}  # Θ_i
        W = {name: torch.ones_like(array) for name, array in own.items()}
        if known is not None:
            W = {name: torch.tensor(known[name], device=data.y.device) for name in last}
        generator = self.generator("weights")
        chosen = shuffled(data, generator)[: math.ceil(self.hyper.sample * len(data))]
        examples = data.rows(chosen.to(data.y.device))
        body, head = cut(self.model, self._blocks())
        mapped = Examples(features(body, examples), examples.y, weights=examples.weights)  # the body is Θ's throughout
        head.eval()

        def mix() -> None:
            with torch.no_grad():
                for name, parameter in last.items():
                    parameter.copy_(torch.lerp(own[name], received[name], W[name]))

        def epoch() -> float:
            """Learn W_i on each example once; return the mean loss."""
            total = torch.zeros((), device=mapped.y.device)
            for rows in batches(mapped, self.settings.batch_size, generator):
                loss = self.loss(head(mapped.x[rows]), rows, mapped)
                for name, slope in zip(last, gradients(loss, [*last.values()]), strict=True):
                    W[name].sub_(η * slope * (received[name] - own[name])).clamp_(0, 1)
                mix()
                total += loss.detach() * len(rows)
            return float(total) / len(mapped)

        mix()
        losses = [epoch()]
        while known is None and len(losses) < self.hyper.first_epochs and not self._converged(losses):
            losses.append(epoch())
        return {name: weight.cpu().numpy() for name, weight in W.items()}

    def _converged(self, losses: list[float]) -> bool:
        return len(losses) >= WINDOW and float(np.std(losses[-WINDOW:])) < self.hyper.tolerance
