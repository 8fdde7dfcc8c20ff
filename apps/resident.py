"""The process on a device that answers the messages of one run, with PyTorch, the network and the data in place.

Flower starts a process for every message, and each imports PyTorch and reads the data again. Here one process stays for
as long as the run does. It is forked from a process that has imported what every run needs (the standard library's
``forkserver``), and takes the code of the run from its FAB, as Flower does. It is reached through a socket that has no
name, so that nobody else can open it.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait

from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.constant import ErrorCode

from florilegium.common.child import leave_signals_to_the_parent

log = logging.getLogger("flwr")

_PRELOADED = [
    "torch", "torch.func", "flwr.clientapp", "flwr.cli.install", "PIL.Image", "pyarrow.parquet", "pyarrow.csv",
    "pydantic", "safetensors.torch", "threadpoolctl", "cloudpickle", "sklearn.datasets",
]  # fmt: skip
"""Modules of other packages that a device's process needs; the app's own modules come with each run."""
_GRACE = 5.0
"""Seconds that a process has to end."""


@dataclass(frozen=True)
class App:
    """The app of a run: its id, version, and the contents and hash of its FAB."""

    name: str
    version: str
    fab: bytes
    hash: str


class DiedError(Exception):
    """The process of a run has died; the message says how."""


def prepare() -> None:
    """Start the process that the processes of runs are forked from."""
    multiprocessing.set_forkserver_preload(_PRELOADED)
    forkserver.ensure_running()


class Resident:
    """The process of one run, seen from the SuperNode.

    Args:
        app: the run's app.
    """

    def __init__(self, app: App) -> None:
        context = multiprocessing.get_context("forkserver")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_answer_messages, args=(there, app), daemon=True)
        self._process.start()
        there.close()

    def answer(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Return the reply to a message, and the context as the app has left it.

        Raises:
            DiedError: if the process dies; the next message needs a new one.
        """
        try:
            self._connection.send((message, context))
            wait([self._connection, self._process.sentinel])
            answer: tuple[Message, Context] = self._connection.recv()
            return answer
        except (EOFError, OSError) as error:
            self.end()
            raise DiedError(_death(self._process.exitcode)) from error

    def end(self) -> None:
        """End the process: when its connection closes, or by force if it does not."""
        self._connection.close()
        self._process.join(_GRACE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_GRACE)


def _death(code: int | None) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended (exit code {code})"
    return f"the device's process {how}; lack of memory is the most common cause"


def _answer_messages(connection: Connection, app: App) -> None:
    """Answer messages until the SuperNode closes the connection or dies."""
    leave_signals_to_the_parent()
    client_app: ClientApp | None = None
    while True:
        try:
            message, context = connection.recv()
        except (EOFError, OSError):
            return
        try:
            client_app = client_app or _load(app)
            reply = client_app(message=message, context=context)
        except Exception as error:
            log.exception("the app raised an exception")
            loading = isinstance(error, LoadClientAppError)
            code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION if loading else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            reply = Message(Error(code, f"{type(error).__name__}: {error}"), reply_to=message)
        connection.send((reply, context))


def _load(app: App) -> ClientApp:
    """Install the app's FAB and return its ClientApp, with its own modules in place of those installed here."""
    install_from_fab(app.fab, skip_prompt=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "florilegium"]:
        del sys.modules[name]
    return get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)(app.name, app.version, app.hash)
