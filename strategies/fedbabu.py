"""FedBABU, server side (Oh et al. 2022, Algorithm 1).

Sent and received: the body, the mean of which is taken as in FedAvg.
"""

from __future__ import annotations

from strategies.decoupled import Decoupled


class FedBABU(Decoupled):
    """A shared body under a common head that is never trained, nor sent."""
