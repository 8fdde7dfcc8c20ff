"""A round as a method sees it: sample a cohort, ask it to carry out a phase, get the merged outcome.

    cohort = round.sample()
    outcome = round.ask("train", cohort, send=model, reduce="delta")

:meth:`Round.ask` checks the arguments against the phase's signature, sends one message to each node, waits for the
replies, merges the usable ones, protects private sums, and records bytes, failures and telemetry.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from flwr.app import ArrayRecord, ConfigRecord, Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from numpy.typing import NDArray

from florilegium.clients.core.phases import contracts_of
from florilegium.clients.core.reduce import longest_update
from florilegium.clients.core.secure_wire import Terms
from florilegium.clients.core.wire import NOISE, WITHIN_NOISE, Request, Work, flat
from florilegium.common.errors import BudgetSpentError, RunError
from florilegium.models.parameters import Arrays, num_bytes
from florilegium.strategies.core.clock import Load
from florilegium.strategies.core.example_privacy import expected_trainings
from florilegium.strategies.core.exchange import (
    LATE,
    UNUSABLE,
    Outcome,
    Parcel,
    collect,
    deliver_all,
    pull,
    unreadable,
)
from florilegium.strategies.core.expected import Expected
from florilegium.strategies.core.robust import robust_sum
from florilegium.strategies.core.round_record import RoundRecord
from florilegium.strategies.core.secure_exchange import SecureExchange, Task

if TYPE_CHECKING:
    from florilegium.strategies.core.cohort import CohortStrategy

log = logging.getLogger("flwr")

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
    """

    cohort: Sequence[str]
    send: Arrays
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Exchange:
    """One exchange: everything that is needed to send it and to interpret the replies.

    Attributes:
        phase, arguments: the phase, and its arguments.
        cohort: the clients of the exchange, in the order of the outcome.
        nodes: the clients of each node that gets a message; without those whose reply would not be used.
        reduce, send, scatter, shapes, evaluation: those of :meth:`Round.ask`.
        robust: whether individual updates are returned, for robust aggregation.
        started: time of the start, by ``time.perf_counter``.
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
    robust: bool
    started: float

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


class Round:
    """One round of a run.

    Args:
        strategy: the run's strategy, with its settings, roster, folder and counters.
        grid: the connection to the nodes.
        number: the round's number, from 1 on; 0 for exchanges before the first round.
        final: whether the run ends with this round; then devices save the model that they test.
        record: collects what the exchanges report; by default a new one.
    """

    def __init__(
        self,
        strategy: CohortStrategy,
        grid: Grid,
        number: int,
        *,
        final: bool = False,
        record: RoundRecord | None = None,
    ) -> None:
        self._strategy = strategy
        self._grid = grid
        self.number = number
        self.final = final
        self.record = record or RoundRecord()

    def numbered(self, number: int) -> Round:
        """Return this round with another number, which determines its cohort and its random draws."""
        return Round(self._strategy, self._grid, number, final=self.final, record=self.record)

    def sample(self) -> Cohort:
        """Draw the round's cohort (:meth:`florilegium.strategies.core.cohort.CohortStrategy.sample`)."""
        return self._strategy.sample(self.number)

    def ask(
        self,
        phase: str,
        cohort: Sequence[str],
        *,
        reduce: Reduce,
        send: Arrays | None = None,
        scatter: Mapping[str, NDArray[Any]] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        evaluation: bool = False,
        out_of: int | None = None,
        arrived: bool = False,
        **arguments: Any,
    ) -> Outcome:
        """Ask ``cohort`` to carry out ``phase``; return the merged outcome.

        Args:
            phase: the name of a phase of the method's client.
            cohort: the clients to ask.
            reduce: how clients' arrays are combined: "delta" = Σ wᵢ·(returned − sent), "sum" = Σ returned, "stack" =
                returned arrays along a new first axis.
            send: arrays for every client; "delta" refers to these.
            scatter: arrays with a leading axis in the order of ``cohort``; each client gets its own entry.
            shapes: expected shapes of the arrays that a client returns, if known; not for "delta".
            evaluation: whether the exchange evaluates rather than trains; its bytes are not counted.
            out_of: number of clients of which a share of ``min-success`` must succeed, if some were skipped earlier and
                are not in ``cohort``; 0: any number may fail. Default: the replies needed from ``cohort``.
            arrived: whether the virtual time of the exchange has passed already.
            arguments: the phase's own arguments.

        Raises:
            TypeError: if ``arguments`` do not fit the phase's signature.
            RunError: if too few clients succeeded (:meth:`require`).
        """
        _check_options(cohort, reduce, scatter or {}, shapes or {})
        exchange = self._exchange(phase, cohort, arguments, reduce, send, scatter, shapes, evaluation=evaluation)
        (outcome,) = self._carry_out([exchange], arrived=arrived)
        if not cohort and exchange.updates and self._strategy.protection is not None:
            return outcome  # by chance nobody takes part, and noise alone is released
        return outcome if out_of == 0 else self.require(outcome, out_of or exchange.wanted)

    def ask_groups(
        self, phase: str, groups: Sequence[Group], *, reduce: Literal["delta", "sum"], evaluation: bool = False
    ) -> list[Outcome]:
        """Ask groups of clients at the same time, each with arrays of its own; return an outcome for each.

        Args:
            phase: the name of a phase of the method's client.
            groups: the groups, no client in two of them; any number of their clients may fail.
            reduce, evaluation: those of :meth:`ask`.

        Raises:
            TypeError: if a group's arguments do not fit the phase's signature.
        """
        return self._carry_out([
            self._exchange(phase, group.cohort, group.arguments, reduce, group.send, evaluation=evaluation)
            for group in groups
        ])  # fmt: skip

    def load(self, phase: str, send: Arrays) -> Load:
        """Return what ``phase`` asks of a client that is sent arrays and returns its update of all of them."""
        sent, scheme = num_bytes(send), self._strategy.scheme
        return Load(phase, sent, max(1, sent if scheme is None else scheme.message_size(send)))

    def post(self, phase: str, clients: Sequence[str], *, send: Arrays, **arguments: Any) -> list[Posted]:
        """Ask real devices to carry out ``phase`` and return their updates of ``send``; do not wait.

        Raises:
            TypeError: if ``arguments`` do not fit the phase's signature.
        """
        posted, checked, record = [], self._checked(phase, arguments), flat(send)
        for client in clients:
            nodes = self._strategy.roster.assign([client], evaluation=False)
            exchange = Exchange(phase, checked, [client], nodes, "delta", send, {}, {}, False, False, 0.0)
            (message,) = self._messages(exchange, nodes, record)
            (name,) = self._grid.push_messages([message])
            posted.append(
                Posted(name, client, self.number, exchange, self._expected(exchange), message, time.monotonic())
            )
        return posted

    def arrived(self, posted: Sequence[Posted]) -> list[tuple[Posted, Message]]:
        """Return those of the requests whose replies have arrived since, with the replies."""
        waiting = {one.id: one for one in posted if one.id}
        pulled = pull(self._grid, [*waiting]) if waiting else ()
        found = [(waiting[name], reply) for name, reply in pulled if name in waiting]
        offline = Error(ErrorCode.NODE_UNAVAILABLE, "its device is offline")
        lost = [(one, Message(offline, reply_to=one.message)) for one in posted if not one.id]
        return [(one, reply or unreadable(one.message)) for one, reply in found] + lost

    def receive(self, posted: Posted, reply: Message) -> Outcome:
        """Return the outcome of a single device's reply, checked, counted and recorded in this round."""
        exchange = replace(posted.exchange, started=time.perf_counter())
        outcome = collect(exchange.cohort, exchange.nodes, [reply], posted.expected, deployed=True)
        return self._account(exchange, outcome)

    def skip(self, phase: str, reasons: Mapping[str, str]) -> None:
        """Record clients that were asked to carry out a phase and whose replies are not used, with the reasons."""
        self.record.add(phase, 0.0, reasons, Outcome([], {}, {}, {**reasons}), evaluation=False)
        self._note_failures(phase, reasons)

    def require(self, outcome: Outcome, asked: int) -> Outcome:
        """Return ``outcome`` if enough of the ``asked`` clients have succeeded.

        Raises:
            BudgetSpentError: if all of them have spent their privacy budgets.
            RunError: if a smaller share than ``min-success`` has succeeded.
        """
        strategy = self._strategy
        spent = len(strategy.accounts.spent & outcome.failures.keys())  # not counted as failures
        if spent and spent >= asked:
            raise BudgetSpentError("all clients that were asked have spent their budgets")
        asked -= spent
        share = strategy.settings.min_success
        if not outcome.clients or len(outcome.clients) < share * asked:
            reasons = "; ".join(f"client {client}: {reason}" for client, reason in list(outcome.failures.items())[:5])
            wanted = f"fewer than min-success = {share:g} asks for"
            if not share * asked:
                wanted = "and a run needs at least one, whatever min-success allows"
            raise RunError(f"only {len(outcome.clients)} of {asked} clients succeeded, {wanted}. {reasons}")
        return outcome

    # --------------------------------------------------------------------------------------- details

    def _exchange(
        self, phase: str, cohort: Sequence[str], arguments: Mapping[str, Any], reduce: Reduce, send: Arrays | None,
        scatter: Mapping[str, NDArray[Any]] | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None,
        *, evaluation: bool,
    ) -> Exchange:  # fmt: skip
        """Return an exchange as it is before its clients are distributed over nodes; raise as :meth:`ask`."""
        robust = reduce == "delta" and self._strategy.settings.aggregation != "mean"
        return Exchange(
            phase, self._checked(phase, arguments), cohort, {}, reduce, send, scatter or {}, shapes or {}, evaluation,
            robust, 0.0,
        )  # fmt: skip

    def _carry_out(self, exchanges: Sequence[Exchange], *, arrived: bool = False) -> list[Outcome]:
        """Carry out exchanges that begin at the same time.

        Real devices are all sent their messages at once. The nodes of a simulation take one message after the other,
        and a secure sum has several stages; then the exchanges take turns.
        """
        strategy, outcomes = self._strategy, list[Outcome]()
        unused = {} if arrived else self._pass_time(exchanges)
        exchanges = [
            replace(one, nodes=strategy.roster.assign(
                [client for client in one.cohort if client not in unused], evaluation=one.evaluation
            ))
            for one in exchanges
        ]  # fmt: skip
        secure = strategy.settings.secure_aggregation
        together = strategy.roster.deployed and not secure
        for batch in [exchanges] if together else [[one] for one in exchanges]:
            started = time.perf_counter()
            found = [self._secure(one) for one in batch] if secure else self._plain(batch)
            for one, outcome in zip(batch, found, strict=True):
                outcome.failures |= {client: unused[client] for client in one.cohort if client in unused}
                outcomes.append(self._account(replace(one, started=started), outcome))
                started = time.perf_counter()  # time that is shared counts once
        return outcomes

    def _pass_time(self, exchanges: Sequence[Exchange]) -> dict[str, str]:
        """Let the virtual time of exchanges pass; return the clients whose replies the server does not use, and why.

        Only the others are asked to carry out the phase.
        """
        clock, roster = self._strategy.clock, self._strategy.roster
        if clock is None or any(one.evaluation for one in exchanges):
            return {}
        return clock.wait(*(
            (clock.jobs([roster.clients[client] for client in one.cohort], [self.number], self._load(one)), one.wanted)
            for one in exchanges
        ))  # fmt: skip

    def _load(self, exchange: Exchange) -> Load:
        """Return what an exchange asks of each client; if nothing else is known, as many bytes return as are sent."""
        sent = num_bytes(exchange.send or {})
        own = sum(array.nbytes for array in exchange.scatter.values()) / max(1, len(exchange.cohort))
        returned = sum(4.0 * math.prod(shape) for shape in exchange.shapes.values()) if exchange.shapes else sent + own
        if exchange.updates:
            returned = self.load(exchange.phase, exchange.send or {}).up
        return Load(exchange.phase, sent + own, max(1, returned))

    def _checked(self, phase: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in the types of the phase's signature; raise :class:`TypeError` if they do not fit."""
        client = self._strategy.client
        contracts = contracts_of(client)
        if phase not in contracts:
            raise TypeError(f"{client.__name__} has no phase '{phase}'. Known: {', '.join(sorted(contracts))}.")
        return contracts[phase].read(arguments)

    def _expected(self, exchange: Exchange) -> Expected:
        """Return the checks that decide whether a reply is usable, with the largest weight allowed for each client."""
        strategy = self._strategy
        roster, told = strategy.roster, self._protection(exchange)
        sent = exchange.send if exchange.updates else None
        limits = [strategy.settings.max_update_norm]
        if sent is not None and strategy.protection is not None:
            limits.append(strategy.protection.clip_norm)
        elif sent is not None and roster.deployed and not limits[0]:
            limits.append(longest_update(sent))
        members = [roster.clients[client] for client in exchange.cohort if roster.deployed]
        sizes = {member.id: member.train + member.test for member in members}
        return Expected(
            exchange.reduce == "stack" or exchange.robust, sent, strategy.dues(exchange.cohort), sizes,
            min(filter(None, limits), default=0.0), told.get(NOISE, 0.0), told.get(WITHIN_NOISE, 0.0), exchange.shapes,
            strategy.reported, strategy.scheme,
            math.inf if strategy.protection is None else strategy.protection.clip_norm,
            partial(strategy.check_reply, exchange.phase, exchange.send or {}),
        )  # fmt: skip

    def _protection(self, exchange: Exchange) -> dict[str, float]:
        """Return the fields of a request that say how clients protect their updates; {} if they do not."""
        strategy = self._strategy
        if strategy.protection is None or not exchange.updates:
            return {}
        return strategy.protection.request(strategy.cohort_size(self.number))

    def _plain(self, exchanges: Sequence[Exchange]) -> list[Outcome]:
        """Carry out exchanges at the same time in which the server sees the reply of each node."""
        deployed, expected = self._strategy.roster.deployed, [self._expected(one) for one in exchanges]
        parcels = [
            Parcel(
                self._messages(one, one.nodes, _record(one)), checks,
                enough=one.wanted if deployed and one.wanted < len(one.cohort) else 0,
            )
            for one, checks in zip(exchanges, expected, strict=True)
        ]  # fmt: skip
        replies = deliver_all(self._grid, parcels, self._strategy.settings.round_timeout, deployed=deployed)
        return [
            collect(one.cohort, one.nodes, own, checks, deployed=deployed)
            for one, own, checks in zip(exchanges, replies, expected, strict=True)
        ]

    def _secure(self, exchange: Exchange) -> Outcome:
        """Carry out an exchange in which the server sees sums over the cohort alone.

        Raises:
            RunError: if the exchange needs more.
        """
        strategy, s = self._strategy, self._strategy.settings
        if exchange.reduce == "stack" or exchange.scatter or exchange.robust:
            raise RunError(f"phase '{exchange.phase}' needs single clients' replies, which secure-aggregation hides")
        asked = {client for clients in exchange.nodes.values() for client in clients}
        members = {client: strategy.roster.clients[client] for client in exchange.cohort if client in asked}
        norm = noise = 0.0
        if exchange.updates:
            norm = s.max_update_norm
        if exchange.updates and strategy.protection is not None:
            norm = strategy.protection.clip_norm
            noise = self._protection(exchange).get(NOISE, 0.0)
        task = Task(
            [*members], exchange.nodes, strategy.run.name, strategy.identity,
            {c: float(member.train + (0 if exchange.updates else member.test)) for c, member in members.items()},
            exchange.send or {}, norm, exchange.shapes or _shapes(exchange.send if exchange.updates else None),
            noise,
            lambda nodes, terms: self._messages(exchange, nodes, _record(exchange), terms),
        )  # fmt: skip
        secure = SecureExchange(s, self._grid, task, deployed=strategy.roster.deployed)
        outcome = secure.carry_out()
        strategy.secure.note(secure)
        return outcome

    def _messages(
        self,
        exchange: Exchange,
        nodes: Mapping[int, Sequence[str]],
        record: ArrayRecord | ConfigRecord | None,
        terms: Callable[[Sequence[str]], Terms] | None = None,
    ) -> list[Message]:
        """Return a message for each node, which names the clients of the cohort that it shall run.

        Args:
            exchange: the exchange.
            nodes: the clients of each node.
            record: what every client is sent, which all messages share; None for nothing.
            terms: returns the terms of a secure sum for these clients; None without one.
        """
        strategy, work, protection = self._strategy, self._work(), self._protection(exchange)
        position = {client: index for index, client in enumerate(exchange.cohort)}
        kind = "deltas" if exchange.robust else exchange.reduce
        keeps = exchange.updates and strategy.settings.compression.feeds_back
        messages = []
        for node, clients in nodes.items():
            rows = [position[client] for client in clients]
            own = {name: array[rows] for name, array in exchange.scatter.items()}
            request = Request(
                clients, exchange.phase, kind, work, exchange.arguments, protection, scatter=own,
                secure=None if terms is None else terms(clients),
                used=strategy.receipts.of(exchange.phase, clients) if keeps else (),
            )  # fmt: skip
            messages.append(Message(request.pack(record), node, "evaluate" if exchange.evaluation else "train"))
        return messages

    def _work(self) -> Work:
        """Return the description of the round and the run that every request of this round contains."""
        strategy = self._strategy
        expected: dict[str, float] = {}
        if strategy.settings.privacy.unit == "example":
            expected = expected_trainings(strategy.settings, strategy.shares())
        return Work(
            self.number, strategy.run.name, strategy.identity, strategy.lineage, strategy.checkpoint_round, self.final,
            **expected, heaviest=None if strategy.settings.secure_aggregation else strategy.heaviest,
        )  # fmt: skip

    def _account(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Protect the sums of an outcome, count bytes, and record the clients that failed."""
        strategy = self._strategy
        down, up = outcome.traffic
        seconds, failed = time.perf_counter() - exchange.started, len(outcome.failures)
        self.record.add(exchange.phase, seconds, exchange.cohort, outcome, evaluation=exchange.evaluation)
        if strategy.telemetry is not None:
            strategy.telemetry.exchange(exchange.phase, seconds, len(exchange.cohort), failed, down, up)
        self._note_failures(exchange.phase, outcome.failures)
        if strategy.settings.privacy.unit == "example":
            strategy.accounts.hear(outcome)
        if exchange.updates and strategy.settings.compression.feeds_back:
            strategy.receipts.add(exchange.phase, outcome.clients, self.number)
        if exchange.robust and outcome.clients:
            s = strategy.settings
            outcome.arrays = robust_sum(outcome, s.aggregation, s.attackers, exchange.wanted)
        if strategy.protection is not None and not exchange.updates and outcome.arrays:
            raise RunError(f"phase '{exchange.phase}' returns arrays that privacy.unit = 'client' cannot protect")
        if strategy.protection is not None and exchange.updates:
            members, size = len(strategy.trainable()), strategy.cohort_size(self.number)
            outcome = strategy.protection.protect(
                outcome, size, members, exchange.send or {}, exchange.phase, self.number, exchange.cohort
            )
        if outcome.clients and not exchange.evaluation:
            strategy.bytes_down += down
            strategy.bytes_up += up
            if strategy.clock is not None:
                strategy.clock.heard(self._load(exchange), len(outcome.clients), up)
        return outcome

    def _note_failures(self, phase: str, reasons: Mapping[str, str]) -> None:
        """Log and record the clients that did not contribute to an exchange."""
        strategy = self._strategy
        for client, reason in reasons.items():
            if reason.startswith(LATE):  # of over-sampled clients, some are late in every round
                log.info("client %s is skipped: %s", client, reason)
            else:
                log.warning("client %s failed and is skipped: %s", client, reason)
            if reason.startswith(UNUSABLE) or strategy.settings.secure_aggregation:  # then reasons tell nothing
                strategy.roster.ask_again(client)
        if reasons and strategy.run.opened:
            strategy.run.note_failures(self.number, phase, reasons)


def _record(exchange: Exchange) -> ArrayRecord | ConfigRecord | None:
    return None if exchange.send is None else flat(exchange.send)


def _shapes(arrays: Arrays | None) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in (arrays or {}).items()}


def _check_options(
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
