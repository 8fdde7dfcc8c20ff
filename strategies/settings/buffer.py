"""The configuration keys of buffered asynchronous rounds, table ``buffer``."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class BufferSettings(Section):
    """How many updates a server step waits for, and how stale ones count; for ``mode = "buffered"``."""

    title = "Buffered asynchronous rounds ([more](fleets.md#buffered-rounds))"

    size: int = key(10, "K, number of updates that a server step waits for", ge=1, where="mode=buffered")
    staleness_exponent: float = key(
        0.5,
        "a: an update that s server steps have overtaken is multiplied by 1/(1 + s)^a; 0: all count the same",
        ge=0,
        where="mode=buffered",
    )
    max_staleness: int = key(
        0, "updates that more server steps have overtaken are dropped; 0: none are", ge=0, where="mode=buffered"
    )
    average: Literal["updates", "models"] = key(
        "updates",
        "what the server step averages: updates, as FedBuff does; or differences of the returned models from the "
        "present one, as FedAsync does",
        where="mode=buffered",
    )
