"""Which runs are being carried out: a lock in the run's folder, which the system releases however its holder ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from florilegium.common.errors import ConfigurationError, FileError

LOCK = ".lock"
"""The lock's file in a run's folder."""
DIED = "its process ended without a word: it was killed, or the machine went off"


@contextmanager
def claimed(run: Path) -> Iterator[None]:
    """Context in which this process, and no other, carries out the run in folder ``run``, which is made.

    Raises:
        ConfigurationError: if another process, or another thread of this one, carries it out.
        FileError: if the folder cannot be made.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = FileLock(run / LOCK, timeout=0)
        lock.acquire()
    except Timeout as error:
        raise _taken(run) from error
    except OSError as error:
        raise FileError(f"runs-dir: {run} cannot be made ({error.strerror}); name another folder") from error
    try:
        yield
    finally:
        lock.release()


def refuse_if_claimed(run: Path) -> None:
    """Raise :class:`ConfigurationError` if some process carries out the run in folder ``run``."""
    if is_carried_out(run):
        raise _taken(run)


def _taken(run: Path) -> ConfigurationError:
    return ConfigurationError(
        f"run-name, resume: run '{run.name}' is being carried out by another process or thread; wait until it ends, or "
        "choose another name"
    )


def is_carried_out(run: Path) -> bool:
    """Return whether some process carries out the run in folder ``run``, on this machine or a shared disk's others.

    Who looks takes a shared lock for a moment and writes nothing: several can look at once, also in folders that they
    may only read.
    """
    if sys.platform == "win32":
        return _is_taken(run)
    import fcntl

    try:
        with (run / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _is_taken(run: Path) -> bool:
    if not (run / LOCK).exists():
        return False
    try:
        with FileLock(run / LOCK, timeout=0):
            return False
    except (Timeout, OSError):
        return True


def read_status(run: Path) -> dict[str, Any]:
    """Return the contents of ``status.json``; a run whose process has died without a word is "stopped".

    Raises:
        OSError, ValueError: if there is no such file, or it is damaged.
    """
    status = dict(json.loads((run / "status.json").read_text(encoding="utf-8")))
    if status["state"] == "running" and (run / LOCK).exists() and not is_carried_out(run):
        # The run may have ended properly between the two looks.
        status = dict(json.loads((run / "status.json").read_text(encoding="utf-8")))
        if status["state"] == "running":
            status |= {"state": "stopped", "error": DIED}
    return status
