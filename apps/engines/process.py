"""The engine ``process``: carries out a run in the calling process and its workers; the caller may stop it."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from florilegium.apps.engines.base import Engine, OnEvaluation
from florilegium.apps.engines.progress import Show
from florilegium.apps.settings.configuration import complete
from florilegium.apps.trackers.sending import attached
from florilegium.common.errors import ConfigurationError, FileError, RunError
from florilegium.common.settings import Value
from florilegium.strategies.folder.metrics_file import is_evaluated

if TYPE_CHECKING:
    from florilegium.apps.engines.one_process import Cluster

GROUPS = ("seen", "unseen", "unlabeled")

_ONE_AT_A_TIME = threading.RLock()
"""Held by a run: the log, PyTorch's threads and what is remembered belong to the whole process."""


class InThisProcess(Engine):
    """Carries out runs in this process; with several workers, their clients train in worker processes of its own.

    Runs of several threads wait for each other. Ctrl-C stops a run after its present round, with a checkpoint; a second
    Ctrl-C stops it at once.

    Attributes:
        cluster: opens the grid of a run whose workers are elsewhere; None: they are this process's.
    """

    cluster: Cluster | None = None

    def run(self, overrides: Mapping[str, Value], run_path: Path, progress: Show) -> None:
        """Carry out one run and wait for it, as :meth:`Engine.run`; raise :class:`Interrupted` if Ctrl-C stopped it."""
        from florilegium.apps.engines.one_process import run_here  # imports torch and Flower, which takes seconds

        gc.enable()  # the command line has switched it off for the imports
        watcher = _Watcher(progress, self.on_evaluation)
        try:
            run_path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"runs-dir: {run_path} cannot be made ({error.strerror}); name another folder") from error
        with _ONE_AT_A_TIME, _logged(run_path / "run.log"), _stopping_after_a_round(watcher):
            config = complete(overrides)
            run_here(
                config, run_path, attached(watcher, config, run_path), workers=self.workers, fork=self.fork,
                cluster=self.cluster,
            )  # fmt: skip


class _Watcher:
    def __init__(self, progress: Show, on_evaluation: OnEvaluation | None) -> None:
        self.interrupted = False
        self._on_evaluation = on_evaluation
        self.progressed = progress

    def recorded(self, line: Mapping[str, Any]) -> bool:
        if self._on_evaluation is None or not is_evaluated(line):
            return False
        figures = {group: dict(line[group]) for group in GROUPS if group in line}
        ended = self._on_evaluation(int(line["round"]), figures)
        try:
            return bool(ended)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"on_evaluation: returned {type(ended).__name__}, which is neither true nor false ({error}); return "
                "True to end the run"
            ) from error


@contextmanager
def _stopping_after_a_round(watcher: _Watcher) -> Iterator[None]:
    """Context in which the first Ctrl-C sets ``watcher.interrupted``, and the second one interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        watcher.interrupted = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _LogFile(logging.FileHandler):
    """Writes a log to a file; lines that do not fit on a full disk are lost, which the run's next file says."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the standard library's name)
        """Ignore a line that cannot be written; by default a traceback would be printed for each."""

    def close(self) -> None:
        """Close the file, also if its last lines cannot be written."""
        with suppress(OSError):
            super().close()


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Context in which Flower's log goes to the file ``path``; only warnings also appear on the screen."""
    log = logging.getLogger("flwr")
    try:
        file = _LogFile(path, encoding="utf-8")
    except OSError as error:
        raise FileError(f"runs-dir: {path} cannot be written ({error.strerror}); name another folder") from error
    file.setFormatter(logging.Formatter("%(levelname)s : %(message)s"))
    levels, propagates = [(handler, handler.level) for handler in log.handlers], log.propagate
    for handler, level in levels:
        handler.setLevel(max(level, logging.WARNING))
    log.addHandler(file)
    log.propagate = False  # Opacus gives the root logger a handler that would print all of it
    try:
        yield
    finally:
        log.propagate = propagates
        log.removeHandler(file)
        file.close()
        for handler, level in levels:
            handler.setLevel(level)
