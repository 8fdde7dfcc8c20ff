"""FedSR, server side (Nguyen et al. 2022): FedAvg of the model and of the representation's own parameters."""

from __future__ import annotations

from florilegium.clients.hyper.federated import FedSRHyper
from florilegium.models.blocks import classifier_shape
from florilegium.models.parameters import Arrays
from florilegium.models.representation import Representation, build_representation
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.accompanied import Accompanied


class FedSR(Accompanied):
    """FedAvg of the model, and of the representation's parameters beside it."""

    messages = Messages("sum", step="mean", features="whole")
    hyper: FedSRHyper

    def companion(self, network: Arrays) -> Representation:
        """Return the initial parameters of the representation."""
        classes, features = classifier_shape(network, "fedsr")
        return build_representation(features, classes, self.settings.seed)
