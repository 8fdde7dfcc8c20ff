"""The process on a device that answers the messages of one run, with PyTorch, the network and the data in place.

Flower starts a process for every message, and each imports PyTorch and reads the data again. Here one process stays
from message to message. It is forked from a process that has imported what every run needs (the standard library's
``forkserver``, whose socket only the device's user can open), and takes the code of the run from its FAB, as Flower
does.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from florilegium.apps.devices.flower_inside import installed_app
from florilegium.apps.devices.frames import FrameError, ask, asked, fill, receive, send
from florilegium.apps.devices.guard import Guard
from florilegium.common.child import leave_signals_to_the_parent
from florilegium.common.places import short_temporary_folder
from florilegium.owner.confine.cell import Cell, kept_environment
from florilegium.strategies.exchange.flower_inside import ErrorCode, update_console_handler

log = logging.getLogger("flwr")

_PRELOADED = [
    "torch", "torch.func", "flwr.clientapp.utils", "flwr.cli.install", "PIL.Image", "pyarrow.parquet", "pyarrow.csv",
    "pydantic", "safetensors.torch", "threadpoolctl", "cloudpickle", "sklearn.datasets",
]  # fmt: skip
"""Modules of other packages that a device's process needs; the app's own modules come with each run."""
_GRACE = 1.0
"""Seconds that an idle process has to end; Flower gives the whole SuperNode five."""


@dataclass(frozen=True)
class App:
    """The app of a run: its id, version, and the contents and hash of its FAB."""

    name: str
    version: str
    fab: bytes
    hash: str


class DiedError(Exception):
    """The process of a run has died; the message says how."""


class LoadError(Exception):
    """The app of a run cannot be loaded."""


def prepare(*, confined: bool = False) -> None:
    """Start the process that the processes of runs are forked from.

    Args:
        confined: whether they must not know this process's environment, which may hold secrets.

    Raises:
        ConfigurationError: if ``TMPDIR`` is too long for its socket.
    """
    tempfile.tempdir = short_temporary_folder()
    multiprocessing.set_forkserver_preload(_PRELOADED)
    before = dict(os.environ)
    if confined:  # what a process was started with stays in its memory
        os.environ.clear()
        os.environ.update(kept_environment(before))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.update(before)


class Resident:
    """The process of one run, seen from the SuperNode.

    Args:
        app: the run's app.
        cell: what it is confined to; None: nothing.
        most: the most bytes that it may return at a time; None: any number.
    """

    def __init__(self, app: App, cell: Cell | None = None, most: int | None = None) -> None:
        self._most = most
        context = multiprocessing.get_context("forkserver")
        self._connection, there = context.Pipe()
        # Not a daemon, which could have no child processes: an owner's function may read data with several.
        self._process = context.Process(target=_answer_messages, args=(there, app, cell), daemon=False)
        self._process.start()
        self._busy = False
        there.close()

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process.is_alive()

    def answer(
        self, message: Message, context: Context, check: Callable[[], None] | None = None
    ) -> tuple[Message, Context]:
        """Return the reply to a message, and the context as the app has left it.

        Args:
            message: the message.
            context: what the app has kept.
            check: called again and again meanwhile; if it raises, so does this, and the process has ended.

        Raises:
            DiedError: if the process dies; the next message needs a new one. It has ended after any other error, too,
                since a part of a reply may be left in its socket.
        """
        self._busy = True
        try:
            with Guard(check, self._stop) if check else nullcontext():  # what the check raises is not the process's end
                reply, state = self._exchange(message, context)
        except BaseException:
            self.end()
            raise
        self._busy = False
        return reply, replace(context, state=state)

    def _exchange(self, message: Message, context: Context) -> tuple[Message, RecordDict]:
        """Return the reply and the state; raise :class:`DiedError` if the process dies."""
        try:
            ask(self._connection, message, context)
            wait([self._connection, self._process.sentinel])
            if not self._connection.poll():
                raise EOFError
            return receive(self._connection, message, self._most)
        except (EOFError, OSError) as error:
            self._process.join(_GRACE)  # its code says how it has ended
            self.end()
            raise DiedError(_death(self._process.exitcode)) from error
        except FrameError as error:
            raise DiedError(f"the device's process has failed: {error}") from error

    def _stop(self) -> None:
        """End the process by force, and whoever waits for what it sends."""
        self._process.kill()
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as shared:
            shared.shutdown(socket.SHUT_RDWR)  # another process may hold its end open

    def end(self) -> None:
        """End the process: by closing its connection if it is idle, by force if it is busy or does not end."""
        self._connection.close()
        if not self._busy:
            self._process.join(_GRACE)
        if self._process.is_alive():
            self._process.kill()
        self._process.join(_GRACE)


def _death(code: int | None) -> str:
    how = f"ended (exit code {code})"
    with suppress(ValueError):  # not all signals have names
        how = f"was killed by {signal.Signals(-(code or 0)).name}"
    return f"the device's process {how}; lack of memory is the most common cause"


def _answer_messages(connection: Connection, app: App, cell: Cell | None) -> None:
    """Answer messages until the SuperNode closes the connection or dies."""
    # The forkserver ends when nobody holds this pipe any more, and this process ends with the forkserver: so it must
    # not hold the pipe itself.
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    leave_signals_to_the_parent()
    if cell is not None:
        tempfile.tempdir = None  # the cell has its own
        cell.enter()
    update_console_handler(timestamps=True)
    client_app: ClientApp | None = None
    while True:
        try:
            message, context = asked(connection)
        except (EOFError, OSError):
            return
        try:
            client_app = client_app or _load(app)
            problem = None
        except LoadError as error:
            problem = Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, str(error))
        try:
            fill(connection, message, None if problem else _files())
        except (EOFError, OSError):
            return
        except Exception as error:  # of the app's own classes, such as a full disk
            problem = _raised(error)
        if client_app is not None and problem is None:
            try:
                reply = client_app(message=message, context=context)
            except Exception as error:
                problem = _raised(error)
        send(connection, Message(problem, reply_to=message) if problem else reply, context.state)


def _raised(error: Exception) -> Error:
    """Return what the server learns of an exception of the app; call it where that is handled."""
    log.exception("the app raised an exception")
    return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}")


def _files() -> Callable[[Iterator[bytes]], Any] | None:
    """Return the function of the loaded app that puts bytes in a file, whose class its own modules know; None: none."""
    return getattr(sys.modules.get("florilegium.common.spool"), "spooled", None)


def _load(app: App) -> ClientApp:
    """Install the app's FAB and return its ClientApp, with its own modules in place of those installed here.

    Raises:
        LoadError: if that fails, in words without the names of the device's files.
    """
    try:
        for name in [name for name in sys.modules if name.partition(".")[0] == "florilegium"]:
            del sys.modules[name]
        return installed_app(app.name, app.version, app.fab, app.hash)
    except Exception as error:
        log.exception("the app cannot be loaded")
        raise LoadError("the app cannot be loaded; the device's log says why") from error
