"""The contract of a layer, server side: what it asks of clients, checks in replies, and does with their sums."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

from flwr.app import Message
from flwr.serverapp import Grid

from florilegium.clients.core.reports import Reports
from florilegium.clients.core.secure_wire import Terms
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Request
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.population import Population
from florilegium.strategies.exchange.requests import Exchange, Reduce
from florilegium.strategies.folder.run_folder import RunFolder
from florilegium.strategies.layers.example_privacy import ClientAccounts
from florilegium.strategies.settings.server import ServerSettings

MakesMessages = Callable[[Mapping[int, Sequence[str]], Callable[[Sequence[str]], Terms] | None], Sequence[Message]]
"""Makes the messages of an exchange, given the clients of each node, and the terms of a secure sum for some clients."""


class Running(Protocol):
    """What layers know of a run (:class:`florilegium.strategies.core.federation.Federation`)."""

    settings: ServerSettings
    run: RunFolder
    clients: Population
    identity: str
    accounts: ClientAccounts
    buffers: Sequence[str]

    @property
    def exchanged(self) -> Sequence[str]:
        """Return the names of what training changes of the network."""

    @property
    def reported(self) -> Reports:
        """The numbers that clients may report, with their ranges."""

    def trainable(self) -> list[str]:
        """Return the clients that may train."""

    def evaluated(self) -> list[str]:
        """Return the clients to evaluate."""

    def cohort_size(self, server_round: int) -> int:
        """Return the expected size of a round's cohort."""

    def asked(self, needed: int, of: int) -> int:
        """Return how many of ``of`` clients are asked for ``needed`` replies."""

    def shares(self) -> list[float]:
        """Return for each round the share of the trainable clients that are asked to train."""

    def kept(self, folder: str, client: str, server_round: int) -> ClientState:
        """Return the arrays that the server keeps under a name in a folder of the run, as they are in a round."""


class Asks(Protocol):
    """A round, which asks clients (:class:`florilegium.strategies.core.round.Round`)."""

    def ask(
        self, phase: str, cohort: Sequence[str], *, reduce: Reduce, send: Arrays | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None, out_of: int | None = None,
    ) -> Outcome:  # fmt: skip
        """Ask ``cohort`` to carry out ``phase``; return the merged outcome."""


class Layer:
    """A layer of a run; by default it does nothing. All methods but :meth:`opened` may be left as they are.

    Attributes:
        hides: whether the server sees no single client's reply.
    """

    hides: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer, None if the run's settings do not ask for it."""

    # ------------------------------------------------------------------------------------------ start

    def check(self, groups: Callable[[], Mapping[str, Sequence[str]]]) -> None:
        """Check the settings with the clients that are there; ``groups``: returns those to evaluate.

        Raises:
            ConfigurationError: if they are not possible.
        """

    def begin(self, first: Arrays, rounds: int, done: int) -> None:
        """Prepare for the rounds to come.

        Args:
            first: the server's initial arrays.
            rounds: number of rounds of the run.
            done: how many of these are finished.

        Raises:
            ConfigurationError: if the run cannot go on.
        """

    def honest(self, clients: Sequence[str]) -> list[str]:
        """Return those of ``clients`` that are evaluated: all but attackers."""
        return [*clients]

    # ------------------------------------------------------------------------------------ an exchange

    def sample(self, clients: Sequence[str], size: int, server_round: int) -> list[str] | None:
        """Return the cohort of a round; None if the layer leaves that to others.

        Args:
            clients: those that may be drawn.
            size: how many of them are expected.
            server_round: the round.
        """
        return None

    def work(self) -> Mapping[str, float]:
        """Return fields of :class:`florilegium.clients.core.wire.Work` that the layer's clients need."""
        return {}

    def size(self, sent: Arrays, size: int) -> int:
        """Return the bytes of a client's update of ``sent``, which are ``size`` without this layer."""
        return size

    def request(self, exchange: Exchange, request: Request) -> Request:
        """Return the request to the clients of a node, with what the layer asks of them."""
        return request

    def expect(self, exchange: Exchange, expected: Expected) -> Expected:
        """Return the checks of replies, with the layer's own."""
        return expected

    def carry(self, grid: Grid, exchange: Exchange, expected: Expected, messages: MakesMessages) -> Outcome | None:
        """Carry out an exchange in the layer's own way; None if it has none.

        Args:
            grid: the connection to the nodes.
            exchange: the exchange.
            expected: the checks of replies.
            messages: makes the messages.
        """
        return None

    def settle(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Return the outcome of an exchange after the layer has done with it what is to be done."""
        return outcome

    def after(self, round: Asks, model: Arrays) -> Arrays:
        """Return the model that ``round`` leaves, after the method has made ``model``."""
        return model

    def spent(self, server_round: int) -> str:
        """Return why the coming round ``server_round`` cannot be carried out, "" if it can."""
        return ""

    # ------------------------------------------------------------------------------------------ state

    def facts(self) -> dict[str, Any]:
        """Return the layer's state for checkpoints; JSON values."""
        return {}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`facts` returned, among the facts of a checkpoint."""

    def report(self) -> dict[str, Any]:
        """Return the layer's own blocks of ``summary.json``."""
        return {}
