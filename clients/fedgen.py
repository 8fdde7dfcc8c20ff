"""FedGen, client side (Zhu, Hong, Zhou 2021, Algorithm 1): local training, also on features from a generator.

Receives the model and, beside it, the generator G and the clients' mean class frequencies p̂. The head h is the last
block. Minimises ℓ + α·E ℓ(h(G(ε, y)), y) with y ~ p̂, + β·KL(h(G(ε, y)) ‖ f(x)) with the example's own class y; α and β
decay by a factor per round. Returns the model and its class frequencies. Before a test the model is that of FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import kl_div

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import Objective
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.classwise import FedGenHyper
from florilegium.common.memo import remembered
from florilegium.models.blocks import body_and_classifier
from florilegium.models.generator import FeatureGenerator
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.tasks.task import CLASSES

FREQUENCIES = "frequencies"
"""Name, beside the model, of the class frequencies p̂ (C,): sent by the server as means, by each client as its own."""


class FedGenClient(BaseClient):
    """Adds losses on generated features to local training."""

    training = Training()
    needs = frozenset({CLASSES})

    needs_blocks = True
    hyper: FedGenHyper
    model: nn.Sequential

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received model; return it and the client's class frequencies."""
        received, y = self.receive(arrays), self.data.train.y
        p̂ = received.pop(FREQUENCIES)
        loss = self.descend(objective=self._objective(p̂, received))
        own = torch.bincount(y, minlength=len(p̂)).cpu().numpy() / len(y)
        frequencies = {BESIDE + FREQUENCIES: own.astype(p̂.dtype)}
        return Answer(get_arrays(self.model) | frequencies, len(y), {"loss": loss})

    def _objective(self, p̂: NDArray[np.float32], arrays: Mapping[str, NDArray[np.float32]]) -> Objective | None:
        """Return the loss of a batch, given the generator's arrays; None, for ℓ alone, if the generator is not used."""
        x, y, hyper = self.data.train.x, self.data.train.y, self.hyper
        decay = hyper.decay ** (self.round - 1)
        α, β = hyper.generated_weight * decay, hyper.latent_weight * decay
        if self.round == 1 or not (α or β):  # in the first round G is untrained
            return None
        body, head = body_and_classifier(self.model)
        generator = _generator(len(p̂), hyper.noise_size, hyper.generator_width, len(arrays["output.bias"])).to(y.device)
        set_arrays(generator, arrays)
        generator.eval()
        frequencies, draws = torch.from_numpy(p̂), self.generator("generated")

        def objective(rows: Tensor) -> Tensor:
            logits, labels = head(body(x[rows])), y[rows]
            drawn = torch.multinomial(frequencies, len(rows), replacement=True, generator=draws).to(labels)
            with torch.no_grad():
                z, _ = generator.draw(torch.cat([drawn, labels]), draws)
            generated, alike = head(z).split(len(rows))
            divergence = kl_div(
                logits.log_softmax(dim=1), alike.detach().log_softmax(dim=1), reduction="batchmean", log_target=True
            )
            return self.loss(logits, rows) + α * self.task.loss(generated, drawn) + β * divergence

        return objective


@remembered(2)
def _generator(classes: int, noise: int, width: int, features: int) -> FeatureGenerator:
    """Return the generator that all clients of the process share; every client overwrites its contents."""
    return FeatureGenerator(classes, noise, width, features)
