"""FedPer, client side (Arivazhagan et al. 2019): body and head are trained together; the head stays with the client.

Receives and returns the body. With an empty head this would be FedAvg.

Strategy: SharedBody (``strategies/families/decoupled.py``), FedAvg of the body.
"""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.decoupled import DecoupledClient


class FedPerClient(DecoupledClient):
    """Trains a shared body and a personal head."""

    training = Training("gradients", stacked=True)
