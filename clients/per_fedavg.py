"""Per-FedAvg, client side (Fallah et al. 2020, Algorithm 1): train a model that performs well after adaptation.

For each batch D: w̃ = w − α∇f(w; D), then w ← w − β(I − α∇²f(w; D''))∇f(w̃; D') with two more batches D', D''. The term
with the second derivative is ignored ("first-order"), or is (∇f(w + δg; D'') − ∇f(w − δg; D''))/2δ with g = ∇f(w̃; D')
("hessian-free"). Before a test a client adapts the received model for ``finetune-epochs`` by plain steps of size α.

Strategy: FedAvg (``strategies/fedavg.py``); only the clients' steps differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.training import GradientHook, Group, batches, gradient_of, gradients, least_batch
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.personal import PerFedAvgHyper
from florilegium.models.parameters import trained


class PerFedAvgClient(BaseClient):
    """Trains a model that is a good starting point for adaptation."""

    training = Training("it has losses and steps of its own")
    uses_finetuning = "always"
    hyper: PerFedAvgHyper

    def gradient_hook(self) -> GradientHook:
        """Return a hook that replaces ∇f(w; D) by the gradient after adaptation."""
        stream = self._endless_batches()
        α, δ = self.hyper.adaptation_rate, self.hyper.difference

        def hook(model: nn.Module, rows: Tensor) -> None:
            parameters = list(trained(model).values())
            w = [parameter.detach().clone() for parameter in parameters]

            def gradient(shift: Sequence[Tensor], step: float, batch: Tensor) -> list[Tensor]:
                """Return ∇f(w + step·shift) on a batch."""
                with torch.no_grad():
                    for parameter, own, direction in zip(parameters, w, shift, strict=True):
                        parameter.copy_(torch.add(own, direction, alpha=step))
                loss = self.loss(model(self.data.train.x[batch]), batch)
                return gradients(loss, parameters)

            first = [gradient_of(parameter) for parameter in parameters]  # ∇f(w; D)
            g = gradient(first, -α, next(stream))
            if self.hyper.hessian == "hessian-free":
                batch = next(stream)
                above, below = gradient(g, δ, batch), gradient(g, -δ, batch)
                g = [own - α * (a - b) / (2 * δ) for own, a, b in zip(g, above, below, strict=True)]
            with torch.no_grad():
                for parameter, own, result in zip(parameters, w, g, strict=True):
                    parameter.copy_(own)
                    parameter.grad = result

        return hook

    def personalise(self) -> bool:
        """Adapt the received model for ``finetune-epochs`` by steps θ ← θ − α∇f(θ), if the client has labels."""
        epochs = self.settings.finetune_epochs
        if not epochs or not self.data.labeled:
            return False
        with self.finetuning():
            group = Group(list(self.model.parameters()), self.hyper.adaptation_rate, decays=False, plain=True)
            self.descend(epochs=epochs, groups=[group])
        return True

    def _endless_batches(self) -> Iterator[Tensor]:
        generator = self.generator("further batches")
        least = least_batch(self.model, self.data.train)
        while True:
            size, bucket = self.settings.batch_size, self.settings.bucket
            yield from batches(self.data.train, size, generator, least, bucket=bucket)
