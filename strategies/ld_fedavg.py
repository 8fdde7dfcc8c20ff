"""LD-FedAvg, server side: federated averaging of a point v of a random subspace (FLowDUP, section 5.1), from v = 0."""

from __future__ import annotations

import numpy as np

from florilegium.clients.ld_fedavg import POINT
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.promises import mean_of_updates, only_sums, sums_of_updates, trains_by_updates
from florilegium.strategies.families.subspace import Subspace, no_network


class LDFedAvg(Subspace):
    """FedAvg of the point v."""

    transfer_gap = staticmethod(no_network)

    privacy_gap = staticmethod(sums_of_updates)
    secure_gap = staticmethod(only_sums)
    buffer_gap = staticmethod(mean_of_updates)
    compression_gap = staticmethod(trains_by_updates)

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return v = 0, which is the network θ₀."""
        return {POINT: np.zeros(self.hyper.dimensions, np.float32)}
