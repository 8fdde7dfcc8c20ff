"""FedBN, client side (Li et al. 2021): batch-norm layers, their parameters and statistics, stay with the client.

Receives and returns all other arrays of the network.
"""

from __future__ import annotations

from typing import Any

from florilegium.clients.families.decoupled import DecoupledClient


class FedBNClient(DecoupledClient):
    """Trains a shared network with the client's own batch-norm layers."""

    needs_blocks = False

    @staticmethod
    def example_gap(hyper: Any) -> str:
        """Return why example privacy is not kept."""
        return "batch norm mixes examples"
