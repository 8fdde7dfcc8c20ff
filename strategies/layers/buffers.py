"""Buffers of the global model (``buffers``): a round's first client's, or recomputed, in place of the cohort's mean.

Means are right for running statistics; of directions, ranges or codebooks they are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from florilegium.clients.core.wire import Request
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, is_statistic
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers.layer import Asks, Layer, Running
from florilegium.strategies.layers.robust import NOT_A_MEAN
from florilegium.strategies.settings.server import ServerSettings


def gap(messages: Messages) -> str:
    """Return what the server computes instead of a mean of the cohort's updates, "" if it computes one."""
    return NOT_A_MEAN[messages.returns] or ("" if messages.returns == "sum" else "its clients learn alone")


def check(settings: ServerSettings, gap: str, buffers: Sequence[str]) -> None:
    """Raise :class:`ConfigurationError` if the buffers cannot become what ``buffers`` says.

    Args:
        settings: the run's configuration.
        gap: what the run's method computes instead of a mean of updates; "" if it computes one.
        buffers: the names of the network's buffers that are exchanged.
    """
    kind = settings.buffers
    if kind == "mean":
        return
    if gap:
        raise ConfigurationError(f"buffers: '{kind}' is not supported by method '{settings.method}': {gap}; use 'mean'")
    if not buffers:
        raise ConfigurationError(f"buffers: '{settings.model}' has no buffers that are exchanged; leave it out")
    for key, wanted, found in (
        ("privacy.unit", "none", settings.privacy.unit), ("secure-aggregation", False, settings.secure_aggregation),
        ("mode", "synchronous", settings.mode), ("aggregation", "mean", settings.aggregation),
    ):  # fmt: skip
        if found != wanted:
            raise ConfigurationError(
                f"buffers: '{kind}' takes what single clients return, and does not go with {key} = {found!r}; use "
                f"'mean', or set {key} to {wanted!r}"
            )


class Buffers(Layer):
    """Puts buffers into a round's model that are no means of the cohort's."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._first: Arrays = {}  # of the first client, after its training
        self._replied: list[str] = []  # the clients whose updates made the round's model

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer unless ``buffers`` is "mean"."""
        return cls(running) if running.settings.buffers != "mean" else None

    @property
    def _takes_first(self) -> bool:
        return self._running.settings.buffers == "first"

    def begin(self, first: Arrays, rounds: int, done: int) -> None:
        """Check that the server has all of the network, with which the buffers go.

        Raises:
            ConfigurationError: if it has not.
        """
        s = self._running.settings
        if lacking := [name for name in self._running.exchanged if name not in first]:
            raise ConfigurationError(
                f"buffers: '{s.buffers}' needs a global model, and with method '{s.method}' the server has a part of "
                f"the network ('{lacking[0]}' is missing); use 'mean'"
            )

    def request(self, exchange: Exchange, request: Request) -> Request:
        """Return a request for single updates, if the first client's are wanted."""
        return replace(request, reduce="deltas") if exchange.updates and self._takes_first else request

    def expect(self, exchange: Exchange, expected: Expected) -> Expected:
        """Return the checks of stacked updates, if these are asked for."""
        return replace(expected, stacked=True) if exchange.updates and self._takes_first else expected

    def settle(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Note whose updates count, and the first client's buffers; return the sums of updates."""
        if not exchange.updates or not outcome.clients:
            return outcome
        self._replied = outcome.clients
        if not self._takes_first:
            return outcome
        sent, weights = exchange.send or {}, outcome.metrics["weight"]
        self._first = {name: sent[name] + outcome.arrays[name][0] for name in self._running.buffers}
        sums = {name: np.tensordot(weights, rows.astype(np.float64), 1) for name, rows in outcome.arrays.items()}
        return replace(outcome, arrays=sums)

    def after(self, round: Asks, model: Arrays) -> Arrays:
        """Return the model that a round has made, with its buffers."""
        replied, self._replied = self._replied, []
        if not replied:
            return model
        return model | (self._first if self._takes_first else self._recomputed(round, model, replied))

    def _recomputed(self, round: Asks, model: Arrays, clients: Sequence[str]) -> Arrays:
        """Have the clients recompute the buffers with the new parameters, by one pass over their training examples.

        Returns:
            Running statistics of batch norm: means over all of these examples; other buffers: those with which the
            first client ends. None of them, if no client succeeds.
        """
        shapes = {name: model[name].shape for name in self._running.buffers}
        found = round.ask("recompute", clients, send=model, reduce="stack", shapes=shapes, out_of=0)
        if not found.clients:
            return {}
        weights = found.metrics["num-examples"] / found.metrics["num-examples"].sum()
        return {
            name: (np.tensordot(weights, rows.astype(np.float64), 1) if is_statistic(name) else rows[0]).astype(
                model[name].dtype
            )
            for name, rows in found.arrays.items()
        }
