"""The messages of secure aggregation, packed and unpacked by the same classes on both sides.

The stages are messages of their own (:class:`Stage`), but for ``mask``, which goes with the request to carry out a
phase, whose reply is then masked (:class:`Terms`); ``again`` takes its place where a sum is repeated. What parties tell
each other, the server passes on as bytes (:mod:`florilegium.privacy.secure_sum.party`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import ConfigRecord, RecordDict

from florilegium.common.errors import RunError

STAGE = "query.secure"
"""Type of the messages of stages that are messages of their own."""
STAGES = ("keys", "shares", "open", "again", "reveal")
RECORD = "secure"
"""Name of the record that belongs to secure aggregation."""


@dataclass(frozen=True)
class Stage:
    """A stage that some clients of a node shall carry out.

    Attributes:
        stage: one of ``STAGES``.
        token: names the exchange.
        run, identity: name of the run, and what distinguishes it from others of its name.
        messages: what each client is told, by client.
    """

    stage: str
    token: bytes
    run: str
    identity: str
    messages: Mapping[str, bytes]

    def pack(self) -> RecordDict:
        """Return the content of a message."""
        own: dict[str, Any] = {"stage": self.stage, "token": self.token, "run": self.run, "identity": self.identity}
        return RecordDict({RECORD: ConfigRecord(own | _listed(self.messages))})

    @staticmethod
    def unpack(content: RecordDict) -> Stage:
        """Read the content of a message.

        Raises:
            RunError: if it is malformed.
        """
        fields = _fields(content)
        stage, token = _of(fields, "stage", str), _of(fields, "token", bytes)
        if stage not in STAGES:
            raise RunError(f"secure aggregation has no stage '{stage}'")
        messages = _by_client(fields)
        return Stage(stage, token, _of(fields, "run", str), _of(fields, "identity", str), messages)


@dataclass(frozen=True)
class StageReply:
    """The reply of a node: what its clients say, and the error of each client that failed."""

    messages: Mapping[str, bytes]
    failures: Mapping[str, str]

    def pack(self) -> RecordDict:
        """Return the content of a message."""
        own: dict[str, Any] = {"failed": [*self.failures], "reasons": [*self.failures.values()]}
        return RecordDict({RECORD: ConfigRecord(own | _listed(self.messages))})

    @staticmethod
    def unpack(content: RecordDict) -> StageReply:
        """Read the content of a message.

        Raises:
            RunError: if it is malformed.
        """
        fields = _fields(content)
        failed, reasons = _list(fields, "failed", str), _list(fields, "reasons", str)
        if len(failed) != len(reasons):
            raise RunError("not every client that failed has a reason")
        return StageReply(_by_client(fields), dict(zip(failed, reasons, strict=True)))


@dataclass(frozen=True)
class Terms:
    """What a request adds if its reply is to be masked.

    Attributes:
        token: names the exchange.
        parties: number of clients that the sum may have.
        total: the most examples that all of them may have.
        examples: the most examples that each client of the request may have, by client.
        norm: bound of the norm of an update; 0 if clients return no updates.
        coarse: whether updates are sent as 32-bit integers.
        noise: standard deviation of the noise that each client adds to its update.
        messages: whom each client of the request has masks in common with, by client.
    """

    token: bytes
    parties: int
    total: float
    examples: Mapping[str, float]
    norm: float
    coarse: bool
    noise: float
    messages: Mapping[str, bytes]

    def pack(self) -> ConfigRecord:
        """Return the record of a request."""
        own: dict[str, Any] = {"token": self.token, "parties": self.parties, "total": self.total, "norm": self.norm}
        own |= {"coarse": self.coarse, "noise": self.noise, "examples": [*self.examples.values()]}
        return ConfigRecord(own | _listed(self.messages))

    @staticmethod
    def unpack(content: RecordDict, clients: Sequence[str]) -> Terms | None:
        """Read the record of a request to ``clients``; return None if it has none.

        Raises:
            RunError: if it is malformed.
        """
        if RECORD not in content:
            return None
        fields = _fields(content)
        messages, examples = _by_client(fields), _list(fields, "examples", float)
        if [*messages] != [*clients] or len(examples) != len(clients):
            raise RunError("the terms of the secure sum are not those of the clients that are asked")
        token, parties = _of(fields, "token", bytes), _of(fields, "parties", int)
        total, norm, coarse = _of(fields, "total", float), _of(fields, "norm", float), _of(fields, "coarse", bool)
        noise = _of(fields, "noise", float)
        if not all(math.isfinite(number) and number >= 0 for number in (parties, total, norm, noise, *examples)):
            raise RunError("the terms of the secure sum have numbers below 0, NaN or infinity")
        return Terms(token, parties, total, dict(zip(clients, examples, strict=True)), norm, coarse, noise, messages)


def _fields(content: RecordDict) -> Mapping[str, Any]:
    if RECORD not in content:
        raise RunError(f"the message has no record '{RECORD}'")
    return cast(Mapping[str, Any], content[RECORD])


def _of(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if type(value) is not kind:
        raise RunError(f"field '{name}' must be of type {kind.__name__} (found: {type(value).__name__})")
    return value


def _list(fields: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    values = list(_of(fields, name, list))
    if not all(type(value) is kind for value in values):
        raise RunError(f"field '{name}' must be a list of {kind.__name__}")
    return values


def _listed(messages: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields that :func:`_by_client` reads."""
    return {"clients": [*messages], "messages": [*messages.values()]}


def _by_client(fields: Mapping[str, Any]) -> dict[str, bytes]:
    clients, messages = _list(fields, "clients", str), _list(fields, "messages", bytes)
    if len(clients) != len(messages) or len({*clients}) != len(clients):
        raise RunError("there is not one message for each client")
    return dict(zip(clients, messages, strict=True))
