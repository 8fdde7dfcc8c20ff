"""Gather what the clients of a node return into one reply, in the clear: a sum or a stack, and numbers per client."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import RecordDict

from florilegium.clients.core.base import Answer
from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.wire import Reply
from florilegium.models.parameters import Arrays


def weight_of(answer: Answer, settings: ClientSettings, heaviest: float | None = None) -> float:
    """Return the weight of a client's update in the average; ``heaviest``: the largest allowed, None: any."""
    if settings.weighting == "uniform":
        return 1.0
    return float(answer.num_examples) if heaviest is None else min(float(answer.num_examples), heaviest)


@dataclass(frozen=True)
class Result:
    """What leaves a host of one client.

    Attributes:
        answer: what the client returned, which was checked.
        arrays: what is combined with other clients' results: the arrays that the client returned, or its update.
        changed: whether it is the update.
        counted: numbers about the client's work.
    """

    answer: Answer
    arrays: Arrays
    changed: bool
    counted: Mapping[str, float]


class Gathers(Protocol):
    """Gathers the results of a node's clients into one reply."""

    def add(self, client_id: str, result: Result) -> None:
        """Add a client's result."""

    def reply(self, failures: Mapping[str, str], mark: str = "") -> RecordDict:
        """Return the content of the reply; ``failures``: the error of each client that failed, ``mark``: as in it."""


class Combines(Protocol):
    """Combines the arrays of several clients."""

    def add(self, arrays: Arrays, weight: float, *, changed: bool = False) -> None:
        """Add the arrays of one client, or its update, whose weight in the average is ``weight``."""

    def result(self) -> Arrays:
        """Return the combined arrays."""


class Gathered:
    """The reply of a node, in the clear, as its clients' results come.

    Args:
        settings: the run's configuration.
        combined: combines the clients' arrays.
        heaviest: the largest weight of an update; None: no limit.
    """

    def __init__(self, settings: ClientSettings, combined: Combines, heaviest: float | None = None) -> None:
        self._settings, self._combined, self._heaviest = settings, combined, heaviest
        self._done: list[str] = []
        self._numbers: list[dict[str, float]] = []

    def of(self, combined: Combines) -> Gathered:
        """Return a reply in which ``combined`` combines the clients' arrays."""
        return Gathered(self._settings, combined, self._heaviest)

    def add(self, client_id: str, result: Result) -> None:
        """Add a client's result."""
        answer = result.answer
        weight = weight_of(answer, self._settings, self._heaviest)
        self._combined.add(result.arrays, weight, changed=result.changed)
        self._numbers.append({
            "num-examples": float(answer.num_examples),
            "weight": weight,
            **result.counted,
            **answer.metrics,
        })  # fmt: skip
        self._done.append(client_id)

    def reply(self, failures: Mapping[str, str], mark: str = "") -> RecordDict:
        """Return the content of the reply; ``failures``: the error of each client that failed, ``mark``: as in it."""
        names = dict.fromkeys(name for numbers in self._numbers for name in numbers)
        metrics = {name: [float(numbers.get(name, math.nan)) for numbers in self._numbers] for name in names}
        return Reply(self._done, self._combined.result(), metrics, dict(failures), mark).pack()
