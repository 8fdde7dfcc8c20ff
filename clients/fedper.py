"""FedPer, client side (Arivazhagan et al. 2019): body and head are trained together, the head stays.

Received and answered: the body. With a head of no blocks this would be FedAvg.
"""

from __future__ import annotations

from clients.decoupled import DecoupledClient


class FedPerClient(DecoupledClient):
    """A shared body and a personal head."""
