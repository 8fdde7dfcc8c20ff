"""What a child process does at its start, so that it ends with its parent and not by itself."""

from __future__ import annotations

import ctypes
import signal
import sys

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>


def leave_signals_to_the_parent() -> None:
    """Let this process end when its parent ends, and not by signals that reach all processes, as Ctrl-C does."""
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
