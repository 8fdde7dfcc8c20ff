"""FedBN, client side (Li et al. 2021): batch-norm layers, their parameters and statistics, stay with the client.

Receives and returns all other arrays of the network.
"""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.decoupled import DecoupledClient


class FedBNClient(DecoupledClient):
    """Trains a shared network with the client's own batch-norm layers."""

    training = Training("batch norm mixes examples", stacked=True)
    needs_blocks = False
