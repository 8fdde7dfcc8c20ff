"""FedBN, client side (Li et al. 2021): batch-norm layers, their parameters and statistics, stay with the client.

Received and answered: all other arrays of the network.
"""

from __future__ import annotations

from clients.decoupled import DecoupledClient


class FedBNClient(DecoupledClient):
    """A shared network with the client's own batch norm."""
