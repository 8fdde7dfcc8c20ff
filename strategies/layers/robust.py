"""Robust aggregation (``aggregation``): a median, trimmed mean or Krum in place of the mean of a cohort's updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from florilegium.clients.core.wire import Request
from florilegium.common.errors import ConfigurationError
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers.layer import Layer, Running
from florilegium.strategies.layers.robust_rules import check_cohorts, robust_sum
from florilegium.strategies.settings.server import ServerSettings

NOT_A_MEAN = {
    "sum": "",
    "parts": "it averages each part over the clients that train it",
    "groups": "it averages each group of clients by itself",
    "single": "it combines what single clients return in its own way",
    "statistics": "it adds up statistics, not updates",
    "nothing": "",
}


def gap(messages: Messages) -> str:
    """Return what the server computes instead of a mean of the cohort's updates, "" if it computes one, or none."""
    return NOT_A_MEAN[messages.returns]


def check(settings: ServerSettings, gap: str) -> None:
    """Raise :class:`ConfigurationError` if ``aggregation`` is not "mean" and the method computes something else.

    Args:
        settings: the run's configuration.
        gap: what the run's method computes instead of a mean; "" if it computes one.
    """
    if gap and settings.aggregation != "mean":
        raise ConfigurationError(
            f"aggregation: '{settings.aggregation}' is not supported by method '{settings.method}': {gap}; use 'mean'"
        )


class Robust(Layer):
    """Has nodes return single clients' updates, and combines them by the rule."""

    def __init__(self, running: Running) -> None:
        self._running = running

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer if ``aggregation`` is a robust rule."""
        return cls(running) if running.settings.aggregation != "mean" else None

    def check(self, groups: Callable[[], Mapping[str, Sequence[str]]]) -> None:
        """Raise :class:`ConfigurationError` if a cohort is too small for the rule."""
        running, s = self._running, self._running.settings
        of = len(running.trainable())
        check_cohorts(s, [running.asked(running.cohort_size(r), of) for r in range(1, s.rounds + 1)])

    def request(self, exchange: Exchange, request: Request) -> Request:
        """Return a request for single updates."""
        return replace(request, reduce="deltas") if exchange.updates else request

    def expect(self, exchange: Exchange, expected: Expected) -> Expected:
        """Return the checks of stacked updates."""
        return replace(expected, stacked=True) if exchange.updates else expected

    def settle(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Return the outcome with the combined update in place of single ones, times the total weight."""
        if not exchange.updates or not outcome.clients:
            return outcome
        s = self._running.settings
        return replace(outcome, arrays=robust_sum(outcome, s.aggregation, s.attackers))
