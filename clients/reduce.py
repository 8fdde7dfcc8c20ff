"""How the answers of a node's clients become one reply: the sum of updates, the sum of statistics, or a stack.

What leaves a node is what secure aggregation would reveal, a sum, unless the server must see individuals ("stack").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from clients.wire import BESIDE
from common.errors import RunError
from models.parameters import Arrays

Protection = Callable[[Arrays], Arrays]

REDUCTIONS = ("delta", "sum", "stack")


class Reduction:
    """Collects the arrays of several clients.

    Args:
        kind: "delta" = Σ wᵢ·(returned − sent), "sum" = Σ returned, "stack" = returned arrays along a new first axis
            in the order of the clients that succeeded.
        sent: the arrays every client received; what "delta" is taken from. All of them come back, but for those beside
            the network (:data:`clients.wire.BESIDE`), which clients may only read.
        protect: what becomes of the change of each client, all its arrays together, before it is added to others.
    """

    def __init__(self, kind: str, sent: Arrays, protect: Protection | None = None) -> None:
        if kind not in REDUCTIONS:
            raise RunError(f"reduce: '{kind}' is unknown; allowed: {', '.join(REDUCTIONS)}")
        self._kind = kind
        self._sent = sent
        self._protect = protect
        self._shapes: dict[str, tuple[int, ...]] | None = (
            {name: array.shape for name, array in sent.items()} if kind == "delta" else None
        )
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._stacked: dict[str, list[NDArray[np.generic]]] = {}

    def check(self, arrays: Arrays) -> None:
        """Raise :class:`RunError` if ``arrays`` has other names or shapes than expected, or NaN or infinity."""
        shapes = {name: array.shape for name, array in arrays.items()}
        if self._shapes is not None:
            wrong = {name for name, _ in self._shapes.items() ^ shapes.items() if not self._may_lack(name, shapes)}
            if wrong:
                name = min(wrong)
                raise RunError(f"array '{name}' came back as {shapes.get(name)}, expected {self._shapes.get(name)}")
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise RunError(
                    f"array '{name}' came back with NaN or infinity; lower the learning rate or set max-grad-norm"
                )

    def _may_lack(self, name: str, answered: Mapping[str, object]) -> bool:
        return self._kind == "delta" and name.startswith(BESIDE) and name not in answered

    def add(self, arrays: Arrays, weight: float) -> None:
        """Take in the checked answer of one client, whose weight is wᵢ."""
        if self._shapes is None:
            self._shapes = {name: array.shape for name, array in arrays.items()}
        if self._kind == "delta":
            arrays = {name: array.astype(np.float64) - self._sent[name] for name, array in arrays.items()}
            arrays = self._protect(arrays) if self._protect else arrays
        for name, array in arrays.items():
            if self._kind == "stack":
                self._stacked.setdefault(name, []).append(array)
                continue
            part = weight * array if self._kind == "delta" else array
            if name in self._sums:
                self._sums[name] += part
            else:
                self._sums[name] = np.array(part, dtype=np.float64)

    def result(self) -> Arrays:
        """Return what the node sends; empty if no client succeeded.

        Updates travel in the precision of the model, other sums in float64: they may be counts or moments.
        """
        if self._kind == "stack":
            return {name: np.stack(parts) for name, parts in self._stacked.items()}
        types = {name: array.dtype for name, array in self._sent.items()} if self._kind == "delta" else {}
        return {name: total.astype(types.get(name, total.dtype)) for name, total in self._sums.items()}
