"""What crosses the wire between server and node, packed and unpacked by the same objects on both sides.

Flower's records are typed loosely; here every field has its name and type. The meaning of the fields is in
docs/architecture.md, section "Messages".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from models.parameters import Arrays

Config = Mapping[str, Any]

BESIDE = "beside."
"""How names of arrays begin that travel with a network's but are none of it; clients may leave them unanswered."""


def pack(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return ``arrays`` as a Flower record of the same names, in the same order."""
    return ArrayRecord({name: Array(np.require(array, requirements="C")) for name, array in arrays.items()})


def unpack(record: ArrayRecord) -> Arrays:
    """Return the arrays of ``record`` by name, in order."""
    return {name: array.numpy() for name, array in record.items()}


def _arrays(content: RecordDict, name: str) -> Arrays:
    return unpack(cast(ArrayRecord, content[name])) if name in content else {}


@dataclass(frozen=True)
class Request:
    """What a node is asked to do.

    Attributes:
        clients: ids of the clients it shall run, in order; empty if a stock Flower strategy asks.
        config: ``phase``, ``round``, ``reduce``, ``run``, ``identity``, ``lineage``, ``checkpoint`` and the phase's own
            scalars.
        arrays: broadcast to every client.
        scatter: arrays with a leading axis in the order of ``clients``; each client gets its own entry.
    """

    clients: list[str]
    config: Config
    arrays: Arrays
    scatter: Arrays

    @staticmethod
    def pack(
        clients: list[str], config: Config, arrays: ArrayRecord | None, scatter: Mapping[str, NDArray[Any]] | None
    ) -> RecordDict:
        """Return the content of a message. ``arrays`` is a record already, so that all messages can share it."""
        content = RecordDict({"config": ConfigRecord({**config, "clients": clients})})
        if arrays is not None:
            content["arrays"] = arrays
        if scatter is not None:
            content["scatter"] = pack(scatter)
        return content

    @staticmethod
    def unpack(content: RecordDict) -> Request:
        """Read the content of a message."""
        config = dict(cast(ConfigRecord, content["config"]))
        clients = cast(list[str], config.pop("clients", []))
        return Request(clients, config, _arrays(content, "arrays"), _arrays(content, "scatter"))


@dataclass(frozen=True)
class Reply:
    """What a node answers for its clients.

    Attributes:
        clients: ids of the clients that succeeded.
        arrays: their arrays, reduced as the request asked.
        metrics: a list per number, in the order of ``clients``.
        failures: the error of each client that failed.
    """

    clients: list[str]
    arrays: Arrays
    metrics: dict[str, list[float]]
    failures: dict[str, str]

    def pack(self) -> RecordDict:
        """Return the content of a message."""
        return RecordDict(
            {
                "arrays": pack(self.arrays),
                "metrics": MetricRecord(dict(self.metrics)),
                "outcome": ConfigRecord({"clients": self.clients}),
                "failures": ConfigRecord(dict(self.failures)),
            }
        )

    @staticmethod
    def unpack(content: RecordDict) -> Reply:
        """Read the content of a message."""
        return Reply(
            list(cast(list[str], content["outcome"]["clients"])),
            _arrays(content, "arrays"),
            {name: cast(list[float], values) for name, values in cast(MetricRecord, content["metrics"]).items()},
            {client: str(reason) for client, reason in cast(ConfigRecord, content["failures"]).items()},
        )


@dataclass(frozen=True)
class Announcement:
    """Who lives on a node: its answer to the roster query.

    Attributes:
        pinned: whether it holds the data of certain clients only (a device), or can stand in for any (simulation).
        code: hash of the code it runs.
        clients: ids of its clients, if pinned.
        train, test: numbers of their examples.
        labeled: whether they have labels to train with.
    """

    pinned: bool
    code: str
    clients: list[str] = field(default_factory=list)
    train: list[int] = field(default_factory=list)
    test: list[int] = field(default_factory=list)
    labeled: list[bool] = field(default_factory=list)

    def pack(self) -> RecordDict:
        """Return the content of a message."""
        words = ConfigRecord(
            {"pinned": self.pinned, "code": self.code, "clients": self.clients, "labeled": self.labeled}
        )
        return RecordDict({"roster": words, "sizes": MetricRecord({"train": self.train, "test": self.test})})

    @staticmethod
    def unpack(content: RecordDict) -> Announcement:
        """Read the content of a message."""
        words, sizes = cast(ConfigRecord, content["roster"]), cast(MetricRecord, content["sizes"])
        return Announcement(
            bool(words["pinned"]),
            str(words["code"]),
            list(cast(list[str], words["clients"])),
            list(cast(list[int], sizes["train"])),
            list(cast(list[int], sizes["test"])),
            list(cast(list[bool], words["labeled"])),
        )
