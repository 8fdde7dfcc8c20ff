"""LG-FedAvg, server side (Liang et al. 2020).

Sent and received: the head, the mean of which is taken as in FedAvg.
"""

from __future__ import annotations

from typing import ClassVar

from strategies.decoupled import Decoupled


class LGFedAvg(Decoupled):
    """A shared head on personal bodies."""

    shares_head: ClassVar[bool] = True
