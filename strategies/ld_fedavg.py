"""LD-FedAvg, server side: federated averaging of a point v of a random subspace (FLowDUP, section 5.1), from v = 0."""

from __future__ import annotations

import numpy as np

from clients.ld_fedavg import POINT
from models.parameters import Arrays
from strategies.subspace import Subspace


class LDFedAvg(Subspace):
    """FedAvg of v."""

    def server_part(self, arrays: Arrays) -> Arrays:
        """Start from θ₀."""
        return {POINT: np.zeros(self.hyper.dimensions, np.float32)}
