"""Secret randomness from a seed, so that runs with noise or masks can be compared."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def seeded() -> Iterator[None]:
    """Context in which :mod:`secrets` and :class:`random.SystemRandom` draw what a seed determines, in this process.

    Requests for as many bytes have a stream of their own: a change of the number of keys (32 bytes) that are drawn does
    not change the seeds of the noise (16).
    """
    streams: dict[int, random.Random] = {}

    def draw(size: int) -> bytes:
        return streams.setdefault(size, random.Random(size)).randbytes(size)

    with patch.object(random, "_urandom", draw):  # what both draw all their bytes from
        yield
