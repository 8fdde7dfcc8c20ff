"""Carry out the exchanges of a round: messages to the nodes, what layers do with them, checks of replies, records."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from florilegium.clients.core.secure_wire import Terms
from florilegium.clients.core.wire import Request, Work, flat
from florilegium.models.parameters import Arrays, num_bytes
from florilegium.strategies.core.federation import Federation
from florilegium.strategies.core.round_record import RoundRecord
from florilegium.strategies.exchange.clock import Load
from florilegium.strategies.exchange.exchange import LATE, Outcome, Parcel, collect, deliver_all
from florilegium.strategies.exchange.expected import UNUSABLE, Expected
from florilegium.strategies.exchange.requests import Exchange

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
        self._layers = federation.layers

    def load(self, phase: str, send: Arrays) -> Load:
        """Return what ``phase`` asks of a client that is sent arrays and returns its update of all of them."""
        sent = num_bytes(send)
        return Load(phase, sent, max(1, reduce(lambda size, layer: layer.size(send, size), self._layers, sent)))

    def carry_out(self, exchanges: Sequence[Exchange], *, arrived: bool = False) -> list[Outcome]:
        """Carry out exchanges that begin at the same time.

        Real devices are all sent their messages at once. The nodes of a simulation take one message after the other,
        and a layer may carry out exchanges in its own way; then the exchanges take turns.
        """
        roster, outcomes = self._federation.roster, list[Outcome]()
        unused = {} if arrived else self._pass_time(exchanges)
        exchanges = [
            replace(one, nodes=roster.assign(
                [client for client in one.cohort if client not in unused], evaluation=one.evaluation
            ))
            for one in exchanges
        ]  # fmt: skip
        together = roster.deployed and not self._federation.hidden
        for batch in [exchanges] if together else [[one] for one in exchanges]:
            started = time.perf_counter()
            for one, outcome in zip(batch, self._carried(batch), strict=True):
                outcome.failures |= {client: unused[client] for client in one.cohort if client in unused}
                outcomes.append(self.account(replace(one, started=started), outcome))
                started = time.perf_counter()  # time that is shared counts once
        return outcomes

    def expected(self, exchange: Exchange) -> Expected:
        """Return the checks that decide whether a reply is usable, with the largest weight allowed for each client."""
        federation = self._federation
        roster = federation.roster
        members = [roster.clients[client] for client in exchange.cohort if roster.deployed]
        expected = Expected(
            stacked=exchange.reduce == "stack",
            changes_of=exchange.send if exchange.updates else None,
            heaviest=federation.clients.dues(exchange.cohort),
            sizes={member.id: member.train + member.test for member in members},
            shapes=exchange.shapes,
            reports=federation.reported,
            mark=self._work().mark(exchange.phase),
            own=partial(federation.method.check_reply, exchange.phase, exchange.send or {}),
        )
        return reduce(lambda checks, layer: layer.expect(exchange, checks), self._layers, expected)

    def messages(
        self,
        exchange: Exchange,
        record: ArrayRecord | ConfigRecord | None,
        nodes: Mapping[int, Sequence[str]],
        terms: Callable[[Sequence[str]], Terms] | None = None,
    ) -> list[Message]:
        """Return a message for each node, which names the clients of the cohort that it shall run.

        Args:
            exchange: the exchange.
            record: what every client is sent, which all messages share; None for nothing.
            nodes: the clients of each node.
            terms: returns the terms of a secure sum for these clients; None without one.
        """
        work = self._work()
        position = {client: index for index, client in enumerate(exchange.cohort)}
        messages = []
        for node, clients in nodes.items():
            rows = [position[client] for client in clients]
            own = {name: array[rows] for name, array in exchange.scatter.items()}
            request = Request(
                clients, exchange.phase, exchange.reduce, work, exchange.arguments, scatter=own,
                secure=None if terms is None else terms(clients),
            )  # fmt: skip
            request = reduce(lambda asked, layer: layer.request(exchange, asked), self._layers, request)
            kind = "evaluate" if exchange.evaluation else "train"  # the round is for devices' logs
            messages.append(Message(request.pack(record), node, kind, group_id=str(self._number)))
        return messages

    def account(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Have the layers settle an outcome, count bytes, and record the clients that failed."""
        federation = self._federation
        down, up = outcome.traffic
        seconds, failed = time.perf_counter() - exchange.started, len(outcome.failures)
        self._record.add(exchange.phase, seconds, exchange.cohort, outcome, evaluation=exchange.evaluation)
        if federation.telemetry is not None:
            federation.telemetry.exchange(exchange.phase, seconds, len(exchange.cohort), failed, down, up)
        self.note_failures(exchange.phase, outcome.failures)
        outcome = reduce(lambda found, layer: layer.settle(exchange, found), reversed(self._layers), outcome)
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
            if reason.startswith(UNUSABLE) or federation.hidden:  # then reasons tell nothing
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

    def _carried(self, exchanges: Sequence[Exchange]) -> list[Outcome]:
        """Carry out exchanges at the same time, or the only one of them as a layer does it."""
        expected = [self.expected(one) for one in exchanges]
        one = exchanges[0]

        def messages(
            nodes: Mapping[int, Sequence[str]], terms: Callable[[Sequence[str]], Terms] | None
        ) -> list[Message]:
            return self.messages(one, _sent(one), nodes, terms)

        for layer in self._layers:
            if (found := layer.carry(self._grid, one, expected[0], messages)) is not None:
                return [found]
        return self._plain(exchanges, expected)

    def _plain(self, exchanges: Sequence[Exchange], expected: Sequence[Expected]) -> list[Outcome]:
        """Carry out exchanges at the same time in which the server sees the reply of each node."""
        deployed = self._federation.roster.deployed
        parcels = [
            Parcel(
                self.messages(one, _sent(one), one.nodes), checks,
                enough=one.wanted if deployed and one.wanted < len(one.cohort) else 0,
            )
            for one, checks in zip(exchanges, expected, strict=True)
        ]  # fmt: skip
        replies = deliver_all(self._grid, parcels, self._federation.settings.round_timeout, deployed=deployed)
        return [
            collect(one.cohort, one.nodes, own, checks, deployed=deployed)
            for one, own, checks in zip(exchanges, replies, expected, strict=True)
        ]

    def _work(self) -> Work:
        """Return the description of the round and the run that every request of this round contains."""
        federation = self._federation
        fields: dict[str, float] = {}
        for layer in self._layers:
            fields |= layer.work()
        return Work(
            self._number, federation.run.name, federation.identity, federation.lineage, federation.checkpoint_round,
            self._final, **fields, heaviest=None if federation.hidden else federation.clients.heaviest,
            frozen=federation.start.frozen.hash or None, best=federation.best_round,
        )  # fmt: skip


def _sent(exchange: Exchange) -> ArrayRecord | ConfigRecord | None:
    return None if exchange.send is None else flat(exchange.send)
