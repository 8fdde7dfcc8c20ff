"""FedDBE, client side (Zhang et al. 2023, Algorithm 1): each client learns a personal bias of representations.

All blocks but the last compute representations z; the last, the classifier, gets z + z_p, where z_p is a vector that
the client learns with the model and keeps (personalized representation bias memory). Minimised is
ℓ(z + z_p) + κ·MSE(z̄_i, z̄) (mean regularization), where z̄ is a consensus mean received beside the model, and
z̄_i ← (1 − μ)·z̄_i + μ·mean z, over the batches of a round, has its gradient from the present batch alone.

Phase ``representation`` receives θ₀, trains it for an epoch without all this, and returns the mean of the resulting
representations; phase ``train`` receives and returns the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.mixing import FedDBEHyper
from florilegium.models.blocks import body_and_classifier
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import VECTOR

BIAS = "bias"
"""Name of z_p in the client's state."""
MEAN = "mean"
"""Name of the sum that phase ``representation`` returns, and of the consensus mean beside the model."""


class FedDBEClient(BaseClient):
    """Trains the global model on representations whose personal bias it learns itself."""

    training = Training()
    needs = frozenset({VECTOR})

    needs_blocks = True
    needs_bias = True
    hyper: FedDBEHyper
    model: nn.Sequential

    @phase
    def representation(self, arrays: Arrays) -> Answer:
        """Return the sum of the training examples' representations, after an epoch of plain training."""
        set_arrays(self.model, arrays)
        self.descend(epochs=1)
        z = features(body_and_classifier(self.model)[0], self.data.train).flatten(1)
        return Answer({MEAN: z.sum(dim=0).cpu().numpy()}, len(z))

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the model together with z_p; keep z_p."""
        κ, μ, x, y = self.hyper.penalty, self.hyper.momentum, self.data.train.x, self.data.train.y
        if κ:
            consensus = torch.from_numpy(self.receive(arrays)[MEAN]).to(y.device)
        else:
            set_arrays(self.model, arrays)
        body, classifier = body_and_classifier(self.model)
        own = [self._bias()] if self.hyper.memory else []
        mean: Tensor | None = None  # z̄_i

        def objective(rows: Tensor) -> Tensor:
            nonlocal mean
            z = body(x[rows]).flatten(1)
            loss = self.loss(classifier(z + own[0] if own else z), rows)
            if not κ:
                return loss
            new = z.mean(dim=0)
            new = new if mean is None else (1 - μ) * mean + μ * new
            mean = new.detach()
            return loss + κ * mse_loss(new, consensus)

        loss = self.descend(model=nn.ModuleList([self.model, nn.ParameterList(own)]), objective=objective)
        if own:
            self.state.save({BIAS: own[0].detach().cpu().numpy()})
        return Answer(get_arrays(self.model), len(y), {"loss": loss})

    def personalise(self) -> bool:
        """Add z_p to representations; a client without one may learn it for ``finetune-epochs``."""
        if not self.hyper.memory:
            return super().personalise()
        kept, epochs = self.state.load(), self.settings.finetune_epochs
        if kept is None and not (epochs and self.data.labeled):
            return False
        body, classifier = body_and_classifier(self.model)
        weight, bias = classifier.parameters()
        own, W = self._bias(), weight.detach()
        if kept is None:
            y = self.data.train.y
            z = features(body, self.data.train).flatten(1)
            fixed = features(classifier, Examples(z, y))
            self.descend(
                model=nn.ParameterList([own]), examples=Examples(z, y), epochs=epochs,
                objective=lambda rows: self.loss(fixed[rows] + W @ own, rows),
            )  # fmt: skip
        with torch.no_grad():
            bias.add_(W @ own)  # the classifier of z + z_p, as one of z
        return True

    def _bias(self) -> nn.Parameter:
        """Return z_p (d,), at first 0."""
        weight, _ = body_and_classifier(self.model)[1].parameters()
        kept = self.state.load()
        return nn.Parameter(
            torch.zeros_like(weight[0]) if kept is None else torch.tensor(kept[BIAS], device=weight.device)
        )
