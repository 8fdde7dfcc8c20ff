"""Wait for the disk while other clients work: a client's result counts once its state is flushed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

FLUSHES = 4
"""Number of states that are flushed at a time; a file system takes little longer for several than for one."""

Outcome = tuple[T, Future[None] | None] | Exception
"""What a client's work has led to: a result and the flush of its state, None if it has stored nothing; or an error."""


def settled(outcomes: Iterable[Outcome[T]]) -> Iterator[T | Exception]:
    """Yield each result in order when its flush has ended, or the error of the work or the flush.

    While flushes last, further outcomes are taken, at most ``FLUSHES`` in all, so that memory stays bounded.
    """
    waiting: deque[Outcome[T]] = deque()
    for outcome in outcomes:
        waiting.append(outcome)
        del outcome  # which is not to outlive its use, since it may hold a model
        while waiting and (len(waiting) > FLUSHES or _done(waiting[0])):
            yield _settle(waiting.popleft())
    yield from map(_settle, waiting)


def _done(outcome: Outcome[T]) -> bool:
    return isinstance(outcome, Exception) or outcome[1] is None or outcome[1].done()


def _settle(outcome: Outcome[T]) -> T | Exception:
    if isinstance(outcome, Exception):
        return outcome
    result, flush = outcome
    try:
        if flush is not None:
            flush.result()
    except Exception as error:
        return error
    return result
