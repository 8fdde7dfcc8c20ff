"""Attackers among simulated clients (``attack``, ``attackers``): who they are, and the updates that they forge.

Forged updates replace those that attackers' hosts have returned, after all checks of replies and before a rule combines
them, so that attackers can know what others return. Poisoned examples are the hosts' work, which requests ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.attacks.attack import KNOWLEDGE, Seen
from florilegium.clients.attacks.registry import attack_of
from florilegium.clients.core.wire import LARGEST, Request
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays, is_statistic
from florilegium.partitions.spec import DatasetSpec
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers.attackers import NONE, attackers_of
from florilegium.strategies.layers.layer import Layer, Running
from florilegium.strategies.layers.robust import FOLDER, Combining
from florilegium.strategies.settings.server import ServerSettings
from florilegium.tasks.task import CLASSES

SHORTER = 1e-6
"""Attackers stay below a bound of updates by this share, for rounding."""


def check(settings: ServerSettings, spec: DatasetSpec, gap: str) -> None:
    """Raise :class:`ConfigurationError` if a run cannot have its ``attack``.

    Args:
        settings: the run's configuration.
        spec: its dataset.
        gap: what the run's method computes instead of a mean of updates; "" if it computes one.
    """
    name, attack = settings.attack, attack_of(settings.attack, settings.attack_keys)
    if name == NONE:
        return
    key = f"attack: '{name}'"
    if not settings.attackers:
        raise ConfigurationError(f"{key} has nobody to carry it out; set attackers, such as 0.2")
    if attack.classes and (spec.learned is None or CLASSES not in spec.learned.provides):
        raise ConfigurationError(f"{key} changes classes, and '{spec.name}' has other targets; use another attack")
    if attack.continuous and spec.codes:
        raise ConfigurationError(f"{key} changes numbers, and '{spec.name}' has texts as inputs; use another attack")
    knows = settings.attack_knows
    if knows != "usual" and KNOWLEDGE.index(knows) < KNOWLEDGE.index(attack.least):
        raise ConfigurationError(f"attack-knows: '{name}' works with '{attack.least}' or more (found: '{knows}')")
    if not attack.forges:
        return
    if gap:
        raise ConfigurationError(
            f"{key} forges updates of a model, and is not supported by method '{settings.method}': {gap}"
        )
    if settings.privacy.unit == "client":
        raise ConfigurationError(
            f"{key} with privacy.unit = 'client': forged updates pass on what attackers have seen of others, which the "
            "account does not cover; use an attack on data, such as 'label-flip'"
        )
    if settings.secure_aggregation or settings.buffers != "mean":
        other = "secure-aggregation" if settings.secure_aggregation else f"buffers = '{settings.buffers}'"
        raise ConfigurationError(
            f"{key} replaces single updates, and does not go with {other}; use an attack on data, such as 'label-flip'"
        )


@dataclass(frozen=True)
class Layout:
    """Arrays as one vector, without running statistics.

    Attributes:
        shapes: names and shapes, in order.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, stacked: Arrays) -> Layout:
        """Return the layout of updates that are stacked."""
        return cls({name: array.shape[1:] for name, array in stacked.items() if not is_statistic(name)})

    def rows(self, stacked: Arrays) -> NDArray[np.float64]:
        """Return stacked updates as rows, (n, d)."""
        parts = [stacked[name].reshape(len(stacked[name]), -1) for name in self.shapes]
        return np.concatenate(parts, axis=1).astype(np.float64)

    def vector(self, arrays: Arrays) -> NDArray[np.float64]:
        """Return arrays as a vector, (d,)."""
        return np.concatenate([arrays[name].reshape(-1) for name in self.shapes]).astype(np.float64)

    def stacked(self, rows: NDArray[np.float64]) -> Arrays:
        """Return rows as stacked updates."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()])
        parts = np.split(rows, ends[:-1], axis=1)
        return {n: p.reshape(len(rows), *shape) for (n, shape), p in zip(self.shapes.items(), parts, strict=True)}


class Attacked(Layer):
    """Lets some clients of a simulation attack."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._attack = attack_of(running.settings.attack, running.settings.attack_keys)
        self._memory: dict[str, Any] = {}

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer if somebody attacks."""
        return cls(running) if running.settings.attack != NONE else None

    @cached_property
    def attackers(self) -> frozenset[str]:
        """The clients that attack."""
        return attackers_of(self._running)

    def check(self, groups: Callable[[], Mapping[str, Sequence[str]]]) -> None:
        """Raise :class:`ConfigurationError` if the clients are devices, or cannot attack as is asked for."""
        if self._running.clients.deployed:
            raise ConfigurationError(
                f"attack: '{self._running.settings.attack}' is for simulations; set it to '{NONE}' on devices"
            )
        if not self.attackers:
            raise ConfigurationError("attackers: there is nobody to attack")

    def honest(self, clients: Sequence[str]) -> list[str]:
        """Return those of ``clients`` that do not attack."""
        return [client for client in clients if client not in self.attackers]

    def request(self, exchange: Exchange, request: Request) -> Request:
        """Return a request that names those who train on poisoned examples."""
        if exchange.evaluation or not self._attack.poisons:
            return request
        return replace(request, poisoning=[client for client in request.clients if client in self.attackers])

    def settle(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Return the outcome with forged updates in the attackers' places; their training is needed for it alone."""
        if not (self._attack.forges and exchange.updates):
            return outcome
        bad = [row for row, client in enumerate(outcome.clients) if client in self.attackers]
        good = [row for row, client in enumerate(outcome.clients) if client not in self.attackers]
        if not bad or (not good and self._knows == "defence"):  # a rule over attackers alone says nothing
            return outcome
        layout = Layout.of(outcome.arrays)
        forged = self._attack.forged(self._seen(exchange, outcome, layout, good, bad))
        if not (np.isfinite(forged).all() and np.abs(forged).max(initial=0.0) <= LARGEST):
            raise RunError(f"attack '{self._running.settings.attack}' has made numbers that no reply may have")
        for name, rows in layout.stacked(forged).items():
            outcome.arrays[name][bad] = rows
        if longest := self._running.settings.max_update_norm:
            self._shorten(outcome.arrays, bad, longest)
        return outcome

    def facts(self) -> dict[str, Any]:
        """Return what attackers remember, for checkpoints."""
        return {"attack": self._memory}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore what attackers remember."""
        self._memory = dict(facts.get("attack", {}))

    def report(self) -> dict[str, Any]:
        """Return who attacks."""
        return {"attack": {"name": self._running.settings.attack, "attackers": sorted(self.attackers)}}

    # --------------------------------------------------------------------------------------- details

    @property
    def _knows(self) -> str:
        """What attackers know, of ``KNOWLEDGE``."""
        known = self._running.settings.attack_knows
        return self._attack.usual if known == "usual" else known

    def _seen(
        self, exchange: Exchange, outcome: Outcome, layout: Layout, good: Sequence[int], bad: Sequence[int]
    ) -> Seen:
        """Return what attackers see of an exchange; without honest clients in it they judge by themselves.

        Args:
            exchange, outcome: the exchange, and what was returned.
            layout: the updates as vectors.
            good, bad: the rows of honest clients, and of attackers.
        """
        s, knows = self._running.settings, self._knows
        rows, weights = layout.rows(outcome.arrays), outcome.metrics["weight"]
        known = good if good and knows in ("updates", "defence") else bad
        own = self._running.kept(FOLDER, "_attack", exchange.number)
        part = "sent" + "".join(filter(str.isalnum, exchange.phase))
        before, sent = own.load(part), layout.vector(exchange.send or {})
        own.save({"sent": sent}, part)
        own.commit()
        return Seen(
            own=rows[bad],
            others=rows[known],
            clients=[outcome.clients[row] for row in known],
            sent=sent,
            before=before["sent"] if before is not None and before["sent"].shape == sent.shape else None,
            tolerated=s.tolerates(len(rows)),
            boost=float(weights.sum() / (weights[bad].sum() * s.server_learning_rate)),
            combined=self._defence(exchange, outcome, layout, [*good, *bad]) if knows == "defence" else None,
            generator=numpy_generator(s.seed, "attack", exchange.number, exchange.phase),
            memory=self._memory,
            knows=knows,
        )

    def _defence(
        self, exchange: Exchange, outcome: Outcome, layout: Layout, order: Sequence[int]
    ) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        """Return what the rule in use makes of updates, the rows ``order`` of the exchange, without any trace."""
        combining = Combining(self._running, exchange, outcome.clients, outcome.metrics["weight"], lasting=False)
        back = np.argsort(order)

        def combined(rows: NDArray[np.float64]) -> NDArray[np.float64]:
            return layout.vector(combining.combined(layout.stacked(rows[back])).update)

        return combined

    def _shorten(self, arrays: Arrays, bad: Sequence[int], longest: float) -> None:
        """Scale attackers' updates down to the norm that the server accepts, in place."""
        for row in bad:
            length = np.sqrt(sum(float(np.square(array[row], dtype=np.float64).sum()) for array in arrays.values()))
            if length > longest:
                for array in arrays.values():
                    array[row] *= longest * (1 - SHORTER) / length
