"""FedRoD, client side (Chen and Chao 2022, Algorithm 1): a generic head for all clients, a personal one for each.

Receives the model: all blocks but the last compute features z, the last is the generic head g. Body and generic head
minimise the balanced softmax loss, the cross-entropy of g(z) + ln n_c with the client's class counts n_c. The personal
head p minimises the cross-entropy of g(z) + p(z) with g and z held fixed. The client predicts with g(z) + p(z).

The personal head is linear and kept by the client, or made from the client's class frequencies by a hypernetwork, whose
parameters are received beside the model and returned with it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import of_network
from florilegium.clients.families.accompanied import beside
from florilegium.clients.hyper.mixing import FedRoDHyper
from florilegium.common.memo import remembered
from florilegium.models.blocks import body_and_classifier
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.models.personal_heads import HeadNetwork, LinearHead, logits
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import CLASSES


class FedRoDClient(BaseClient):
    """Trains a generic and a personal head on common features."""

    training = Training("class counts are made of all examples together")
    needs = frozenset({CLASSES})

    needs_blocks = True
    needs_bias = True
    hyper: FedRoDHyper
    model: nn.Sequential

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train body and generic head with the balanced loss, and the personal head on top of them."""
        personal = self._personal(self._load(arrays))
        body, generic = body_and_classifier(self.model)
        x, y, counts = self.data.train.x, self.data.train.y, self._counts()
        prior, frequencies = counts.log(), counts / counts.sum()

        def objective(rows: Tensor) -> Tensor:
            z = body(x[rows]).flatten(1)
            g = generic(z)
            p = logits(personal(frequencies), z.detach())
            return self.loss(g + prior, rows) + self.loss(g.detach() + p, rows)

        loss = self.descend(model=nn.ModuleList([self.model, personal]), objective=objective)
        trained = get_arrays(self.model)
        if self.hyper.personal_head == "linear":
            self.state.save(get_arrays(personal))
        else:
            trained |= beside(personal)
        return Answer(trained, len(y), {"loss": loss})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the generic head, and the sum of generic and personal head."""
        self._shared = self._load(arrays)
        return super().test(of_network(arrays))

    def personalise(self) -> bool:
        """Add the personal head to the generic one.

        A client without a trained head may train one for ``finetune-epochs``; so may every client with that of the
        hypernetwork.
        """
        kept, epochs = self.state.load(), self.settings.finetune_epochs
        if not self.data.labeled or (kept is None and not self._shared and not epochs):
            return False
        body, generic = body_and_classifier(self.model)
        counts = self._counts()
        head = LinearHead(*self._shape()).to(counts)
        with torch.no_grad():
            head.head.copy_(self._personal(self._shared)(counts / counts.sum()))
        if kept is None and epochs:
            z, y = features(body, self.data.train).flatten(1), self.data.train.y
            g = features(generic, Examples(z, y))
            self.descend(
                model=head, examples=Examples(z, y), epochs=epochs,
                objective=lambda rows: self.loss(g[rows] + logits(head.head, z[rows]), rows),
            )  # fmt: skip
        weight, bias = generic.parameters()
        with torch.no_grad():
            weight.add_(head.head[:, :-1])
            bias.add_(head.head[:, -1])
        return True

    # --------------------------------------------------------------------------------------- details

    def _load(self, arrays: Arrays) -> Arrays:
        """Load the model; return the hypernetwork's parameters, if any came."""
        if self.hyper.personal_head == "hypernetwork":
            return self.receive(arrays)
        set_arrays(self.model, arrays)
        return {}

    def _shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs (C, d) of the generic head."""
        weight, _ = body_and_classifier(self.model)[1].parameters()
        return weight.shape[0], weight.shape[1]

    def _personal(self, shared: Arrays) -> nn.Module:
        """Return what makes the personal head: the client's own parameters, at first 0, or the hypernetwork."""
        if shared:
            personal: nn.Module = _network(*self._shape(), self.hyper.hidden_width)
            set_arrays(personal, shared)
        else:
            personal = LinearHead(*self._shape())
            set_arrays(personal, self.state.load() or {})
        return personal.to(self.data.train.y.device)

    def _counts(self) -> Tensor:
        """Return n_c, the client's number of training examples of each class, (C,)."""
        return torch.bincount(self.data.train.y, minlength=self._shape()[0]).float()


@remembered(2)
def _network(classes: int, features: int, width: int) -> HeadNetwork:
    """Return the hypernetwork that all clients of the process share; every client overwrites its parameters."""
    return HeadNetwork(classes, features, width)
