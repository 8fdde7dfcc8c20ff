"""What a round asks of clients: a cohort, groups of clients, and the exchanges with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from flwr.app import Message
from numpy.typing import NDArray

from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.expected import Expected

Reduce = Literal["delta", "sum", "stack"]


class Cohort(list[str]):
    """The clients drawn for a round.

    Attributes:
        wanted: number of replies needed; fewer than there are clients if they are oversampled.
    """

    def __init__(self, clients: Iterable[str], wanted: int) -> None:
        super().__init__(clients)
        self.wanted = wanted


@dataclass(frozen=True)
class Group:
    """Clients that are all sent the same arrays, while other groups are sent others (:meth:`Round.ask_groups`).

    Attributes:
        cohort: the clients.
        send: the arrays.
        arguments: the phase's own arguments.
        shapes: the arrays that each of them returns, as for :meth:`Round.ask`.
        base: with "stack", what a client's arrays are compared with, as for :meth:`Round.ask`.
    """

    cohort: Sequence[str]
    send: Arrays
    arguments: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    base: Callable[[str], Arrays] | None = None


@dataclass(frozen=True)
class Exchange:
    """One exchange: everything that is needed to send it and to interpret the replies.

    Attributes:
        phase, arguments: the phase, and its arguments.
        cohort: the clients of the exchange, in the order of the outcome.
        nodes: the clients of each node that gets a message; without those whose reply would not be used.
        reduce, send, scatter, shapes, evaluation: those of :meth:`Round.ask`.
        number: the round's number.
        started: time of the start, by ``time.perf_counter``.
        base: that of :meth:`Round.ask`.
    """

    phase: str
    arguments: Mapping[str, Any]
    cohort: Sequence[str]
    nodes: Mapping[int, Sequence[str]]
    reduce: Reduce
    send: Arrays | None
    scatter: Mapping[str, NDArray[Any]]
    shapes: Mapping[str, tuple[int, ...]]
    evaluation: bool
    number: int
    started: float
    base: Callable[[str], Arrays] | None = None

    @property
    def wanted(self) -> int:
        """Number of replies needed."""
        return self.cohort.wanted if isinstance(self.cohort, Cohort) else len(self.cohort)

    @property
    def updates(self) -> bool:
        """Whether clients return updates (returned − sent) for training."""
        return self.reduce == "delta"


@dataclass(frozen=True)
class Posted:
    """A request to a single device whose reply is not waited for.

    Attributes:
        id: the message's id; "" if the device's node has gone offline.
        client: the device's client.
        version: the round in which it was sent.
        exchange, expected, message: what is needed to interpret the reply.
        at: when it was sent, by ``time.monotonic``.
    """

    id: str
    client: str
    version: int
    exchange: Exchange
    expected: Expected
    message: Message
    at: float


def check_options(
    cohort: Sequence[str],
    reduce: Reduce,
    scatter: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Raise :class:`TypeError` if the options of :meth:`Round.ask` cannot be meant."""
    if reduce not in get_args(Reduce):
        raise TypeError(f"reduce: '{reduce}' is unknown; allowed: {', '.join(get_args(Reduce))}")
    for name, array in scatter.items():
        if len(array) != len(cohort):
            raise TypeError(f"scatter: '{name}' has {len(array)} entries for {len(cohort)} clients")
    if shapes and reduce == "delta":
        raise TypeError("shapes: those of changes are the shapes of what is sent; leave them out")
