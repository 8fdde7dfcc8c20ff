"""FedAvg, client side (McMahan et al. 2017, Algorithm 1, ClientUpdate).

Receives the global model w_t; returns w after E epochs of mini-batch SGD. The host sends n_k·(w − w_t), summed over its
clients. The base class implements all of this.
"""

from __future__ import annotations

from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.training_facts import Training


class FedAvgClient(BaseClient):
    """Local SGD from the global model."""

    training = Training("gradients", stacked=True)
