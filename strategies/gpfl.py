"""GPFL, server side (Zhang et al. 2023): FedAvg of the body, and of class embeddings and valve beside it."""

from __future__ import annotations

from florilegium.clients.hyper.conditional import GPFLHyper
from florilegium.models.blocks import classifier_shape, last_blocks, of_blocks
from florilegium.models.conditioned import Guidance, build_guidance
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.promises import (
    mean_of_updates,
    only_sums,
    sums_of_updates,
    trains_by_updates,
    whole_network,
)
from florilegium.strategies.families.accompanied import Conditional


class GPFL(Conditional):
    """Averages bodies, class embeddings and valves; heads never reach it."""

    privacy_gap = staticmethod(sums_of_updates)
    secure_gap = staticmethod(only_sums)
    buffer_gap = staticmethod(mean_of_updates)
    compression_gap = staticmethod(trains_by_updates)
    transfer_gap = staticmethod(whole_network)

    hyper: GPFLHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the arrays of the body; initialise embeddings and valve."""
        head = of_blocks(arrays, last_blocks(arrays, 1, "gpfl"))
        return {name: array for name, array in super().server_part(arrays).items() if name not in head}

    def companion(self, network: Arrays) -> Guidance:
        """Return the initial embeddings and valve."""
        return build_guidance(*classifier_shape(network, "gpfl"), self.settings.seed)
