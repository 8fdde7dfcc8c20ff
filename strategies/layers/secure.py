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
        for group, members in groups().items():
            sizes.append((f"the group of {group} clients, which are evaluated,", len(members)))
        check_sizes(s, sizes)

    def carry(self, grid: Grid, exchange: Exchange, expected: Expected, messages: MakesMessages) -> Outcome | None:
        """Carry out an exchange of which the server learns sums over the cohort alone.

        Raises:
            RunError: if the exchange needs more.
        """
        running = self._running
        if expected.stacked or exchange.scatter:
            raise RunError(f"phase '{exchange.phase}' needs single clients' replies, which secure-aggregation hides")
        asked = {client for clients in exchange.nodes.values() for client in clients}
        members = {
            client: running.clients[client]
            for client in exchange.cohort
            if client in asked and client not in self._named
        }
        task = Task(
            [*members], exchange.nodes, running.run.name, running.identity,
            {c: float(member.train + (0 if exchange.updates else member.test)) for c, member in members.items()},
            exchange.send or {}, expected.longest if math.isinf(expected.clip) else expected.clip,
            not math.isinf(expected.clip),
            shapes_of(exchange.send or {}) if exchange.updates else exchange.shapes,
            running.reported, expected.noise, expected.mark, messages,
        )  # fmt: skip
        secure = SecureExchange(running.settings, grid, task, deployed=running.clients.deployed)
        outcome = secure.carry_out()
        self._record.note(secure)
        left_out = {client: self._named[client] for client in exchange.cohort if client in self._named}
        outcome.failures |= left_out
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
