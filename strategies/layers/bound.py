"""The bound of updates, server side (``max-update-norm``): no reply counts whose updates are longer.

On devices there is a bound by default: a multiple of the median of the norms that were accepted lately. It follows what
most devices send, and never the model, which an attacker may have moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median_high
from typing import Any, Self

import numpy as np

from florilegium.clients.core.wire import Reply
from florilegium.clients.layers.bound import longest_update
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, distance, norm
from florilegium.strategies.exchange.expected import ROUNDING, Expected
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers.layer import Layer, Running
from florilegium.strategies.settings.server import ServerSettings

MEDIANS = 10.0
"""Norm of the longest update that is accepted from devices, in medians, unless a key names another."""
EXCHANGES, NORMS = 4, 12
"""The median is over the present exchange and the last ones: so many, and more until there are so many norms."""
FEWEST = 3
"""Number of norms from which on most of them are honest if one device is not."""
LEAST = 1e-3
"""The smallest bound, as a share of that which holds as long as there are fewer norms."""


def gap(messages: Messages) -> str:
    """Return why there are no updates to bound, "" if there are."""
    return "clients return no updates" if messages.returns in ("statistics", "nothing") else ""


def check(settings: ServerSettings, gap: str) -> None:
    """Raise :class:`ConfigurationError` if ``max-update-norm`` has no effect.

    Args:
        settings: the run's configuration.
        gap: why the run's method has no updates to bound; "" if it has some.
    """
    if gap and settings.max_update_norm:
        raise ConfigurationError(
            f"max-update-norm: it has no effect with method '{settings.method}': {gap}; set it to 0"
        )


class Norms:
    """The norms of the updates that were accepted lately, of each phase, and the bound that follows from them.

    Attributes:
        start: the bound as long as fewer than ``FEWEST`` norms are known.
    """

    def __init__(self) -> None:
        self.start = longest_update({})
        self._past: dict[str, list[list[float]]] = {}  # by phase: of each exchange, the oldest first

    def bound(self, phase: str, present: Sequence[float]) -> float:
        """Return the bound of an exchange whose replies have the norms ``present``."""
        known = [norm for norms in self._past.get(phase, []) for norm in norms] + [*present]
        if len(known) < FEWEST:
            return self.start
        return max(MEDIANS * median_high(known), LEAST * self.start)

    def accept(self, phase: str, norms: Sequence[float]) -> None:
        """Remember the norms of an exchange that were accepted."""
        past = self._past.setdefault(phase, [])
        if norms:
            past.append([*norms])
        while len(past) > EXCHANGES and sum(map(len, past[1:])) >= NORMS:
            del past[0]

    def facts(self) -> dict[str, list[list[float]]]:
        """Return the norms, for checkpoints."""
        return self._past

    def take_back(self, facts: Mapping[str, Sequence[Sequence[float]]]) -> None:
        """Restore the norms that :meth:`facts` returned."""
        self._past = {phase: [[*norms] for norms in past] for phase, past in facts.items()}


class Bound(Layer):
    """Expects no update that is longer than what a client may return."""

    def __init__(self, running: Running) -> None:
        self._running, self._norms = running, Norms()

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer: devices' updates always have a bound."""
        return cls(running)

    def begin(self, first: Arrays, rounds: int, done: int) -> None:
        """Take the bound of the first updates from the run's first arrays, which nobody has moved yet."""
        self._norms.start = longest_update(first)

    def expect(self, exchange: Exchange, expected: Expected) -> Expected:
        """Return the checks with the largest norm allowed."""
        s = self._running.settings
        if exchange.updates and s.max_update_norm:
            return replace(expected, longest=s.max_update_norm)
        default = self._running.clients.deployed and s.privacy.unit != "client"
        if (exchange.updates and default) or (exchange.base is not None and (s.max_update_norm or default)):
            return replace(expected, together=partial(self._too_long, exchange))
        return expected

    def facts(self) -> dict[str, Any]:
        """Return the norms that were accepted, for checkpoints."""
        return {"norms": self._norms.facts()}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the norms; checkpoints of earlier versions have none."""
        self._norms.take_back(facts.get("norms", {}))

    def _too_long(self, exchange: Exchange, replies: Sequence[Reply]) -> dict[str, str]:
        """Return why updates of the replies to an exchange are not used, by client."""
        found: dict[str, float] = {}
        for reply in replies:
            found |= _lengths(exchange, reply)
        key = self._running.settings.max_update_norm
        usual = key or self._norms.bound(exchange.phase, [*found.values()])
        bounds = {client: usual if key else usual * self._longer(client) for client in found}
        long = {client: length for client, length in found.items() if length > bounds[client] * (1 + ROUNDING)}
        if not key:
            self._norms.accept(exchange.phase, [length for client, length in found.items() if client not in long])
        of = "" if key else f", {MEDIANS:g} times the median of those accepted lately"
        return {
            client: f"an update has norm {length:.4g}, at most {bounds[client]:.4g} is allowed (max-update-norm){of}"
            for client, length in long.items()
        }

    def _longer(self, client: str) -> float:
        """Return how many times longer than others' a client's update may be, since it takes more steps.

        By default the number of steps grows with the number of examples. A device that announces more of them than it
        has gains no more than by the weight that this gives it.
        """
        running = self._running
        if running.settings.local_steps:
            return 1.0
        clients = running.clients
        most = clients.heaviest or np.inf
        usual = max(1.0, float(np.median([clients[other].train for other in running.trainable()] or [1])))
        return max(1.0, min(clients[client].train, most) / usual) if client in clients else 1.0


def _lengths(exchange: Exchange, reply: Reply) -> dict[str, float]:
    """Return the Euclidean norm of each client's update; of a sum of updates, that of its mean."""
    if not reply.clients:
        return {}
    if exchange.base is not None:
        lengths = {}
        for row, client in enumerate(reply.clients):
            base = exchange.base(client)
            lengths[client] = distance({name: reply.arrays[name][row] for name in base}, base)
        return lengths
    sent = exchange.send or {}
    own = {name: array for name, array in reply.arrays.items() if name in sent}
    if any(array.ndim > sent[name].ndim for name, array in own.items()):  # single updates, for a robust rule
        return {client: norm({n: a[row] for n, a in own.items()}) for row, client in enumerate(reply.clients)}
    return dict.fromkeys(reply.clients, norm(own) / max(sum(reply.metrics["weight"]), 1.0))
