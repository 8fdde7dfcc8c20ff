"""Ditto, server side (Li et al. 2021, Algorithm 1): FedAvg; the personal models never leave their clients."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class Ditto(FedAvg):
    """Weighted averaging of the global model."""
