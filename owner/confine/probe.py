"""What of a cell this machine enforces: a process enters one, and tries what it must not be able to do."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from florilegium.common.errors import ConfigurationError
from florilegium.owner.confine.cell import Cell


def probe(cell: Cell, secret: Path) -> list[str]:
    """Return what cannot be enforced, in words; [] if all of it is.

    Args:
        cell: a cell.
        secret: a file that must not be readable there.

    Raises:
        ConfigurationError: if the cell is for another user, who cannot read or write what a run needs.
    """
    if not hasattr(os, "fork"):
        return ["anything: this system cannot fork"]
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.close(ours)
            changed = cell.changes_user
            missing = replace(cell, strict=False).enter()
            os.write(
                theirs,
                json.dumps(
                    [missing + _succeeding(cell, secret), _failing(cell) if changed and not cell.changes_user else []]
                ).encode(),
            )
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    if not told:
        return ["anything: a process that tried to enter a cell has died"]
    missing, failing = json.loads(told)
    if failing:
        raise ConfigurationError(
            f"limits.user: a run's process would be a user who {'; '.join(failing)}. Give that user the right to, and "
            "to pass the folders above"
        )
    return list(missing)


def _failing(cell: Cell) -> list[str]:
    """Return what another user, as whom a run's process works, is not able to do, and must be."""
    reads = [place for place in (*cell.readable, os.__file__, __file__) if not os.access(place, os.R_OK)]
    writes = [place for place in (*cell.writable, cell.scratch) if not os.access(place, os.W_OK)]
    return [f"cannot read {place}" for place in reads] + [f"cannot write to {place}" for place in writes]


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
