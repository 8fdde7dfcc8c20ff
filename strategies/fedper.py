"""FedPer, server side (Arivazhagan et al. 2019).

Sent and received: the body, the mean of which is taken as in FedAvg.
"""

from __future__ import annotations

from strategies.decoupled import Decoupled


class FedPer(Decoupled):
    """A shared body; the heads stay with the clients."""
