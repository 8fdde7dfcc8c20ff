"""The configuration keys of what is done before a robust rule, table ``robust``."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class RobustSettings(Section):
    """What the server does with updates before ``aggregation`` combines them."""

    title = "Before a robust rule ([more](robust.md))"

    mixing: Literal["none", "nearest-neighbours", "bucketing"] = key(
        "none",
        "what mixes updates before `aggregation`: nothing, means of each update's n − f nearest ones, or means of "
        "random buckets",
        where="aggregation!=mean",
    )
    bucket_size: int = key(2, "s, number of updates in a bucket", ge=1, where="robust.mixing=bucketing")
    momentum: float = key(
        0.0,
        "β: the rule combines m ← β·m + (1 − β)·update of each client, over the rounds in which it took part; 0: the "
        "updates themselves",
        ge=0,
        lt=1,
        where="aggregation!=mean",
    )
