"""Memory that is given back while large requests are made."""

from __future__ import annotations

import gc
import sys
import weakref

import psutil
import pytest

from florilegium.clients.core.worker import tune_process
from florilegium.common.memory import Passing, settle, trim

MB = 1_000_000


class _Cycle:
    """A part of a reference cycle, as a response of httpx, with a body."""

    def __init__(self, size: int) -> None:
        self.me, self.body = self, bytearray(size)


def test_bodies_in_reference_cycles_are_gone_after_some_have_passed() -> None:
    passing, seen = Passing(), []
    gc.disable()  # Python itself would look for cycles at some time
    try:
        for _ in range(20):
            response = _Cycle(5 * MB)
            seen.append(weakref.ref(response))
            passing.add(5 * MB)
            assert sum(one() is not None for one in seen) <= 8
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="only the GNU C library keeps it")
def test_freed_memory_goes_back_to_the_system() -> None:
    tune_process("cpu", one_thread=False)
    process = psutil.Process()
    held = [bytearray(b"\1") * 100_000 for _ in range(2_000)]
    del held
    kept = process.memory_info().rss
    trim()
    assert process.memory_info().rss < kept - 180 * MB


def test_what_is_settled_is_not_searched_again() -> None:
    before, earlier = gc.get_freeze_count(), [[] for _ in range(1_000)]
    settle()
    assert gc.get_freeze_count() >= before + len(earlier)
    new = _Cycle(1)
    gone = weakref.ref(new)
    del new
    gc.collect()
    assert gone() is None
