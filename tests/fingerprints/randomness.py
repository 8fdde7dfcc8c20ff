"""Secret randomness from a seed, so that runs with noise or masks can be compared."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def seeded() -> Iterator[None]:
    """Context in which the suite's :mod:`secrets` and :class:`random.SystemRandom` come from a seed, in this process.

    Requests for as many bytes have a stream of their own: a change of the number of keys (32 bytes) that are drawn does
    not change the seeds of the noise (16). Other packages draw some when they are first imported, which is left alone.
    """
    streams: dict[int, random.Random] = {}

    def draw(size: int) -> bytes:
        caller = sys._getframe(1)
        while caller.f_globals["__name__"] in ("random", "secrets") and caller.f_back:
            caller = caller.f_back
        if not caller.f_globals["__name__"].startswith("florilegium."):
            return os.urandom(size)
        return streams.setdefault(size, random.Random(size)).randbytes(size)

    with patch.object(random, "_urandom", draw):  # what both draw all their bytes from
        yield
