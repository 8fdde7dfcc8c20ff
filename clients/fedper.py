"""FedPer, client side (Arivazhagan et al. 2019): body and head are trained together; the head stays with the client.

Receives and returns the body. With an empty head this would be FedAvg.

Strategy: SharedBody (``strategies/families/decoupled.py``), FedAvg of the body.
"""

from __future__ import annotations

from florilegium.clients.core.base import only_gradients, stackable
from florilegium.clients.families.decoupled import DecoupledClient


class FedPerClient(DecoupledClient):
    """Trains a shared body and a personal head."""

    example_gap = staticmethod(only_gradients)
    vectorise_gap = staticmethod(stackable)
