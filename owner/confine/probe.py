"""What of a cell this machine enforces: a process enters one, and tries what it must not be able to do."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from florilegium.owner.confine.cell import Cell


def probe(cell: Cell, secret: Path) -> list[str]:
    """Return what cannot be enforced, in words; [] if all of it is.

    Args:
        cell: a cell.
        secret: a file that must not be readable there.
    """
    if not hasattr(os, "fork"):
        return ["anything: this system cannot fork"]
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.close(ours)
            missing = replace(cell, strict=False).enter()
            os.write(theirs, json.dumps(missing + _succeeding(cell, secret)).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return list(json.loads(told)) if told else ["anything: a process that tried to enter a cell has died"]


def _succeeding(cell: Cell, secret: Path) -> list[str]:
    """Return what can be done in a cell, and must not."""

    def write() -> None:
        (secret.parent / "written").write_text("")

    def fork() -> None:
        if os.fork() == 0:
            os._exit(0)

    tries: dict[str, Callable[[], object]] = {
        "that a run's process has no network: it can make a socket": socket.socket,
        "that it reads no other files": secret.read_bytes,
        "that it writes no other files": write,
        **({} if cell.processes else {"that it starts no processes": fork}),
        "that it cannot signal the supervisor": lambda: os.kill(os.getppid() or 1 << 21, 0),
    }
    return [what for what, attempt in tries.items() if _succeeds(attempt)]


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True
