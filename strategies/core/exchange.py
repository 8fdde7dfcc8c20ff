"""One exchange with the nodes: push all messages, pull all replies, and determine the result of each client.

Flower's own ``send_and_receive`` polls every 0.1 s (every 3 s in a deployment), and returns the replies that arrived
without naming the missing ones. Here the poll interval starts short and grows, a silent node gives an error reply, and
a dead worker process ends the run instead of making every later round fail.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from numpy.typing import NDArray

from florilegium.clients.core.contribution import WITHIN
from florilegium.clients.core.wire import BESIDE, BYTES_DOWN, BYTES_UP, Reply
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.totals import Totals

log = logging.getLogger("flwr")

Weights = Literal["weight", "num-examples", "clients"]
"""How the clients count in a mean: by their weights in the average, by their numbers of examples, or all equally."""

POLLS, POLLS_DEPLOYED = (0.005, 0.05), (0.1, 1.0)
"""The shortest and the longest pause in seconds between two looks for replies, in a simulation and with devices."""
_REASON_LENGTH = 500
ALWAYS = ("num-examples", "weight", BYTES_DOWN, BYTES_UP)
"""Names of the metrics that every client's reply contains."""
UNUSABLE = "unusable answer"
"""Beginning of the reason why a malformed reply is skipped; this package's host does not send such replies."""
UNREADABLE = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, f"{UNUSABLE}: it cannot be read")


@dataclass(frozen=True)
class Expected:
    """Checks whether a node's reply is usable; a device may send anything, which must not end the run.

    This package's host checks what its clients return (:class:`florilegium.clients.core.reduce.Reduction`); the checks
    here are for nodes that run other code.

    Attributes:
        stacked: whether ``arrays`` are stacks (one entry per client) rather than sums.
        changes_of: the arrays that were sent, if clients return updates of them, which must have the same shapes.
        heaviest: the largest weight allowed for each client's update.
        longest: the largest norm allowed for a client's update; 0: no limit.
        shapes: shapes of a client's arrays, if they are known and are no updates.
    """

    stacked: bool = False
    changes_of: Arrays | None = None
    heaviest: Mapping[str, float] = field(default_factory=dict)
    longest: float = 0.0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def read(self, reply: Message, ids: Sequence[str]) -> Reply:
        """Return the checked reply of a node that was asked to run the clients ``ids``.

        Raises:
            Exception: of any kind, if the reply is unusable.
        """
        answer = Reply.unpack(reply.content)
        self._check(answer, ids)
        if self.changes_of is not None:
            self._check_changes(answer, self.changes_of)
        return answer

    def kind(self, answer: Reply) -> frozenset[tuple[str, tuple[int, ...]]]:
        """Return the names and shapes of the arrays in a reply, those of a single client if stacked.

        Without optional ones: a reply has the changes of arrays beside the model that some client of the node returned.
        """
        shapes = self._shapes(answer)
        if self.changes_of is not None and not self.stacked:
            shapes = {name: shape for name, shape in shapes.items() if not name.startswith(BESIDE)}
        return frozenset(shapes.items())

    def _shapes(self, answer: Reply) -> dict[str, tuple[int, ...]]:
        return {name: array.shape[1:] if self.stacked else array.shape for name, array in answer.arrays.items()}

    def _check(self, answer: Reply, ids: Sequence[str]) -> None:
        """Raise ``ValueError`` if a reply names clients that were not asked, or its numbers or arrays are unusable."""
        strangers = ({*answer.clients} | answer.failures.keys()) - {*ids}
        if strangers or len(answer.clients) != len({*answer.clients}):
            raise ValueError(f"it speaks for the clients {answer.clients}, asked were {list(ids)}")
        for name in ALWAYS if answer.clients else ():
            if not np.isfinite(values := answer.metrics.get(name, [np.nan])).all() or min(values) < 0:
                raise ValueError(f"its numbers '{name}' are {values}")
        for name, values in answer.metrics.items():
            if len(values) != len(answer.clients):
                raise ValueError(f"it has {len(values)} numbers '{name}' for {len(answer.clients)} clients")
        for name, array in answer.arrays.items():
            if array.dtype.kind not in "biuf":
                raise ValueError(f"array '{name}' is of {array.dtype}, not of numbers")
            if not np.isfinite(array).all():
                raise ValueError(f"array '{name}' has NaN or infinity")
            if self.stacked and len(array) != len(answer.clients):
                raise ValueError(f"array '{name}' has {len(array)} rows for {len(answer.clients)} clients")
        if self.shapes and answer.clients and self._shapes(answer) != self.shapes:
            raise ValueError(f"its arrays have shapes {self._shapes(answer)}, expected {dict(self.shapes)}")

    def _check_changes(self, answer: Reply, sent: Arrays) -> None:
        """Raise ``ValueError`` if updates lack arrays that were sent, or exceed the allowed norm or weight."""
        weights = answer.metrics.get("weight", [])
        for client, weight in zip(answer.clients, weights, strict=True):
            if not 0 <= weight <= self.heaviest.get(client, math.inf):
                raise ValueError(f"client {client} has weight {weight:g}, at most {self.heaviest[client]:g} is its due")
        clients, squares = len(answer.clients), np.zeros(len(answer.clients) if self.stacked else 1)
        for name, array in sent.items():
            if not clients or (name.startswith(BESIDE) and name not in answer.arrays):
                continue
            expected, change = ((clients,) if self.stacked else ()) + array.shape, answer.arrays.get(name)
            if change is None or change.shape != expected:
                raise ValueError(
                    f"array '{name}' has shape {None if change is None else change.shape}, expected {expected}"
                )
            squares += np.square(change, dtype=np.float64).reshape(len(squares), -1).sum(axis=1)
        for name in answer.arrays.keys() - sent.keys():
            if name != WITHIN or answer.arrays[name].size != len(squares):
                raise ValueError(f"array '{name}' was not sent to it")
        most = self.longest if self.stacked else self.longest * float(np.sum(weights))
        if self.longest and clients and math.sqrt(squares.max()) > most * (1 + 1e-5):
            raise ValueError(f"an update has norm {math.sqrt(squares.max()):.4g}, more than max-update-norm allows")


def deliver(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    expected: Expected,
    *,
    deployed: bool,
    enough: int = 0,
    key: str = "round-timeout",
) -> list[Message]:
    """Send ``messages`` and wait for the replies, ``timeout`` seconds at most.

    Args:
        grid: the connection to the nodes.
        messages: at most one for each node.
        timeout: seconds to wait.
        expected: decides which replies are usable, if only ``enough`` are waited for.
        deployed: whether the nodes are real devices, which are polled less often.
        enough: number of clients with usable replies to wait for; 0: wait for all nodes.
        key: name of the configuration key that ``timeout`` is from, for error messages.

    Returns:
        One reply per message, in the order of ``messages``; an error reply for a node that did not reply, or whose
        reply was no longer needed.
    """
    start = time.monotonic()
    waiting: dict[str, int] = {}
    for index, message in enumerate(messages):
        for message_id in grid.push_messages([message]):
            if message_id:  # empty if the node has gone offline, and the message was not accepted
                waiting[message_id] = index
    replies: list[Message | None] = [None] * len(messages)
    shortest, longest = POLLS_DEPLOYED if deployed else POLLS
    answered, silent = 0, f"no reply within {timeout:g} s (key {key})"
    while waiting:
        for message_id, reply in _pull(grid, list(waiting)):
            index = waiting.pop(message_id, -1)
            reply = reply or Message(UNREADABLE, reply_to=messages[index])
            if index >= 0 and (not enough or answered < enough):
                replies[index] = reply
                answered += _succeeded(reply, messages[index], expected) if enough else 0
        if enough and answered >= enough:
            silent = f"not among the first {enough} to answer (key oversample)"
            break
        elapsed = time.monotonic() - start
        if not waiting or elapsed > timeout:
            break
        if not getattr(grid, "waits", False):
            time.sleep(min(max(shortest, elapsed / 10), longest))
    missing = Error(code=ErrorCode.NODE_UNAVAILABLE, reason=silent)
    return [
        Message(missing, reply_to=message) if reply is None else reply
        for message, reply in zip(messages, replies, strict=True)
    ]


def _pull(grid: Grid, message_ids: Sequence[str]) -> Iterator[tuple[str, Message | None]]:
    """Yield the replies that have arrived, each with the id of its request; None for one that cannot be read."""
    try:
        replies = list(grid.pull_messages(message_ids))
    except Exception as error:
        if len(message_ids) == 1:
            log.warning("an answer cannot be read: %s", error)
            yield message_ids[0], None
        else:  # one unreadable reply makes the whole pull fail, so pull them one by one
            for message_id in message_ids:
                yield from _pull(grid, [message_id])
        return
    for reply in replies:
        yield reply.metadata.reply_to_message_id, reply


def _succeeded(reply: Message, message: Message, expected: Expected) -> int:
    """Return the number of clients that succeeded in the reply to ``message``; 0 if the reply is unusable."""
    try:
        asked = cast(list[str], message.content["config"]["clients"])
        return 0 if reply.has_error() else len(expected.read(reply, asked).clients)
    except Exception:  # the error is reported by ``collect``
        return 0


@dataclass
class Outcome:
    """The merged replies of a cohort.

    Attributes:
        clients: ids of the clients that succeeded, in the order of the cohort.
        arrays: sums over these clients, or their arrays stacked in the order of ``clients``.
        metrics: for each metric one number per client, in the order of ``clients``.
        failures: the error of each client that failed.
        divisor: with client-level privacy, the expected total weight, which replaces the true, secret Σ wᵢ.
        totals: with secure aggregation, sums over the clients; then ``metrics`` is empty.
    """

    clients: list[str]
    arrays: Arrays
    metrics: dict[str, NDArray[np.float64]]
    failures: dict[str, str] = field(default_factory=dict)
    divisor: float | None = None
    totals: Totals | None = None

    @property
    def weight(self) -> float:
        """Total weight to divide sums by: Σ wᵢ over the clients that succeeded, or the ``divisor`` if set."""
        if self.divisor is not None:
            return self.divisor
        if self.totals is not None:
            return self.totals.weight
        return float(self.metrics["weight"].sum()) if self.clients else 0.0

    @property
    def examples(self) -> float:
        """Number of examples of all clients that succeeded together."""
        return float(np.sum(self.metrics.get("num-examples", 0.0))) if self.totals is None else self.totals.examples

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that the clients that succeeded have received, and sent."""
        if self.totals is not None:
            return int(self.totals.bytes_down), int(self.totals.bytes_up)
        down, up = (int(np.sum(self.metrics.get(name, 0.0))) for name in (BYTES_DOWN, BYTES_UP))
        return down, up

    def sums(self, metric: str, by: Weights = "weight") -> tuple[float, float]:
        """Return Σ wᵢ·mᵢ and Σ wᵢ over the clients that report ``metric``.

        Args:
            metric: name of the metric m.
            by: the weights w: those of the average, numbers of examples, or 1 for every client.
        """
        if self.totals is not None:
            return self.totals.sums(metric, by)
        values = self.metrics.get(metric, np.full(len(self.clients), np.nan))
        known = np.isfinite(values)
        weights = np.ones(len(values)) if by == "clients" or not len(values) else self.metrics[by]
        return float(np.sum(values[known] * weights[known])), float(np.sum(weights[known]))

    def mean(self, metric: str, by: Weights = "weight") -> float:
        """Return the weighted mean of ``metric`` over the clients that report it; NaN if none does."""
        total, weight = self.sums(metric, by)
        return total / weight if weight else math.nan


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Merge the outcomes of several groups of clients into one, without arrays."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.metrics)
    metrics = {
        name: np.concatenate([o.metrics.get(name, np.full(len(o.clients), np.nan)) for o in outcomes]) for name in names
    }
    failures = {client: reason for outcome in outcomes for client, reason in outcome.failures.items()}
    return Outcome([client for outcome in outcomes for client in outcome.clients], {}, metrics, failures)


def describe_error(reply: Message) -> str:
    """Return the reason of an error reply: the ClientApp's last line, without Flower's and Ray's wrapping."""
    lines = [line.strip() for line in str(reply.error.reason).splitlines() if line.strip()]
    said = (lines[-1] if lines else f"error code {reply.error.code}").rpartition("Message: ")[2]
    return said[:_REASON_LENGTH]


def collect(
    cohort: Sequence[str],
    asked: Mapping[int, Sequence[str]],
    replies: Sequence[Message],
    expected: Expected,
    *,
    deployed: bool,
) -> Outcome:
    """Merge the replies of one exchange; clients of unusable replies are listed as failures.

    Args:
        cohort: all clients, in the order of the outcome.
        asked: the clients that each node was asked to run.
        replies: one reply per node, in the order of ``asked``.
        expected: checks whether a reply is usable.
        deployed: whether the nodes are real devices; only these may disappear.

    Raises:
        RunError: if a simulation's worker process died, since Flower would send it every later message too.
    """
    answers: list[tuple[Sequence[str], Reply]] = []
    failures: dict[str, str] = {}
    for ids, reply in zip(asked.values(), replies, strict=True):
        if reply.has_error():
            reason = describe_error(reply)
            if reply.error.code == ErrorCode.UNKNOWN and not deployed:
                raise RunError(f"a worker process of the simulation died, most likely for lack of memory: {reason}")
            failures |= dict.fromkeys(ids, reason)
            continue
        try:
            answers.append((ids, expected.read(reply, ids)))
        except Exception as error:  # a device may send anything
            failures |= dict.fromkeys(ids, f"{UNUSABLE}: {error}")
    kinds = Counter(expected.kind(answer) for _, answer in answers for _ in answer.clients)
    usual = max(kinds, key=kinds.__getitem__, default=frozenset())
    sums: dict[str, NDArray[np.float64]] = {}
    stacks: dict[str, dict[str, NDArray[Any]]] = {}
    numbers: dict[str, dict[str, float]] = {}
    for ids, answer in answers:
        if answer.clients and expected.kind(answer) != usual:
            failures |= dict.fromkeys(ids, f"{UNUSABLE}: its arrays have other names or shapes than most have sent")
            continue
        failures |= dict.fromkeys({*ids} - {*answer.clients}, f"{UNUSABLE}: it says nothing of this client")
        failures |= {client: reason[:_REASON_LENGTH] for client, reason in answer.failures.items()}
        if not answer.clients:
            continue
        for name, array in answer.arrays.items():
            if expected.stacked:
                stacks.setdefault(name, {}).update(zip(answer.clients, array, strict=True))
            elif name in sums:
                sums[name] += array
            else:
                sums[name] = array.astype(np.float64)
        for name, values in answer.metrics.items():
            numbers.setdefault(name, {}).update(zip(answer.clients, values, strict=True))
    succeeded = [client for client in cohort if client in numbers.get("num-examples", {})]
    arrays: Arrays = dict(sums)
    arrays |= {name: np.stack([rows[client] for client in succeeded]) for name, rows in stacks.items()}
    metrics = {name: np.array([values.get(client, np.nan) for client in succeeded]) for name, values in numbers.items()}
    return Outcome(succeeded, arrays, metrics, failures)
