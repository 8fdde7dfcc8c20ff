"""FedRep, server side (Collins et al. 2021, Algorithm 1).

Sent and received: the body, the mean of which is taken as in FedAvg.
"""

from __future__ import annotations

from strategies.decoupled import Decoupled


class FedRep(Decoupled):
    """A shared body; each client fits its head before the body."""
