"""CFL and FL+HC, client side: local training as in FedAvg; the server compares the clients' updates.

A client without a place in the tree of splits trains the model of each split on the way to its cluster, also before a
test: that is a phase ``train`` as any other.
"""

from __future__ import annotations

from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.training_facts import Training


class ComparedClient(BaseClient):
    """Trains the received model and returns it."""

    training = Training(
        "clients also train so that the server can find their clusters, which the budget does not cover", stacked=True
    )
