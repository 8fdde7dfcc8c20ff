"""Key ``batch-order``: the order in which local training takes a client's examples, by name. Free of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from florilegium.common.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor

BatchOrder = Callable[[int, str, int, int], "Tensor"]
"""Function (seed, client, n, number) → permutation of 0..n−1, int64 on the CPU: the order of a client's n training
examples in a pass; passes are numbered from 0 in a run. What it returns depends on its arguments alone."""

EACH_ROUND = "round"
"""Every training begins a pass in a new order."""


def _read(found: Any, reference: str) -> BatchOrder:
    if not callable(found):
        raise TypeError(f"expected a function (seed, client, number of examples, pass) (found: {found!r:.60})")
    order: BatchOrder = found
    return order


BATCH_ORDERS: Registry[BatchOrder] = Registry(
    "batch-order",
    "an order of batches",
    {EACH_ROUND: "florilegium.clients.core.order:drawn", "continue": "florilegium.clients.core.order:drawn"},
    _read,
)
"""All orders by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""
