"""Prior shift, client side: FedAvg's model, its logits moved by the logarithm of the client's own class prior.

The model's probabilities are those of examples with the federation's class prior p̂. Where classes have the prior π_k
and look the same, Bayes' rule gives the logits f(x) + log π_k − log p̂. A client with labels takes π_k from them, one
without estimates it from its inputs.

Strategy: PriorShift (``strategies/prior_shift.py``), FedAvg that also averages the clients' class frequencies.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import BESIDE, of_network
from florilegium.clients.hyper.classwise import PriorShiftHyper
from florilegium.models.blocks import body_and_classifier
from florilegium.models.parameters import Arrays, part
from florilegium.models.priors import estimated, shift, smoothed
from florilegium.tasks.task import CLASSES

PRIOR = "prior"
"""Name, beside the model, of the class prior p̂ (C,): sent by the server, and by each client as its own frequencies."""


class PriorShiftClient(BaseClient):
    """Trains as in FedAvg; predicts with the logits of its own class prior."""

    needs = frozenset({CLASSES})
    needs_blocks = True
    hyper: PriorShiftHyper
    model: nn.Sequential
    _received: Arrays

    @staticmethod
    def training(hyper: PriorShiftHyper) -> Training:
        """Return what besides gradients of single examples a client's class frequencies have a part in."""
        own = {
            "measured": "it returns its class frequencies", "adjusted": "its class frequencies are in its gradients",
            "uniform": "gradients",
        }  # fmt: skip
        return Training(own[hyper.federation], stacked=True)

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received model; return it and, if the server sent a prior, the client's class frequencies."""
        self._received = part(arrays, BESIDE)
        answer = super().train(of_network(arrays))
        for name, p̂ in self._received.items():
            answer.arrays[BESIDE + name] = smoothed(self._counts(), p̂.astype(np.float64), 0.0).astype(p̂.dtype)
        return answer

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the received model, and that of the client's class prior."""
        self._received = part(arrays, BESIDE)
        return super().test(of_network(arrays))

    def local_training(self) -> float:
        """Train; if ``adjusted``, the model of the client's class prior, and take the prior out again."""
        if self.hyper.federation != "adjusted":
            return super().local_training()
        self._move(1.0)
        loss = super().local_training()
        self._move(-1.0)
        return loss

    def personalise(self) -> bool:
        """Move the model to the client's class prior; then fine-tune, with ``finetune-epochs``."""
        self._move(1.0)
        super().personalise()
        return True

    @torch.no_grad()
    def _move(self, sign: float) -> None:
        """Add what the client's class prior adds to logits to the last layer's bias, or take it away (−1)."""
        _, head = body_and_classifier(self.model)
        bias = next(parameter for parameter in head.parameters() if parameter.dim() == 1)  # the strategy has checked it
        bias.add_(shift(self._prior(), self._federation).to(bias), alpha=sign)

    @property
    def _federation(self) -> NDArray[np.float64]:
        """The class prior p̂ of the federation, (C,)."""
        equal = np.full(self._classes, 1 / self._classes)
        return np.asarray(self._received.get(PRIOR, equal), np.float64)

    @property
    def _classes(self) -> int:
        return self.task.outputs[0]

    def _counts(self) -> torch.Tensor:
        return torch.bincount(self.data.train.y, minlength=self._classes)

    def _prior(self) -> NDArray[np.float64]:
        """Return the client's class prior π_k, (C,)."""
        if self.data.labeled:
            return smoothed(self._counts(), self._federation, self.hyper.smoothing)
        return estimated(features(self.model, self.data.train), self._federation, self.hyper.iterations)
