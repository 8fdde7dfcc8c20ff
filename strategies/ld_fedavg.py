"""LD-FedAvg, server side: federated averaging of a point v of a random subspace (FLowDUP, section 5.1), from v = 0."""

from __future__ import annotations

import numpy as np

from florilegium.clients.ld_fedavg import POINT
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.subspace import SUBSPACE, Subspace


class LDFedAvg(Subspace):
    """FedAvg of the point v."""

    messages = Messages("sum", step="mean", features=SUBSPACE)

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return v = 0, which is the network θ₀."""
        return {POINT: np.zeros(self.hyper.dimensions, np.float32)}
