"""Watch over a request while its process works, in a thread: what the process does cannot hold this up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

PAUSE = 0.5
"""Seconds between two looks."""


class Guard:
    """Context in which ``check`` is called again and again; if it raises, ``stop`` is called and the context raises it.

    Args:
        check: raises an exception if what goes on has to end.
        stop: ends it, so that the body of the context ends.
    """

    def __init__(self, check: Callable[[], None], stop: Callable[[], None]) -> None:
        self._check, self._stop, self._over = check, stop, threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        while not self._over.wait(PAUSE):
            try:
                self._check()
            except Exception as error:
                self._error = error
                self._stop()
                return
