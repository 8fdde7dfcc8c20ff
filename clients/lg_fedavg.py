"""LG-FedAvg, client side (Liang et al. 2020): body and head are trained together; the body stays with the client.

Receives and returns the head, so that personal representations feed a common classifier.

Strategy: SharedHead (``strategies/families/decoupled.py``), FedAvg of the head.
"""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.decoupled import DecoupledClient


class LGFedAvgClient(DecoupledClient):
    """Trains a personal body and a shared head."""

    training = Training("gradients", stacked=True)
