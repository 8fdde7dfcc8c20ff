"""FedSR, server side (Nguyen et al. 2022): FedAvg of the model and of the representation's own parameters."""

from __future__ import annotations

from florilegium.clients.hyper.federated import FedSRHyper
from florilegium.models.blocks import classifier_shape
from florilegium.models.parameters import Arrays
from florilegium.models.representation import Representation, build_representation
from florilegium.strategies.core.promises import (
    mean_of_updates,
    only_sums,
    sums_of_updates,
    trains_by_updates,
    whole_network,
)
from florilegium.strategies.families.accompanied import Accompanied


class FedSR(Accompanied):
    """FedAvg of the model, and of the representation's parameters beside it."""

    privacy_gap = staticmethod(sums_of_updates)
    secure_gap = staticmethod(only_sums)
    buffer_gap = staticmethod(mean_of_updates)
    compression_gap = staticmethod(trains_by_updates)
    transfer_gap = staticmethod(whole_network)

    hyper: FedSRHyper

    def companion(self, network: Arrays) -> Representation:
        """Return the initial parameters of the representation."""
        classes, features = classifier_shape(network, "fedsr")
        return build_representation(features, classes, self.settings.seed)
