"""FedRoD, server side (Chen and Chao 2022, Algorithm 1): FedAvg of the model, and of a hypernetwork of heads."""

from __future__ import annotations

from florilegium.clients.hyper.mixing import FedRoDHyper
from florilegium.models.blocks import classifier_shape
from florilegium.models.parameters import Arrays
from florilegium.models.personal_heads import HeadNetwork, build_head_network
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.accompanied import Conditional


class FedRoD(Conditional):
    """FedAvg of body and generic head, and of the hypernetwork that makes personal heads, if there is one."""

    messages = Messages("sum", step="mean", features="whole")
    hyper: FedRoDHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; initialise the hypernetwork."""
        return super().server_part(arrays) if self.hyper.personal_head == "hypernetwork" else arrays

    def companion(self, network: Arrays) -> HeadNetwork:
        """Return the initial hypernetwork."""
        return build_head_network(*classifier_shape(network, "fedrod"), self.hyper.hidden_width, self.settings.seed)
