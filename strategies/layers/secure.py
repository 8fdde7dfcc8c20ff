"""Secure aggregation, server side (``secure-aggregation``): the server learns sums over a cohort alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from flwr.serverapp import Grid

from florilegium.common.errors import RunError
from florilegium.models.parameters import shapes_of
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers import secure_groups
from florilegium.strategies.layers.layer import Layer, MakesMessages, Running
from florilegium.strategies.layers.secure_exchange import SecureExchange, Task
from florilegium.strategies.layers.secure_record import SecureRecord, check_sizes

log = logging.getLogger("flwr")

MORE_THAN_SUMS = {
    "sum": "",
    "parts": "the server needs to know which clients have trained which part",
    "groups": "the server needs a sum for each group of clients, and a group may be small",
    "single": "the server needs the replies of single clients",
    "statistics": "",
    "nothing": "clients learn alone, and there is no sum",
}


def gap(messages: Messages) -> str:
    """Return why sums over cohorts do not suffice, "" if they do."""
    return messages.individual or MORE_THAN_SUMS[messages.returns]


class Secure(Layer):
    """Carries out exchanges as secure sums."""

    hides: ClassVar[bool] = True

    def __init__(self, running: Running) -> None:
        self._running = running
        self._record = SecureRecord()
        self._named: dict[str, str] = {}  # why clients are left out for the rest of the run

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer if sums are secure."""
        return cls(running) if running.settings.secure_aggregation else None

    def check(self, groups: Callable[[], Mapping[str, Sequence[str]]]) -> None:
        """Raise :class:`ConfigurationError` if too few clients take part in an exchange."""
        running, s = self._running, self._running.settings
        sizes = [(f"the cohort of round {r}", running.cohort_size(r)) for r in range(1, s.rounds + 1)]
        if s.sums_of_groups:
            for what, size in sizes:
                secure_groups.check(s, size, what)
        for group, members in groups().items():
            sizes.append((f"the group of {group} clients, which are evaluated,", len(members)))
        check_sizes(s, sizes)

    def carry(self, grid: Grid, exchange: Exchange, expected: Expected, messages: MakesMessages) -> Outcome | None:
        """Carry out an exchange of which the server learns sums over the cohort alone.

        Raises:
            RunError: if the exchange needs more.
        """
        s = self._running.settings
        if expected.stacked or exchange.scatter:
            raise RunError(f"phase '{exchange.phase}' needs single clients' replies, which secure-aggregation hides")
        asked = {client for clients in exchange.nodes.values() for client in clients}
        left_out = {client: self._named[client] for client in exchange.cohort if client in self._named}
        members = [client for client in exchange.cohort if client in asked and client not in left_out]
        if s.sums_of_groups and exchange.updates:
            outcome = self._groups(grid, exchange, expected, messages, members)
        else:
            outcome = self._sum(grid, exchange, expected, messages, members)
        outcome.failures |= left_out
        return outcome

    def _groups(
        self, grid: Grid, exchange: Exchange, expected: Expected, messages: MakesMessages, members: Sequence[str]
    ) -> Outcome:
        """Return the sums of random groups of ``members``, one after the other; of nobody if groups were too small."""
        s, k = self._running.settings, self._running.settings.secure_groups
        if members and len(members) // k < s.secure_group_size:
            why = f"{len(members)} clients are too few for {k} groups of {s.secure_group_size} (secure-groups)"
            log.warning("no secure sums: %s", why)
            return Outcome([], {}, {}, dict.fromkeys(members, why))
        colluding = secure_groups.most_colluding(len(members), k, s.secure_colluding, s.secure_failure)
        self._record.meet(s.secure_failure if s.secure_colluding else 0.0)
        parts = secure_groups.drawn(s, exchange, members)
        found = [self._sum(grid, exchange, expected, messages, part, colluding) for part in parts]
        return secure_groups.together(exchange.cohort, found)

    def _sum(
        self, grid: Grid, exchange: Exchange, expected: Expected, messages: MakesMessages, members: Sequence[str],
        colluding: int | None = None,
    ) -> Outcome:  # fmt: skip
        """Return the sum of ``members``, of whom ``colluding`` may collude with the server."""
        running = self._running
        clients = {client: running.clients[client] for client in members}
        task = Task(
            members, exchange.nodes, running.run.name, running.identity,
            {c: float(member.train + (0 if exchange.updates else member.test)) for c, member in clients.items()},
            exchange.send or {}, expected.longest if math.isinf(expected.clip) else expected.clip,
            not math.isinf(expected.clip),
            shapes_of(exchange.send or {}) if exchange.updates else exchange.shapes,
            running.reported, expected.noise, colluding, expected.mark, messages,
        )  # fmt: skip
        secure = SecureExchange(running.settings, grid, task, deployed=running.clients.deployed)
        outcome = secure.carry_out()
        self._record.note(secure)
        for client, why in secure.named.items():
            log.warning("client %s takes no part in secure sums any more: %s", client, why)
            self._named[client] = f"left out since round {exchange.number}: {why}"
        return outcome

    def facts(self) -> dict[str, Any]:
        """Return the record of secure sums, for checkpoints."""
        return {"secure": self._record.facts(), "secure_named": self._named}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the record."""
        self._record.take_back(facts.get("secure", {}))
        self._named = dict(facts.get("secure_named", {}))

    def report(self) -> dict[str, Any]:
        """Return the block ``secure_aggregation``."""
        return self._record.report(self._running.settings, self._named)
