"""Stop in time where a scheduler takes the machine away: it sends SIGTERM, and SIGKILL some seconds later."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from florilegium.common.errors import PreemptedError, StoppedError


@contextmanager
def preemptible(grace: float) -> Iterator[None]:
    """Context of a run that SIGTERM stops after the present round, with a checkpoint, or at once after some seconds.

    Args:
        grace: seconds that the round may still take.

    Raises:
        PreemptedError: if SIGTERM has stopped the run.
    """
    told = threading.Event()
    late = threading.Timer(grace, os.kill, (os.getpid(), signal.SIGINT))
    late.daemon = True

    def stop(number: int, frame: FrameType | None) -> None:
        if not told.is_set():
            told.set()
            late.start()
            signal.raise_signal(signal.SIGINT)  # the first one lets the round end

    before = signal.signal(signal.SIGTERM, stop), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    try:
        yield
    except StoppedError as error:
        if told.is_set():
            raise PreemptedError(str(error)) from error
        raise
    finally:
        late.cancel()
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
