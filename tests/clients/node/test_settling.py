"""Tests of clients.core.settling: results count once states are on disk, in order, with few of them waiting."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

from florilegium.clients.node.settling import FLUSHES, Outcome, settled


def test_results_keep_their_order_and_errors_are_those_of_work_or_flush() -> None:
    flushed: Future[None] = Future()
    failed: Future[None] = Future()
    flushed.set_result(None)
    failed.set_exception(OSError("disk full"))
    wrong = ValueError("NaN")
    found = [*settled([("a", flushed), ("b", None), wrong, ("c", failed)])]
    assert found[:3] == ["a", "b", wrong]
    assert str(found[3]) == "disk full"


def test_others_work_while_a_flush_lasts_but_not_all_of_them() -> None:
    begun: list[int] = []
    waited: list[int] = []

    class Slow(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            waited.append(len(begun))

    def outcomes() -> Iterator[Outcome[int]]:
        for number in range(20):
            begun.append(number)
            yield number, (Slow() if number == 0 else None)

    assert [*settled(outcomes())] == [*range(20)]
    assert waited == [FLUSHES + 1]


def test_a_result_without_a_flush_waits_for_none() -> None:
    begun: list[int] = []

    def outcomes() -> Iterator[Outcome[int]]:
        for number in range(3):
            begun.append(number)
            yield number, None

    assert next(settled(outcomes())) == 0
    assert begun == [0]
