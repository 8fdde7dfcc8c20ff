"""What is written of a run: hashes of its results and of its messages, and byte counts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from tests.fingerprints.package import read_checkpoint
from tests.runs import timeless

WIRE = ("messages", "bytes")
"""The parts of a fingerprint that a change of the wire may change alone."""
_OWN = ("identity", "run", "code", "packages")
"""Fields of messages in which two runs differ, or two versions of the code."""
_PATH = re.compile(r"/\S+")


def fingerprint(run: Path) -> dict[str, Any]:
    """Return the hashes and byte counts of a finished run."""
    checkpoint = read_checkpoint(run)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    clients = run / "clients.csv"
    return {
        "model": _arrays(checkpoint.arrays),
        "state": _arrays(checkpoint.state),
        "facts": _json(checkpoint.facts["own"]),
        "clients": _digest(clients.read_bytes()) if clients.exists() else "",
        "metrics": _json(timeless(run)),
        "bytes": [summary["bytes_down"], summary["bytes_up"]],
    }


def messages(sent: Iterable[Message], received: Iterable[Message]) -> dict[str, str]:
    """Return a hash for each type of message, direction and record: of all such records in their order."""
    hashes: dict[str, Any] = {}
    for direction, several in (("sent", sent), ("received", received)):
        for message in several:
            metadata = message.metadata
            kind, node = metadata.message_type, metadata.dst_node_id if direction == "sent" else metadata.src_node_id
            parts = _records(message) if message.has_content() else {"error": _plain(message.error.reason)}
            for name, part in {"nodes": node, **parts}.items():
                hashes.setdefault(f"{kind} {direction}, {name}", hashlib.sha256()).update(repr(part).encode())
    return {name: found.hexdigest()[:16] for name, found in hashes.items()}


def _records(message: Message) -> dict[str, Any]:
    return {
        name: [(key, array.dtype, array.shape, _digest(array.data)) for key, array in record.items()]
        if isinstance(record, ArrayRecord)
        else [(key, _plain(value)) for key, value in sorted(record.items()) if key not in _OWN]
        for name, record in message.content.items()
    }


def _plain(value: object) -> object:
    """Return a value without paths."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return _PATH.sub("/…", value) if isinstance(value, str) else value


def _arrays(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    whole = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:16]


def _json(value: object) -> str:
    return _digest(json.dumps(value, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
