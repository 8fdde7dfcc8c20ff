"""FedCP, server side (Zhang et al. 2023, Algorithm 1): FedAvg of the network and of the policy network beside it."""

from __future__ import annotations

from florilegium.clients.hyper.conditional import FedCPHyper
from florilegium.models.blocks import classifier_shape
from florilegium.models.conditioned import Policy, build_policy
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.accompanied import Conditional


class FedCP(Conditional):
    """Averages bodies, heads and policy networks; personal heads never reach it."""

    messages = Messages("sum", step="mean", features="whole")
    hyper: FedCPHyper

    def companion(self, network: Arrays) -> Policy:
        """Return the initial policy network."""
        _, d = classifier_shape(network, "fedcp")
        return build_policy(d, self.settings.seed)
