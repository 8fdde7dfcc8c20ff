"""FedAvg, client side (McMahan et al. 2017, Algorithm 1, ClientUpdate).

Received: the global model w_t. Answered: w after E epochs of mini-batch SGD; the host sends n_k·(w − w_t) summed
over its clients. Everything is the base's.
"""

from __future__ import annotations

from typing import Any

from clients.base import BaseClient


class FedAvgClient(BaseClient):
    """Local SGD from the global model."""

    @staticmethod
    def example_gap(hyper: Any) -> str:
        """Nothing does."""
        return ""
