"""FedBN, client side (Li et al. 2021): batch-norm layers, their parameters and statistics, stay with the client.

Received and answered: all other arrays of the network.
"""

from __future__ import annotations

from typing import Any

from florilegium.clients.families.decoupled import DecoupledClient


class FedBNClient(DecoupledClient):
    """A shared network with the client's own batch norm."""

    @staticmethod
    def example_gap(hyper: Any) -> str:
        """Return what breaks the privacy of examples."""
        return "batch norm mixes examples"
