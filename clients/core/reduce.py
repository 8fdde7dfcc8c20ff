"""Combine the results of a node's clients into one reply: a sum of updates, a sum of statistics, or a stack.

A node reveals only what secure aggregation would, a sum, unless the server needs individual results ("stack").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.wire import BESIDE, LARGEST, bounded
from florilegium.common.blocks import blocks
from florilegium.common.errors import RunError
from florilegium.common.spool import zeros
from florilegium.models.parameters import Arrays, distance, shapes_of

UPDATES = ("delta", "deltas")
"""Reductions of changes of what was sent, which can be clipped."""
REDUCTIONS = (*UPDATES, "sum", "stack")


class Reduction:
    """Combines the arrays of several clients.

    Args:
        kind: "delta" = Σ wᵢ·(returned − sent), "sum" = Σ returned, "stack" = returned arrays along a new first axis
            in the order of the clients that succeeded, "deltas" = returned − sent, stacked.
        sent: the arrays that every client received, which are subtracted from the returned ones. Clients must return
            all of them; those beside the network (:data:`florilegium.clients.core.wire.BESIDE`) are optional.
    """

    def __init__(self, kind: str, sent: Arrays) -> None:
        if kind not in REDUCTIONS:
            raise RunError(f"reduce: '{kind}' is unknown; allowed: {', '.join(REDUCTIONS)}")
        self._changes, self._stacks = kind in UPDATES, kind in ("stack", "deltas")
        self._sent = sent
        self._shapes: dict[str, tuple[int, ...]] | None = shapes_of(sent) if self._changes else None
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._stacked: dict[str, list[NDArray[np.generic]]] = {}

    def check(self, arrays: Arrays) -> float | None:
        """Check the arrays that a client returned; return the Euclidean norm of its update, None if it is no update.

        Raises:
            RunError: if ``arrays`` has unexpected names or shapes, NaN or infinity.
        """
        shapes = shapes_of(arrays)
        if self._shapes is not None:
            wrong = {name for name, _ in self._shapes.items() ^ shapes.items() if not self._may_lack(name, shapes)}
            if wrong:
                name = min(wrong)
                raise RunError(f"array '{name}' came back as {shapes.get(name)}, expected {self._shapes.get(name)}")
        for name, array in arrays.items():
            if not bounded(array):
                raise RunError(
                    f"array '{name}' came back with NaN, infinity or numbers above {LARGEST:g}; lower the learning "
                    "rate or set max-grad-norm"
                )
        return distance(arrays, self._sent) if self._changes else None

    def change(self, arrays: Arrays) -> Arrays:
        """Return a client's update in double precision, a large one in a file; ``arrays``: what it returned."""
        change: Arrays = zeros(shapes_of(arrays))
        for name, array in arrays.items():
            for to, new, old in blocks(change[name], array, self._sent[name]):
                to[:] = new
                to -= old
        return change

    def _may_lack(self, name: str, answered: Mapping[str, object]) -> bool:
        return self._changes and name.startswith(BESIDE) and name not in answered

    def add(self, arrays: Arrays, weight: float, *, changed: bool = False) -> None:
        """Add the arrays of one client, which :meth:`check` has accepted.

        Args:
            arrays: what it returned.
            weight: wᵢ, its weight in the average.
            changed: whether the arrays are its update already (:meth:`change`).
        """
        if self._shapes is None:
            self._shapes = shapes_of(arrays)
        if self._changes and self._stacks and not changed:
            arrays = self.change(arrays)
        if not self._stacks:
            self._sums |= zeros({name: array.shape for name, array in arrays.items() if name not in self._sums})
        for name, array in arrays.items():
            if self._stacks:
                self._stacked.setdefault(name, []).append(array.astype(self._type(name, array)))
            elif not self._changes:
                self._sums[name] += array
            else:
                _add_change(self._sums[name], array, None if changed else self._sent[name], weight)

    def sums(self) -> dict[str, NDArray[np.float64]]:
        """Return the sums so far, in double precision."""
        return self._sums

    def result(self) -> Arrays:
        """Return the combined arrays that the node sends; empty if no client succeeded.

        Updates have the precision of the model, other sums float64, since they may be counts or moments.
        """
        if self._stacks:
            return {name: np.stack(parts) for name, parts in self._stacked.items()}
        kinds = {name: self._type(name, total) for name, total in self._sums.items()}
        result: Arrays = zeros(shapes_of(self._sums), kinds)
        for name, total in self._sums.items():
            np.copyto(result[name], total, casting="unsafe")
        return result

    def _type(self, name: str, array: NDArray[np.generic]) -> np.dtype[np.generic]:
        """Return the dtype in which an array is sent: that of the model for updates, else its own."""
        return self._sent[name].dtype if self._changes and name in self._sent else array.dtype


def _add_change(total: NDArray[np.float64], array: NDArray[Any], sent: NDArray[Any] | None, weight: float) -> None:
    """Add weight·(array − sent) to ``total`` in double precision, a block at a time; None for ``sent``: zeros."""
    if sent is None:
        for sums, new in blocks(total, array):
            sums += weight * new
        return
    for sums, new, old in blocks(total, array, sent):
        change = new.astype(np.float64)  # np.subtract converts at the same time, but much more slowly
        change -= old
        change *= weight
        sums += change
