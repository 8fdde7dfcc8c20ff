"""Robust aggregation (``aggregation``): a rule in place of the mean of a cohort's updates, each of which it sees."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.attacks.registry import attack_of
from florilegium.clients.core.wire import Request
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays, is_statistic
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers.attackers import attackers_of
from florilegium.strategies.layers.layer import Layer, Running
from florilegium.strategies.layers.trusted import Trusted, check_examples
from florilegium.strategies.robust.before import buckets, nearest_neighbours
from florilegium.strategies.robust.registry import RULES
from florilegium.strategies.robust.rule import Combined
from florilegium.strategies.robust.stack import Stack
from florilegium.strategies.settings.server import ServerSettings

log = logging.getLogger("flwr")

NOT_A_MEAN = {
    "sum": "",
    "parts": "it averages each part over the clients that train it",
    "groups": "it averages each group of clients by itself",
    "single": "it combines what single clients return in its own way",
    "statistics": "it adds up statistics, not updates",
    "nothing": "",
}
FOLDER = "robust"
"""Folder of a run in which the server keeps what rules remember."""
MEAN = "mean"


def gap(messages: Messages) -> str:
    """Return what the server computes instead of a mean of the cohort's updates, "" if it computes one, or none."""
    return NOT_A_MEAN[messages.returns]


def check(settings: ServerSettings, gap: str) -> None:
    """Raise :class:`ConfigurationError` if a run's method cannot have its ``aggregation``.

    Args:
        settings: the run's configuration.
        gap: what the run's method computes instead of a mean; "" if it computes one.
    """
    name = settings.aggregation
    if name == MEAN:
        return
    if gap:
        raise ConfigurationError(
            f"aggregation: '{name}' is not supported by method '{settings.method}': {gap}; use '{MEAN}'"
        )
    if settings.robust.mixing != "none" and not RULES[name].mixes:
        raise ConfigurationError(
            f"robust.mixing: '{name}' follows single clients over rounds, and '{settings.robust.mixing}' mixes their "
            "updates; set it to 'none'"
        )


def least(settings: ServerSettings, cohort: int) -> int:
    """Return the smallest number of updates with which the run's rule tolerates those of ``cohort`` that may be bad."""
    return least_rows(settings, settings.tolerates(cohort))


def least_rows(settings: ServerSettings, attackers: int) -> int:
    """Return the smallest number of rows, of which ``attackers`` are bad, with which the run's rule tolerates these."""
    before, rows = settings.robust, RULES[settings.aggregation].least(attackers)
    if before.mixing == "bucketing":
        return (rows - 1) * before.bucket_size + 1
    return max(rows, 2 * attackers + 1) if before.mixing == "nearest-neighbours" else rows


@dataclass(frozen=True)
class Around:
    """What a rule may know of an exchange (:class:`florilegium.strategies.robust.rule.Surroundings`).

    Attributes:
        running, exchange: the run and the exchange.
        clients: the clients whose updates the rows are.
        trains: makes the server's own update.
        purpose: tells what the rule remembers from what the layer does; letters.
        lasting: whether anything is kept, rather than computed to see what would come of it.
    """

    running: Running
    exchange: Exchange
    clients: Sequence[str]
    trains: Trusted
    purpose: str = "rule"
    lasting: bool = True

    def generator(self, *purpose: str) -> np.random.Generator:
        """Return the generator of this round, this exchange and a purpose."""
        one = self.exchange
        return numpy_generator(self.running.settings.seed, "robust", *purpose, one.number, one.phase)

    def remembered(self, name: str) -> Arrays:
        """Return what was kept under a name; {} if nothing. A client's name is its id; others begin with "_"."""
        return self.running.kept(FOLDER, name, self.exchange.number).load(self._part) or {}

    def remember(self, name: str, arrays: Arrays) -> None:
        """Keep arrays under a name, for this phase and purpose."""
        if not self.lasting:
            return
        state = self.running.kept(FOLDER, name, self.exchange.number)
        state.save(arrays, self._part)
        state.commit()

    def trusted(self) -> Arrays:
        """Return the update that the server makes on its own examples."""
        return self.trains.update(self.exchange)

    @property
    def _part(self) -> str:
        return self.purpose + "".join(filter(str.isalnum, self.exchange.phase))


class Combining:
    """Combines the updates of an exchange, after momentum and mixing.

    Args:
        running, exchange: the run and the exchange.
        clients: the clients whose updates the rows are.
        weights: their weights, (n,).
        lasting: that of :class:`Around`.
        trains: makes the server's own update; None: a new one does.
        attackers: number of rows that may be bad; None: as the settings say of so many clients.
    """

    def __init__(
        self,
        running: Running,
        exchange: Exchange,
        clients: Sequence[str],
        weights: NDArray[np.float64],
        *,
        lasting: bool = True,
        trains: Trusted | None = None,
        attackers: int | None = None,
    ) -> None:
        s, kind = running.settings, RULES[running.settings.aggregation]
        self._attackers, self._before = s.tolerates(len(clients)) if attackers is None else attackers, s.robust
        self._rule = kind(s.rule if isinstance(s.rule, kind.keys) else kind.keys(), self._attackers)
        self._weights = weights if kind.weighted else np.ones(len(clients))
        self._around = Around(running, exchange, clients, trains or Trusted(s), lasting=lasting)

    def combined(self, arrays: Arrays) -> Combined:
        """Return what the rule makes of stacked updates, with a flag for each client; momentum changes the updates."""
        around, before = self._around, self._before
        if before.momentum:
            _slow(arrays, replace(around, purpose="momentum"), before.momentum)
        stack = Stack(arrays, self._weights)
        if before.mixing == "bucketing":
            stack = stack.mixed(buckets(len(stack), before.bucket_size, around))
        elif before.mixing == "nearest-neighbours":
            stack = stack.mixed(nearest_neighbours(stack, self._attackers))
        found = self._rule.combine(stack, around)
        if found.excluded is None or stack.mixing is None:
            return found
        return replace(found, excluded=(stack.mixing[~found.excluded] == 0).all(axis=0))  # in no row that counts


class Robust(Layer):
    """Has nodes return single clients' updates, and combines them by the rule."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._rounds, self._seconds = 0, 0.0
        self._excluded: dict[str, int] = {}
        self._present = 0  # how often an attacker's update was combined

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer if ``aggregation`` is a robust rule, or attackers forge single updates."""
        s = running.settings
        forges = attack_of(s.attack, s.attack_keys).forges
        return cls(running) if s.aggregation != MEAN or forges else None

    def check(self, groups: Callable[[], Mapping[str, Sequence[str]]]) -> None:
        """Raise :class:`ConfigurationError` if a cohort is too small for the rule, or the server lacks examples."""
        running, s = self._running, self._running.settings
        of = len(running.trainable())
        sizes = {running.asked(running.cohort_size(r), of) for r in range(1, s.rounds + 1)}
        for size in sorted(sizes):
            if s.sums_of_groups and s.secure_groups < (needed := least(s, size)):
                raise ConfigurationError(
                    f"secure-groups: '{s.aggregation}' tolerates {s.tolerates(size)} attackers of {size} clients, each "
                    f"in a group of its own, among {needed} groups or more (found: {s.secure_groups})"
                )
            if size < (needed := least(s, size)):
                mixed = "" if s.robust.mixing == "none" else f", robust.mixing = '{s.robust.mixing}'"
                key, value = ("tolerated", s.tolerated) if s.tolerated >= 0 else ("attackers", s.attackers)
                raise ConfigurationError(
                    f"aggregation: '{s.aggregation}' with {key} = {value}{mixed} needs {needed} clients, but a "
                    f"cohort has {size}. Ask more (cohort-size, participation, final-participation), or lower {key}"
                )
        if RULES[s.aggregation].trusts:
            check_examples(s, deployed=running.clients.deployed)

    def begin(self, first: Arrays, rounds: int, done: int) -> None:
        """Raise :class:`ConfigurationError` if the server is to train a network of which it has a part."""
        running = self._running
        if RULES[running.settings.aggregation].trusts and (
            lacking := [name for name in running.exchanged if name not in first]
        ):
            s = running.settings
            raise ConfigurationError(
                f"aggregation: '{s.aggregation}' has the server train as clients do, and with method '{s.method}' it "
                f"has no '{lacking[0]}' of the network; use another rule"
            )

    def request(self, exchange: Exchange, request: Request) -> Request:
        """Return a request for single updates."""
        return replace(request, reduce="deltas") if exchange.updates and self._sees_single else request

    def expect(self, exchange: Exchange, expected: Expected) -> Expected:
        """Return the checks of stacked updates."""
        return replace(expected, stacked=True) if exchange.updates and self._sees_single else expected

    def settle(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Return the outcome with the combined update in place of single ones, times the total weight."""
        if not exchange.updates or not outcome.clients:
            return outcome
        started, s = time.perf_counter(), self._running.settings
        if self._sees_single:
            rows, weights, attackers = outcome.clients, outcome.metrics["weight"], s.tolerates(len(outcome.clients))
        else:  # each attacker of the cohort may have spoiled one group
            rows = [f"group {number}" for number in range(1, len(outcome.groups) + 1)]
            weights, attackers = np.array(outcome.groups), s.tolerates(len(exchange.cohort))
        if len(rows) < (needed := least_rows(s, attackers)):
            log.warning(
                "the model stays as it is: %d %s have replied, '%s' needs %d",
                len(rows), "clients" if self._sees_single else "groups", s.aggregation, needed,
            )  # fmt: skip
            still = {name: np.zeros(array.shape[1:]) for name, array in outcome.arrays.items()}
            return replace(outcome, arrays=still, groups=())
        found = Combining(self._running, exchange, rows, weights, trains=self._trusted, attackers=attackers).combined(
            outcome.arrays
        )
        if found.excluded is not None and self._sees_single:
            for client in [client for client, out in zip(outcome.clients, found.excluded, strict=True) if out]:
                self._excluded[client] = self._excluded.get(client, 0) + 1
        self._present += len(self._attackers & {*outcome.clients})
        self._rounds += 1
        self._seconds += time.perf_counter() - started
        arrays = {name: array * outcome.weight for name, array in found.update.items()}
        return replace(outcome, arrays=arrays, groups=())

    def facts(self) -> dict[str, Any]:
        """Return what is counted, for checkpoints."""
        own = {"combined": self._rounds, "seconds": self._seconds, "excluded": self._excluded, "present": self._present}
        return {"robust": own}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore what was counted; checkpoints of earlier versions have nothing."""
        own = facts.get("robust", {})
        self._rounds, self._seconds = own.get("combined", 0), own.get("seconds", 0.0)
        self._excluded, self._present = dict(own.get("excluded", {})), own.get("present", 0)

    def report(self) -> dict[str, Any]:
        """Return how often updates were combined, the mean seconds, and how often each client was excluded.

        With attackers also the share of them among those excluded, and the share of their updates that was excluded.
        """
        if not self._rounds:
            return {}
        excluded = dict(sorted(self._excluded.items(), key=lambda entry: (-entry[1], entry[0])))
        seconds = round(self._seconds / self._rounds, 4)
        found: dict[str, Any] = {"combined": self._rounds, "seconds_each": seconds, "excluded": excluded}
        right, total = sum(excluded.get(client, 0) for client in self._attackers), sum(excluded.values())
        found |= {"precision": right / total} if self._present and total else {}
        found |= {"recall": right / self._present} if self._present and total else {}
        return {"robust": found}

    # --------------------------------------------------------------------------------------- details

    @property
    def _sees_single(self) -> bool:
        """Whether the rule sees single clients' updates rather than means of groups."""
        return not self._running.settings.sums_of_groups

    @cached_property
    def _attackers(self) -> frozenset[str]:
        return attackers_of(self._running)

    @cached_property
    def _trusted(self) -> Trusted:
        return Trusted(self._running.settings)


def _slow(arrays: Arrays, around: Around, β: float) -> None:
    """Replace each client's update by its momentum m ← β·m + (1 − β)·update, in place; m starts as the first update."""
    for row, client in enumerate(around.clients):
        before = around.remembered(client)
        own = {}
        for name, array in arrays.items():
            if is_statistic(name):
                continue
            old = before.get(name)
            if old is not None and old.shape == array.shape[1:]:
                array[row] = β * old + (1 - β) * array[row]
            own[name] = array[row].copy()
        around.remember(client, own)
