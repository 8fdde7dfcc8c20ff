"""GPFL, client side (Zhang et al. 2023): learn features for the federation and for the client at the same time.

Receives the body and, beside it, an embedding E_c for each class and the valve V. The valve turns the features h of an
example into f^G = V(h, g) and f^P = V(h, p), with the conditions g, the mean of the received embeddings, and p, their
mean weighted by the client's class frequencies. The client minimises the cross-entropy of its own head on f^P, plus
that of the cosines between f^G and the embeddings (angle-level guidance), plus λ·‖f^G − received E_y‖ (magnitude-level
guidance), with weight decay μ on embeddings and valve. It returns body, embeddings and valve, and keeps its head. A
client without a head predicts the class whose embedding has the smallest angle with f^G.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import of_network
from florilegium.clients.families.accompanied import beside
from florilegium.clients.hyper.conditional import GPFLHyper
from florilegium.common.memo import remembered
from florilegium.models.blocks import block_names, of_blocks
from florilegium.models.conditioned import Guidance, Guided, Nearest
from florilegium.models.parameters import Arrays, get_arrays, set_arrays, whole
from florilegium.tasks.task import CLASSES


class GPFLClient(BaseClient):
    """Trains body, embeddings and valve for the federation, and a head of its own."""

    training = Training("its losses are of all labels together")
    needs = frozenset({CLASSES})

    needs_blocks = True
    hyper: GPFLHyper
    model: nn.Sequential

    @classmethod
    def own_start(cls, hyper: GPFLHyper) -> str:
        """Return what starts from the seed even with ``init``."""
        return "the clients' heads"

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train body, embeddings, valve and head; keep the head, return the others."""
        guidance = self._received(arrays)
        loss = self._fit(self._personal(guidance), guidance)
        trained = get_arrays(self.model)
        self.state.save({name: array for name, array in trained.items() if name not in arrays})
        body = {name: array for name, array in trained.items() if name in arrays}
        return Answer(body | beside(guidance), len(self.data.train), {"loss": loss})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the classification by embeddings, and the client's own head if it has one."""
        self._guidance = guidance = self._received(arrays)
        embeddings = guidance.embeddings
        self.predictor = Guided(self.model, guidance.valve, embeddings.detach().mean(dim=0), Nearest(embeddings))
        return super().test(of_network(arrays))

    def personalise(self) -> bool:
        """Predict with the client's own head, if it has one; fine-tune, if asked to, as in a round."""
        epochs = self.settings.finetune_epochs if self.data.labeled else 0
        if not epochs and self.state.load() is None:
            return False
        self.predictor = model = self._personal(self._guidance)
        if epochs:
            with self.finetuning():
                self._fit(model, self._guidance, epochs=epochs)
        return True

    # --------------------------------------------------------------------------------------- details

    def _received(self, arrays: Arrays) -> Guidance:
        """Load the received body; return the received embeddings and valve."""
        own = self.receive(arrays)
        guidance = _guidance(*own["embeddings"].shape).to(self.data.train.y.device)
        set_arrays(guidance, own)
        return guidance

    def _personal(self, guidance: Guidance) -> Guided:
        """Return the client's model: the body, the valve with the condition p, and its head, at first that of θ₀."""
        embeddings = guidance.embeddings.detach()
        set_arrays(self.model, self.state.load() or of_blocks(self.initial, block_names(whole(self.model))[-1:]))
        shares = one_hot(self.data.train.y, len(embeddings)).float().mean(dim=0)
        return Guided(self.model, guidance.valve, shares @ embeddings)

    def _fit(self, model: Guided, guidance: Guidance, *, epochs: int | None = None) -> float:
        """Train the client's model, and the embeddings, on the objective; return the mean loss."""
        x, y, λ, μ = self.data.train.x, self.data.train.y, self.hyper.magnitude, self.hyper.decay
        received = guidance.embeddings.detach().clone()
        nearest, g = Nearest(guidance.embeddings), received.mean(dim=0)

        def objective(rows: Tensor) -> Tensor:
            h, classes = model.features(x[rows]), y[rows]
            f = guidance.valve(h, g)
            loss = self.loss(model.classify(h), rows) + self.loss(nearest(f), rows)
            return loss + λ * torch.linalg.vector_norm(f - received[classes], dim=1).mean()

        def decay(network: nn.Module, rows: Tensor) -> None:
            for parameter in guidance.parameters():
                assert parameter.grad is not None
                parameter.grad.add_(parameter.detach(), alpha=μ)

        return self.descend(
            model=nn.ModuleList([model, guidance]), epochs=epochs, objective=objective, gradient_hook=decay
        )


@remembered(2)
def _guidance(classes: int, features: int) -> Guidance:
    """Return embeddings and valve that all clients of the process share; every client overwrites their contents."""
    return Guidance(classes, features)
