"""Compressed updates, server side (table ``compression``): updates that arrive rounded, sparse or of low rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from florilegium.clients.core.compression.scheme import Scheme
from florilegium.clients.core.compression.schemes import scheme_of
from florilegium.clients.core.wire import Request
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers.layer import Layer, Running
from florilegium.strategies.layers.receipts import Receipts

INCOMPRESSIBLE = {
    "sum": "",
    "parts": "",
    "groups": "updates of groups of clients are not compressed",
    "single": "the server works on what single clients return as it is",
    "statistics": "clients return statistics, not updates",
    "nothing": "clients learn alone, and return nothing to compress",
}


def gap(messages: Messages) -> str:
    """Return why clients cannot compress what they return, "" if they can."""
    return INCOMPRESSIBLE[messages.returns]


class Compression(Layer):
    """Restores compressed updates, and tells clients that keep residuals which of their updates have been used."""

    def __init__(self, scheme: Scheme, *, feeds_back: bool) -> None:
        self._scheme, self._feeds_back = scheme, feeds_back
        self._receipts = Receipts()

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer if updates are compressed."""
        keys = running.settings.compression
        scheme = scheme_of(keys)
        return None if scheme is None else cls(scheme, feeds_back=keys.feeds_back)

    def size(self, sent: Arrays, size: int) -> int:
        """Return the bytes of the message for an update."""
        return self._scheme.message_size(sent, len(sent))

    def request(self, exchange: Exchange, request: Request) -> Request:
        """Return the request with the rounds whose updates the server has used."""
        if not exchange.updates or not self._feeds_back:
            return request
        return replace(request, used=self._receipts.of(exchange.phase, request.clients))

    def expect(self, exchange: Exchange, expected: Expected) -> Expected:
        """Return the checks of replies whose updates are restored first."""
        return replace(expected, scheme=self._scheme) if exchange.updates else expected

    def settle(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Note whose updates have been used."""
        if exchange.updates and self._feeds_back:
            self._receipts.add(exchange.phase, outcome.clients, exchange.number)
        return outcome

    def facts(self) -> dict[str, Any]:
        """Return the receipts, for checkpoints."""
        return {"receipts": self._receipts.facts()}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the receipts; checkpoints from before there was compression have none."""
        self._receipts.take_back(facts.get("receipts", {}))
