"""What a child process does so that it ends with its parent and not by itself."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>


def leave_signals_to_the_parent() -> None:
    """Let this process end when its parent ends, and not by signals that reach all processes, as Ctrl-C does."""
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


@contextmanager
def ended_with_the_parent(poll: float = 1.0) -> Iterator[None]:
    """Context in which this process gets SIGINT, as by Ctrl-C, when its parent ends, looked for every ``poll`` s.

    Where SIGINT is ignored, as in what a script starts in the background, only this one counts.
    """
    parent, over = os.getppid(), threading.Event()
    main = threading.current_thread() is threading.main_thread()  # no other may handle signals
    ignored = main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            raise KeyboardInterrupt

    def watch() -> None:
        while not over.wait(poll):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGINT)  # raise_signal would not wake the main thread
                return

    if ignored:
        signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
