"""Carry out the exchanges of a round: one message to each node, checks of the replies, protected sums, and records."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from florilegium.clients.core.secure_wire import Terms
from florilegium.clients.core.wire import CLIP_NORM, NOISE, WITHIN_NOISE, Request, Work, flat
from florilegium.clients.layers.bound import longest_update
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays, num_bytes, shapes_of
from florilegium.strategies.core.clock import Load
from florilegium.strategies.core.example_privacy import expected_trainings
from florilegium.strategies.core.exchange import LATE, UNUSABLE, Outcome, Parcel, collect, deliver_all
from florilegium.strategies.core.expected import Expected
from florilegium.strategies.core.federation import Federation
from florilegium.strategies.core.requests import Exchange
from florilegium.strategies.core.robust import robust_sum
from florilegium.strategies.core.round_record import RoundRecord
from florilegium.strategies.core.secure_exchange import SecureExchange, Task

log = logging.getLogger("flwr")


class Carrier:
    """Carries out the exchanges of one round.

    Args:
        federation: the run's federation, with its settings, roster, folder and counters.
        grid: the connection to the nodes.
        number: the round's number.
        final: whether the run ends with this round.
        record: collects what the exchanges report.
    """

    def __init__(self, federation: Federation, grid: Grid, number: int, record: RoundRecord, *, final: bool) -> None:
        self._federation, self._grid, self._number, self._record, self._final = federation, grid, number, record, final

    def load(self, phase: str, send: Arrays) -> Load:
        """Return what ``phase`` asks of a client that is sent arrays and returns its update of all of them."""
        sent, scheme = num_bytes(send), self._federation.scheme
        return Load(phase, sent, max(1, sent if scheme is None else scheme.message_size(send)))

    def carry_out(self, exchanges: Sequence[Exchange], *, arrived: bool = False) -> list[Outcome]:
        """Carry out exchanges that begin at the same time.

        Real devices are all sent their messages at once. The nodes of a simulation take one message after the other,
        and a secure sum has several stages; then the exchanges take turns.
        """
        federation, outcomes = self._federation, list[Outcome]()
        unused = {} if arrived else self._pass_time(exchanges)
        exchanges = [
            replace(one, nodes=federation.roster.assign(
                [client for client in one.cohort if client not in unused], evaluation=one.evaluation
            ))
            for one in exchanges
        ]  # fmt: skip
        secure = federation.settings.secure_aggregation
        together = federation.roster.deployed and not secure
        for batch in [exchanges] if together else [[one] for one in exchanges]:
            started = time.perf_counter()
            found = [self._secure(one) for one in batch] if secure else self._plain(batch)
            for one, outcome in zip(batch, found, strict=True):
                outcome.failures |= {client: unused[client] for client in one.cohort if client in unused}
                outcomes.append(self.account(replace(one, started=started), outcome))
                started = time.perf_counter()  # time that is shared counts once
        return outcomes

    def expected(self, exchange: Exchange) -> Expected:
        """Return the checks that decide whether a reply is usable, with the largest weight allowed for each client."""
        federation = self._federation
        roster, told = federation.roster, self._protection(exchange)
        sent = exchange.send if exchange.updates else None
        limits = [federation.settings.max_update_norm]
        if sent is not None and federation.protection is not None:
            limits.append(federation.protection.clip_norm)
        elif sent is not None and roster.deployed and not limits[0]:
            limits.append(longest_update(sent))
        members = [roster.clients[client] for client in exchange.cohort if roster.deployed]
        sizes = {member.id: member.train + member.test for member in members}
        return Expected(
            exchange.reduce == "stack" or exchange.robust, sent, federation.clients.dues(exchange.cohort), sizes,
            min(filter(None, limits), default=0.0), told.get(NOISE, 0.0), told.get(WITHIN_NOISE, 0.0),
            CLIP_NORM in told, exchange.shapes, federation.reported, federation.scheme,
            math.inf if federation.protection is None else federation.protection.clip_norm,
            partial(federation.method.check_reply, exchange.phase, exchange.send or {}),
        )  # fmt: skip

    def messages(
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
        federation, work, protection = self._federation, self._work(), self._protection(exchange)
        position = {client: index for index, client in enumerate(exchange.cohort)}
        kind = "deltas" if exchange.robust else exchange.reduce
        keeps = exchange.updates and federation.settings.compression.feeds_back
        messages = []
        for node, clients in nodes.items():
            rows = [position[client] for client in clients]
            own = {name: array[rows] for name, array in exchange.scatter.items()}
            request = Request(
                clients, exchange.phase, kind, work, exchange.arguments, protection, scatter=own,
                secure=None if terms is None else terms(clients),
                used=federation.receipts.of(exchange.phase, clients) if keeps else (),
            )  # fmt: skip
            messages.append(Message(request.pack(record), node, "evaluate" if exchange.evaluation else "train"))
        return messages

    def account(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Protect the sums of an outcome, count bytes, and record the clients that failed."""
        federation = self._federation
        down, up = outcome.traffic
        seconds, failed = time.perf_counter() - exchange.started, len(outcome.failures)
        self._record.add(exchange.phase, seconds, exchange.cohort, outcome, evaluation=exchange.evaluation)
        if federation.telemetry is not None:
            federation.telemetry.exchange(exchange.phase, seconds, len(exchange.cohort), failed, down, up)
        self.note_failures(exchange.phase, outcome.failures)
        if federation.settings.privacy.unit == "example":
            federation.accounts.hear(outcome)
        if exchange.updates and federation.settings.compression.feeds_back:
            federation.receipts.add(exchange.phase, outcome.clients, self._number)
        if exchange.robust and outcome.clients:
            s = federation.settings
            outcome.arrays = robust_sum(outcome, s.aggregation, s.attackers)
        if federation.protection is not None and not exchange.updates and outcome.arrays:
            raise RunError(f"phase '{exchange.phase}' returns arrays that privacy.unit = 'client' cannot protect")
        if federation.protection is not None and exchange.updates:
            members, size = len(federation.method.trainable()), federation.cohort_size(self._number)
            outcome = federation.protection.protect(
                outcome, size, members, exchange.send or {}, exchange.phase, self._number, exchange.cohort
            )
        if outcome.clients and not exchange.evaluation:
            federation.bytes_down += down
            federation.bytes_up += up
            if federation.clock is not None:
                federation.clock.heard(self._load(exchange), len(outcome.clients), up)
        return outcome

    def note_failures(self, phase: str, reasons: Mapping[str, str]) -> None:
        """Log and record the clients that did not contribute to an exchange."""
        federation = self._federation
        for client, reason in reasons.items():
            if reason.startswith(LATE):  # of over-sampled clients, some are late in every round
                log.info("client %s is skipped: %s", client, reason)
            else:
                log.warning("client %s failed and is skipped: %s", client, reason)
            if reason.startswith(UNUSABLE) or federation.settings.secure_aggregation:  # then reasons tell nothing
                federation.roster.ask_again(client)
        if reasons and federation.run.opened:
            federation.run.note_failures(self._number, phase, reasons)

    # --------------------------------------------------------------------------------------- details

    def _pass_time(self, exchanges: Sequence[Exchange]) -> dict[str, str]:
        """Let the virtual time of exchanges pass; return the clients whose replies the server does not use, and why.

        Only the others are asked to carry out the phase.
        """
        clock, roster = self._federation.clock, self._federation.roster
        if clock is None or any(one.evaluation for one in exchanges):
            return {}
        return clock.wait(*(
            (clock.jobs([roster.clients[client] for client in one.cohort], [self._number], self._load(one)), one.wanted)
            for one in exchanges
        ))  # fmt: skip

    def _load(self, exchange: Exchange) -> Load:
        """Return what an exchange asks of each client."""
        sent = num_bytes(exchange.send or {})
        own = sum(array.nbytes for array in exchange.scatter.values()) / max(1, len(exchange.cohort))
        returned = sum(4.0 * math.prod(shape) for shape in exchange.shapes.values())
        if exchange.updates:
            returned = self.load(exchange.phase, exchange.send or {}).up
        return Load(exchange.phase, sent + own, max(1, returned))

    def _protection(self, exchange: Exchange) -> dict[str, float]:
        """Return the fields of a request that say how clients protect their updates; {} if they do not."""
        federation = self._federation
        if federation.protection is None or not exchange.updates:
            return {}
        return federation.protection.request(federation.cohort_size(self._number))

    def _plain(self, exchanges: Sequence[Exchange]) -> list[Outcome]:
        """Carry out exchanges at the same time in which the server sees the reply of each node."""
        deployed, expected = self._federation.roster.deployed, [self.expected(one) for one in exchanges]
        parcels = [
            Parcel(
                self.messages(one, one.nodes, _sent(one)), checks,
                enough=one.wanted if deployed and one.wanted < len(one.cohort) else 0,
            )
            for one, checks in zip(exchanges, expected, strict=True)
        ]  # fmt: skip
        replies = deliver_all(self._grid, parcels, self._federation.settings.round_timeout, deployed=deployed)
        return [
            collect(one.cohort, one.nodes, own, checks, deployed=deployed)
            for one, own, checks in zip(exchanges, replies, expected, strict=True)
        ]

    def _secure(self, exchange: Exchange) -> Outcome:
        """Carry out an exchange in which the server sees sums over the cohort alone.

        Raises:
            RunError: if the exchange needs more.
        """
        federation, s = self._federation, self._federation.settings
        if exchange.reduce == "stack" or exchange.scatter or exchange.robust:
            raise RunError(f"phase '{exchange.phase}' needs single clients' replies, which secure-aggregation hides")
        asked = {client for clients in exchange.nodes.values() for client in clients}
        members = {client: federation.roster.clients[client] for client in exchange.cohort if client in asked}
        norm = noise = 0.0
        if exchange.updates:
            norm = s.max_update_norm
        if exchange.updates and federation.protection is not None:
            norm = federation.protection.clip_norm
            noise = self._protection(exchange).get(NOISE, 0.0)
        task = Task(
            [*members], exchange.nodes, federation.run.name, federation.identity,
            {c: float(member.train + (0 if exchange.updates else member.test)) for c, member in members.items()},
            exchange.send or {}, norm, shapes_of(exchange.send or {}) if exchange.updates else exchange.shapes,
            federation.reported, noise,
            lambda nodes, terms: self.messages(exchange, nodes, _sent(exchange), terms),
        )  # fmt: skip
        secure = SecureExchange(s, self._grid, task, deployed=federation.roster.deployed)
        outcome = secure.carry_out()
        federation.secure.note(secure)
        return outcome

    def _work(self) -> Work:
        """Return the description of the round and the run that every request of this round contains."""
        federation = self._federation
        expected: dict[str, float] = {}
        if federation.settings.privacy.unit == "example":
            expected = expected_trainings(federation.settings, federation.shares())
        heaviest = None if federation.settings.secure_aggregation else federation.clients.heaviest
        return Work(
            self._number, federation.run.name, federation.identity, federation.lineage, federation.checkpoint_round,
            self._final, **expected, heaviest=heaviest,
        )  # fmt: skip


def _sent(exchange: Exchange) -> ArrayRecord | ConfigRecord | None:
    return None if exchange.send is None else flat(exchange.send)
