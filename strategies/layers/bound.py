"""The bound of updates, server side (``max-update-norm``): no reply counts whose updates are longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from florilegium.clients.layers.bound import bound
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers.layer import Layer, Running


def gap(messages: Messages) -> str:
    """Return why there are no updates to bound, "" if there are."""
    return "clients return no updates" if messages.returns in ("statistics", "nothing") else ""


class Bound(Layer):
    """Expects no update that is longer than what a client may return."""

    def __init__(self, running: Running) -> None:
        self._running = running

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer: devices' updates always have a bound."""
        return cls(running)

    def expect(self, exchange: Exchange, expected: Expected) -> Expected:
        """Return the checks with the largest norm allowed."""
        if not exchange.updates:
            return expected
        longest = bound(self._running.settings, exchange.send or {}, deployed=self._running.clients.deployed)
        return replace(expected, longest=longest)
