"""FedRolex, server side (Alam, Liu, Yan, Zhang 2022, Algorithm 1): HeteroFL with a window that rolls over the channels.

In round j = 0, 1, … a client of capacity r holds the channels j mod C, …, (j + ⌈r·C⌉ − 1) mod C of every layer with C
channels, so that in C rounds all of them are trained alike. All else is HeteroFL's.
"""

from __future__ import annotations

from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.heterofl import HeteroFL


class FedRolex(HeteroFL):
    """Averages sub-networks whose channels move on by one in every round."""

    messages = Messages("groups", features="whole")

    def first_channel(self, server_round: int) -> int:
        """Return the window's first channel, j = 0 in the first round."""
        return server_round - 1
