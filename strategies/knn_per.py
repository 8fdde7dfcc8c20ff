"""kNN-Per, server side (Marfoq et al. 2022): FedAvg; each client adds its memory to the global model."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class KNNPer(FedAvg):
    """Weighted averaging of the global model."""
