"""GPFL, server side (Zhang et al. 2023): FedAvg of the body, and of class embeddings and valve beside it."""

from __future__ import annotations

from florilegium.clients.hyper.conditional import GPFLHyper
from florilegium.models.blocks import classifier_shape, last_blocks, of_blocks
from florilegium.models.conditioned import Guidance, build_guidance
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.accompanied import Conditional


class GPFL(Conditional):
    """Averages bodies, class embeddings and valves; heads never reach it."""

    messages = Messages("sum", step="mean", features="whole")
    hyper: GPFLHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the arrays of the body; initialise embeddings and valve."""
        head = of_blocks(arrays, last_blocks(self.federation.network, 1, "gpfl"))
        return {name: array for name, array in super().server_part(arrays).items() if name not in head}

    def companion(self, network: Arrays) -> Guidance:
        """Return the initial embeddings and valve."""
        return build_guidance(*classifier_shape(network, "gpfl"), self.settings.seed)
