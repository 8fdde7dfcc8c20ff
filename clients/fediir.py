"""FedIIR, client side (Guo et al. 2023): the classifier's gradient is drawn to the mean of all clients'.

The classifier is the network's last block. Phase ``gradient``: received, the model; answered, the gradient of the mean
loss in the classifier's parameters. Phase ``train``: received, the model and, after ``beside.mean.``, the running mean
ḡ of these; the client minimises ℓ + γ‖∇ℓ − ḡ‖² and answers the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients.base import Answer, BaseClient, phase
from clients.hyper import FedIIRHyper
from clients.training import mean_gradient
from clients.wire import BESIDE, Config
from models.parameters import Arrays, get_arrays, set_arrays

MEAN = f"{BESIDE}mean."


class FedIIRClient(BaseClient):
    """Trains with a regulariser on the classifier's gradient."""

    hyper: FedIIRHyper
    model: nn.Sequential

    @phase
    def gradient(self, arrays: Arrays, config: Config) -> Answer:
        """Answer the classifier's gradient at the received model."""
        set_arrays(self.model, arrays)
        classifier = self._classifier()
        gradients = mean_gradient(self.model, self.data.train, [*classifier.values()])
        named = {MEAN + name: g.cpu().numpy() for name, g in zip(classifier, gradients, strict=True)}
        return Answer(named, len(self.data.train))

    @phase
    def train(self, arrays: Arrays, config: Config) -> Answer:
        """Train the received model with the regulariser."""
        set_arrays(self.model, {name: array for name, array in arrays.items() if not name.startswith(MEAN)})
        x, y = self.data.train.x, self.data.train.y
        classifier = self._classifier()
        mean = {name: torch.from_numpy(arrays[MEAN + name]).to(y.device) for name in classifier}

        def objective(rows: Tensor) -> Tensor:
            loss = cross_entropy(self.model(x[rows]), y[rows])
            gradients = torch.autograd.grad(loss, [*classifier.values()], create_graph=True)
            pairs = zip(gradients, mean.values(), strict=True)
            penalty = torch.stack([(g - m).square().sum() for g, m in pairs]).sum()
            return loss + self.hyper.penalty * penalty

        loss = self.descend(config, objective=objective if self.hyper.penalty else None)
        return Answer(get_arrays(self.model), len(self.data.train), {"loss": loss})

    def _classifier(self) -> dict[str, Tensor]:
        """Return the parameters of the last block by their names in the network."""
        last = [name for name, _ in self.model.named_children()][-1]
        return {name: p for name, p in self.model.named_parameters() if name.startswith(f"{last}.")}
