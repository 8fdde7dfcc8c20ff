"""Prior shift, client side: FedAvg's model, its logits moved by the logarithm of the client's own class prior.

The model's probabilities are those of examples with the federation's class prior p̂. Where classes have the prior π_k
and look the same, Bayes' rule gives the logits f(x) + log π_k − log p̂. A client with labels takes π_k from them, one
without estimates it from its inputs.

Strategy: PriorShift (``strategies/prior_shift.py``), FedAvg that also averages the clients' class frequencies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import BESIDE, of_network
from florilegium.clients.families.own_prior import OwnPriorClient
from florilegium.clients.hyper.classwise import PriorShiftHyper
from florilegium.models.parameters import Arrays, part
from florilegium.models.priors import smoothed

PRIOR = "prior"
"""Name, beside the model, of the class prior p̂ (C,): sent by the server, and by each client as its own frequencies."""


class PriorShiftClient(OwnPriorClient):
    """Trains as in FedAvg; predicts with the logits of its own class prior."""

    hyper: PriorShiftHyper
    _received: Arrays

    @staticmethod
    def training(hyper: PriorShiftHyper) -> Training:
        """Return what besides gradients of single examples a client's class frequencies have a part in."""
        own = {
            "measured": "it returns its class frequencies", "adjusted": "its class frequencies are in its gradients",
            "uniform": "gradients",
        }  # fmt: skip
        return Training(own[hyper.federation], stacked=True)

    @property
    def adjusts(self) -> bool:
        """Whether this phase trains with the client's prior: fine-tuning does, and with ``adjusted`` all training."""
        return self.phase == "test" or self.hyper.federation == "adjusted"

    @property
    def counts_labels(self) -> bool:
        """Whether the client counts its labels: not in a test of what its inputs alone tell."""
        return super().counts_labels and (self.phase != "test" or self.hyper.estimate == "labels")

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

    @property
    def _federation(self) -> NDArray[np.float64]:
        """The class prior p̂ of the federation, (C,)."""
        return np.asarray(self._received.get(PRIOR, super()._federation), np.float64)
