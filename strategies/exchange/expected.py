"""What the server takes from a node: every check on a reply, before anything of it is used.

A device may send anything, which must neither end the run nor count for more than that device's due. This package's
host checks what its clients return (:class:`florilegium.clients.core.reduce.Reduction`); the checks here are for nodes
that run other code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from florilegium.clients.core.compression.scheme import COMPRESSED, Reader, Scheme
from florilegium.clients.core.reports import ALWAYS, HOSTS, Reports, check_reports
from florilegium.clients.core.wire import BESIDE, LARGEST, Reply, bounded
from florilegium.clients.layers.noise import WITHIN
from florilegium.common.blocks import BLOCK, blocks
from florilegium.common.foreign import printable
from florilegium.common.spool import zeros
from florilegium.models.parameters import Arrays, shapes_of
from florilegium.privacy.clipping import clip_together

ROUNDING = 1e-5
"""Relative excess of a norm over its bound that rounding explains."""
UNUSABLE = "unusable reply"
"""Beginning of the reason why a reply is skipped that this package's host does not send."""
DEVIATIONS = 10.0
"""Honest noise is less than this many standard deviations above its expected norm, but for one time in 10²¹."""


@dataclass(frozen=True)
class Expected:
    """Checks whether a node's reply is usable.

    Attributes:
        stacked: whether ``arrays`` are stacks (one entry per client) rather than sums.
        changes_of: the arrays that were sent, if clients return updates of them, which must have the same shapes.
        heaviest: the largest weight allowed for each client's update.
        sizes: the largest number of examples that each client may report; {}: not known.
        longest: the largest norm allowed for a client's update; 0: no limit.
        noise, within_noise: standard deviations of the noise that a client adds to each entry of its update, and to
            the array ``within-bound``.
        within: whether clients return ``within-bound`` with their updates.
        shapes: names and shapes of the arrays that each client returns, if they are no updates.
        reports: the numbers that clients may report.
        scheme: how updates of ``changes_of`` are compressed; None: they are not.
        clip: norm to which each update is clipped after it is restored; infinite: it is not.
        mark: the request that replies must be to, if they name one.
        own: the method's own check, for replies that have passed the others.
        together: checks the replies of an exchange with each other; returns why clients of theirs are not used.
    """

    stacked: bool = False
    changes_of: Arrays | None = None
    heaviest: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    longest: float = 0.0
    noise: float = 0.0
    within_noise: float = 0.0
    within: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reports: Reports = field(default_factory=lambda: {**ALWAYS, **HOSTS})
    scheme: Scheme | None = None
    clip: float = math.inf
    mark: str = ""
    own: Callable[[Reply], None] = lambda reply: None
    together: Callable[[Sequence[Reply]], Mapping[str, str]] = lambda replies: {}

    def read(self, reply: Message, ids: Sequence[str]) -> Reply:
        """Return the checked reply of a node that was asked to run the clients ``ids``.

        Raises:
            Exception: of any kind, if the reply is unusable.
        """
        answer = Reply.unpack(reply.content, copy=self.scheme is None)
        answer.expect(self.mark)
        self._check_clients(answer, ids)
        self._check_numbers(answer)
        if self.scheme is not None and self.changes_of is not None and answer.clients:
            answer = replace(answer, arrays=self._restored(answer, self.scheme, self.changes_of))
        self._check_arrays(answer)
        if self.changes_of is not None and answer.clients:
            self._check_changes(answer, self.changes_of)
        self.own(answer)
        return answer

    def compared(self, replies: Sequence[Reply]) -> list[Reply]:
        """Return the checked replies of an exchange without the clients that do not pass beside the others.

        Such a client has failed. A sum can only be left out as a whole.
        """
        reasons = {client: f"{UNUSABLE}: {printable(why)}" for client, why in self.together(replies).items()}
        return [self._kept(reply, reasons) if reasons.keys() & {*reply.clients} else reply for reply in replies]

    def _kept(self, reply: Reply, reasons: Mapping[str, str]) -> Reply:
        rows = [row for row, client in enumerate(reply.clients) if self.stacked and client not in reasons]
        return Reply(
            [reply.clients[row] for row in rows],
            {name: array[rows] for name, array in reply.arrays.items()} if rows else {},
            {name: [values[row] for row in rows] for name, values in reply.metrics.items()},
            {**reply.failures, **{client: reasons[client] for client in reply.clients if client in reasons}},
        )

    def _restored(self, answer: Reply, scheme: Scheme, sent: Arrays) -> Arrays:
        """Return the updates in a compressed reply: their weighted sum, or a stack.

        Raises:
            ValueError: if the reply is anything but the messages of its clients.
        """
        data = answer.arrays.get(COMPRESSED)
        if data is None or len(answer.arrays) > 1 or data.dtype != np.uint8 or data.ndim != 1:
            raise ValueError(f"its arrays are {[*answer.arrays]}, not bytes named '{COMPRESSED}'")
        reader, returned, stacks = Reader(data), set[str](), dict[str, list[NDArray[Any]]]()
        sums = {} if self.stacked else zeros(shapes_of(sent))
        for weight in answer.metrics["weight"]:
            update: Iterable[tuple[str, NDArray[Any]]] = scheme.restored(reader, sent)
            if math.isfinite(self.clip):
                update = clip_together({n: a.astype(np.float64) for n, a in update}, self.clip).items()
            for name, array in update:
                if self.stacked:
                    stacks.setdefault(name, []).append(array)
                    continue
                returned.add(name)
                for to, change in blocks(sums[name], array):
                    to += np.multiply(change, weight, dtype=np.float64)
        if reader.left:
            raise ValueError(f"{reader.left} bytes follow its compressed updates")
        return {n: sums[n] for n in sorted(returned)} | {name: np.stack(rows) for name, rows in stacks.items()}

    def _check_clients(self, answer: Reply, ids: Sequence[str]) -> None:
        """Raise ``ValueError`` if a reply names clients that were not asked, or one of them twice."""
        strangers = ({*answer.clients} | answer.failures.keys()) - {*ids}
        if strangers or len(answer.clients) != len({*answer.clients}):
            raise ValueError(f"it replies for the clients {answer.clients}, but was asked for {list(ids)}")

    def _check_numbers(self, answer: Reply) -> None:
        """Raise ``ValueError`` if reported numbers are missing, unknown, or outside of their ranges."""
        for name in ALWAYS if answer.clients else ():
            if not np.isfinite(values := answer.metrics.get(name, [np.nan])).all():
                raise ValueError(f"its numbers '{name}' are {values}")
        check_reports(answer.metrics, self.reports)
        for name in ("num-examples", "weight"):
            for client, value in zip(answer.clients, answer.metrics.get(name, []), strict=True):
                if value > self.sizes.get(client, math.inf):
                    raise ValueError(f"'{name}' of client {client} is {value:g}, announced were {self.sizes[client]}")

    def _check_arrays(self, answer: Reply) -> None:
        """Raise ``ValueError`` if arrays are not of numbers within bounds, or have other shapes than are expected."""
        for name, array in answer.arrays.items():
            if array.dtype.kind not in "iuf" or array.itemsize > 8:
                raise ValueError(f"array '{name}' is of {array.dtype}, not of numbers of 64 bits or fewer")
            if not bounded(array):
                raise ValueError(f"array '{name}' has NaN, infinity or numbers above {LARGEST:g}")
            if self.stacked and len(array) != len(answer.clients):
                raise ValueError(f"array '{name}' has {len(array)} rows for {len(answer.clients)} clients")
        if self.changes_of is None and answer.clients:
            own = {name: array.shape[1:] if self.stacked else array.shape for name, array in answer.arrays.items()}
            if own != self.shapes:
                raise ValueError(f"its arrays have shapes {own}, expected {dict(self.shapes)} (shapes of Round.ask)")

    def _check_changes(self, answer: Reply, sent: Arrays) -> None:
        """Raise ``ValueError`` if updates lack arrays that were sent, or exceed the allowed norm or weight."""
        weights = answer.metrics["weight"]
        for client, weight in zip(answer.clients, weights, strict=True):
            if client in self.sizes and weight < 1:
                raise ValueError(f"client {client} has weight {weight:g}, at least 1 is an example's")
            if weight > self.heaviest.get(client, math.inf):
                raise ValueError(f"client {client} has weight {weight:g}, at most {self.heaviest[client]:g} is its due")
        clients, squares, entries = len(answer.clients), np.zeros(len(answer.clients) if self.stacked else 1), 0
        for name, array in sent.items():
            if name.startswith(BESIDE) and name not in answer.arrays:
                continue
            expected, change = ((clients,) if self.stacked else ()) + array.shape, answer.arrays.get(name)
            if change is None or change.shape != expected:
                raise ValueError(
                    f"array '{name}' has shape {None if change is None else change.shape}, expected {expected}"
                )
            squares += _squares(change.reshape(len(squares), -1))
            entries += array.size
        for name in answer.arrays.keys() - sent.keys():
            if name != WITHIN or not self.within:
                raise ValueError(f"array '{name}' was not sent to it")
            if (shape := answer.arrays[name].shape) != ((clients, 1) if self.stacked else (1,)):
                raise ValueError(f"array '{name}' has shape {shape}, and one number for each client is expected")
        several = 1.0 if self.stacked else math.sqrt(clients)  # independent noise of so many is in a sum
        bound = self.longest if self.stacked else self.longest * float(np.sum(weights))
        most = bound + self.noise * several * (math.sqrt(entries) + DEVIATIONS)
        if self.longest and (norm := math.sqrt(squares.max())) > most * (1 + ROUNDING):
            raise ValueError(f"an update has norm {norm:.4g}, at most {most:.4g} is allowed (max-update-norm)")
        most = 0.5 * (1 if self.stacked else clients) + DEVIATIONS * self.within_noise * several
        if WITHIN in answer.arrays and np.abs(answer.arrays[WITHIN]).max() > most * (1 + ROUNDING):
            raise ValueError(f"'{WITHIN}' is {answer.arrays[WITHIN].ravel()}, at most {most:.4g} is allowed")


def _squares(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of squares of each row of a matrix, in double precision, from a block of columns at a time."""
    total = np.zeros(len(rows))
    for start in range(0, rows.shape[1], BLOCK):
        total += np.square(rows[:, start : start + BLOCK], dtype=np.float64).sum(axis=1)
    return total
