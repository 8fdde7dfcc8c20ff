"""LG-FedAvg, client side (Liang et al. 2020): body and head are trained together, the body stays.

Received and answered: the head, so that personal representations feed a common classifier.
"""

from __future__ import annotations

from clients.decoupled import DecoupledClient


class LGFedAvgClient(DecoupledClient):
    """A personal body and a shared head."""
