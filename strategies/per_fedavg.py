"""Per-FedAvg, server side (Fallah et al. 2020, Algorithm 1): FedAvg; what is new happens in the clients' steps."""

from __future__ import annotations

from strategies.fedavg import FedAvg


class PerFedAvg(FedAvg):
    """Weighted averaging of models that are trained to be adapted."""
