"""One exchange with the nodes: push all messages, pull all replies, and determine the result of each client.

Flower's own ``send_and_receive`` polls every 0.1 s (every 3 s in a deployment), and returns the replies that arrived
without naming the missing ones. Here the poll interval starts short and grows, a silent node gives an error reply, and
a dead worker process ends the run instead of making every later round fail.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from flwr.app import Error, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from florilegium.clients.core.joining import SMALL, together
from florilegium.clients.core.wire import BYTES_DOWN, BYTES_UP, OTHER_DATA, Reply
from florilegium.common.errors import RunError
from florilegium.common.foreign import printable
from florilegium.common.spool import zeros
from florilegium.models.parameters import Arrays, divide
from florilegium.strategies.exchange.expected import UNUSABLE, Expected
from florilegium.strategies.exchange.flower_inside import ErrorCode
from florilegium.strategies.exchange.pulling import AWAY, Pulls, pull
from florilegium.strategies.exchange.totals import Totals

log = logging.getLogger("flwr")

Weights = Literal["weight", "num-examples", "clients"]
"""How the clients count in a mean: by their weights in the average, by their numbers of examples, or all equally."""

POLLS, POLLS_DEPLOYED = (0.005, 0.05), (0.1, 1.0)
"""The shortest and the longest pause in seconds between two looks for replies, in a simulation and with devices."""
LATE = "not among the first"
"""Beginning of the reason why the reply of a client is not used that came after enough others."""


def silent(timeout: float, key: str = "round-timeout") -> str:
    """Return why a client is not used that has not replied within ``timeout`` seconds, the value of ``key``."""
    return f"no reply within {timeout:g} s (key {key})"


def late(enough: int) -> str:
    """Return why the reply of a client is not used that came after ``enough`` others."""
    return f"{LATE} {enough} to reply (key oversample)"


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
    return deliver_all(grid, [Parcel(messages, expected, enough)], timeout, deployed=deployed, key=key)[0]


class Parcel:
    """The messages of one exchange, and the replies that have arrived.

    Args:
        messages, expected, enough: those of :func:`deliver`.
    """

    def __init__(self, messages: Sequence[Message], expected: Expected, enough: int = 0) -> None:
        self.messages, self._expected, self._enough = messages, expected, enough
        self._replies: list[Message | None] = [None] * len(messages)
        self._succeeded = 0  # clients with usable replies, if they are counted

    @property
    def full(self) -> bool:
        """Whether there are as many usable replies as are waited for."""
        return 0 < self._enough <= self._succeeded

    def take(self, index: int, reply: Message | str) -> None:
        """Keep the reply to a message, unless it is no longer needed; a text says why one cannot be read."""
        if self.full:
            return
        reply = readable(self.messages[index], reply)
        self._replies[index] = reply
        if self._enough:
            self._succeeded += _succeeded(reply, self.messages[index], self._expected)

    def complete(self, why: str) -> list[Message]:
        """Return one reply per message, in their order; where there is none, an error with the reason ``why``."""
        reason = late(self._enough) if self.full else why
        missing = Error(code=ErrorCode.NODE_UNAVAILABLE, reason=reason)
        return [
            Message(missing, reply_to=message) if reply is None else reply
            for message, reply in zip(self.messages, self._replies, strict=True)
        ]


def deliver_all(
    grid: Grid,
    parcels: Sequence[Parcel],
    timeout: float,
    *,
    deployed: bool,
    key: str = "round-timeout",
) -> list[list[Message]]:
    """Send the messages of several exchanges at the same time; return the replies as :func:`deliver`, for each.

    A node gets at most one message in all.
    """
    start = time.monotonic()
    waiting: dict[str, tuple[Parcel, int]] = {}
    for parcel in parcels:
        for index, message in enumerate(parcel.messages):
            for message_id in _push(grid, message, join=deployed):
                if message_id:  # empty if the node has gone offline, and the message was not accepted
                    waiting[message_id] = parcel, index
    shortest, longest = POLLS_DEPLOYED if deployed else POLLS
    pulls = Pulls() if deployed else None
    if deployed:
        time.sleep(shortest)  # no device replies at once
    while waiting:
        found = pull(grid, [*waiting]) if pulls is None else pulls.look(grid, _nodes(waiting))
        for message_id, reply in found:
            if message_id in waiting:
                parcel, index = waiting.pop(message_id)
                parcel.take(index, reply)
        waiting = {message_id: place for message_id, place in waiting.items() if not place[0].full}
        elapsed = time.monotonic() - start
        if not waiting or elapsed > timeout:
            break
        if not getattr(grid, "waits", False):
            time.sleep(min(max(shortest, elapsed / 10), longest))
    return [parcel.complete(silent(timeout, key)) for parcel in parcels]


def _push(grid: Grid, message: Message, *, join: bool) -> Iterable[str]:
    """Send a message, to a device with its small records as one; return its id, empty if it was not accepted."""
    whole = message.content
    if join:
        message.content = together(whole, SMALL)
    try:
        return grid.push_messages([message])
    finally:
        message.content = whole


def _nodes(waiting: Mapping[str, tuple[Parcel, int]]) -> dict[str, int]:
    """Return the node of each request that is waited for."""
    return {name: parcel.messages[index].metadata.dst_node_id for name, (parcel, index) in waiting.items()}


def readable(message: Message, reply: Message | str) -> Message:
    """Return a reply to ``message``, or what stands for one that cannot be read; a text says why, which is logged."""
    if isinstance(reply, Message):
        return reply
    config: Any = message.content.get("config", {})
    log.warning("the reply of %s is unusable: %s", ", ".join(map(str, config.get("clients", ()))), reply)
    return Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, f"{UNUSABLE}: {reply}"), reply_to=message)


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
        revealed: number of clients in a secure sum that the server has seen, though it does not use it.
        groups: with secure sums of groups, the weight of each; then ``arrays`` are the groups' means, stacked.
    """

    clients: list[str]
    arrays: Arrays
    metrics: dict[str, NDArray[np.float64]]
    failures: dict[str, str] = field(default_factory=dict)
    divisor: float | None = None
    totals: Totals | None = None
    revealed: int = 0
    groups: Sequence[float] = ()

    @property
    def weight(self) -> float:
        """Total weight to divide sums by: Σ wᵢ over the clients that succeeded, or the ``divisor`` if set."""
        if self.divisor is not None:
            return self.divisor
        if self.totals is not None:
            return self.totals.weight
        return float(self.metrics["weight"].sum()) if self.clients else 0.0

    def means(self, names: Iterable[str]) -> Arrays:
        """Return the mean of each of these arrays, Σ ÷ :attr:`weight`.

        The sums are used up: the means take their place, since double precision of a large model has no room twice.
        """
        for name in names:
            self.arrays[name] = divide(self.arrays[name], self.weight)
        return {name: self.arrays[name] for name in names}

    def told(self, metric: str) -> NDArray[np.float64]:
        """Return what those clients report as ``metric`` that report it, (m,)."""
        values = self.metrics.get(metric, np.empty(0))
        return values[~np.isnan(values)]

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


def joined(outcomes: Sequence[Outcome], order: Sequence[str] = ()) -> Outcome:
    """Merge the outcomes of groups of clients into one, without arrays; its clients are in ``order``, if any."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.metrics)
    metrics = {
        name: np.concatenate([o.metrics.get(name, np.full(len(o.clients), np.nan)) for o in outcomes]) for name in names
    }
    failures = {client: reason for outcome in outcomes for client, reason in outcome.failures.items()}
    clients = [client for outcome in outcomes for client in outcome.clients]
    if order:
        place = {client: position for position, client in enumerate(order)}
        positions = np.argsort([place[client] for client in clients])
        clients = [clients[position] for position in positions]
        metrics = {name: values[positions] for name, values in metrics.items()}
    return Outcome(clients, {}, metrics, failures)


def describe_error(reply: Message) -> str:
    """Return the reason of an error reply: the ClientApp's last line, without Flower's and Ray's wrapping."""
    if str(reply.error.reason).startswith("Error: Node Unavailable"):  # Flower's words for a device without heartbeats
        return "its device went away"
    if reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE:  # after as long as Flower waits for parts of a reply
        return AWAY
    lines = [line.strip() for line in str(reply.error.reason).splitlines() if line.strip()]
    return printable((lines[-1] if lines else f"error code {reply.error.code}").rpartition("Message: ")[2])


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
        RunError: if a simulation's worker process died, since Flower would send it every later message too, or one
            reads other data than the run began with.
    """
    answers: list[tuple[Sequence[str], Reply]] = []
    failures: dict[str, str] = {}
    for ids, reply in zip(asked.values(), replies, strict=True):
        if reply.has_error():
            reason = describe_error(reply)
            if reply.error.code == ErrorCode.UNKNOWN and not deployed:
                raise RunError(f"a worker process of the simulation died, most likely for lack of memory: {reason}")
            if OTHER_DATA in reason and not deployed:
                raise RunError(reason[reason.index(OTHER_DATA) :])
            failures |= dict.fromkeys(ids, reason)
            continue
        try:
            answers.append((ids, expected.read(reply, ids)))
        except Exception as error:  # a device may send anything
            failures |= dict.fromkeys(ids, f"{UNUSABLE}: {printable(error)}")
    sums: dict[str, NDArray[np.float64]] = {}
    stacks: dict[str, dict[str, NDArray[Any]]] = {}
    numbers: dict[str, dict[str, float]] = {}
    for (ids, _), answer in zip(answers, expected.compared([answer for _, answer in answers]), strict=True):
        failures |= dict.fromkeys({*ids} - {*answer.clients}, f"{UNUSABLE}: it does not mention this client")
        failures |= answer.failures
        if not answer.clients:
            continue
        new = {name: array.shape for name, array in answer.arrays.items() if name not in sums}
        sums |= {} if expected.stacked else zeros(new)
        for name, array in answer.arrays.items():
            if expected.stacked:
                stacks.setdefault(name, {}).update(zip(answer.clients, array, strict=True))
            elif name in new:
                np.copyto(sums[name], array)
            else:
                sums[name] += array
        for name, values in answer.metrics.items():
            numbers.setdefault(name, {}).update(zip(answer.clients, values, strict=True))
    succeeded = [client for client in cohort if client in numbers.get("num-examples", {})]
    arrays: Arrays = dict(sums)
    arrays |= {name: _stacked(rows, succeeded) for name, rows in stacks.items()}
    metrics = {name: np.array([values.get(client, np.nan) for client in succeeded]) for name, values in numbers.items()}
    return Outcome(succeeded, arrays, metrics, failures)


def _stacked(rows: Mapping[str, NDArray[Any]], clients: Sequence[str]) -> NDArray[Any]:
    """Return the clients' rows of an array; zeros for a client without one, which has not changed that array."""
    none = np.zeros_like(next(iter(rows.values())))
    return np.stack([rows.get(client, none) for client in clients])
