"""What a board says of each method, from runs made up."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from florilegium.apps.reports.pools import Pool, Section
from florilegium.apps.reports.run_records import RunRecord
from florilegium.research.board.entries import entries, ranks, text_of
from tests.apps.reports.made import made_run

CLIENTS = range(10)


def _pool(label: str, *means: float, noise: float = 0.01) -> Pool:
    """Return a pool with a run for each mean accuracy; clients differ by up to ``noise``, in another way per method."""
    turn = sum(map(ord, label))
    runs = [
        made_run("fedavg", seed, {("seen", str(c)): mean + noise * math.sin(turn + c) for c in CLIENTS})
        for seed, mean in enumerate(means, start=1)
    ]
    return Pool(label, tuple(runs))


def test_methods_within_the_errors_share_their_ranks() -> None:
    section = Section((_pool("a", 0.9, 0.9), _pool("b", 0.8, 0.82), _pool("c", 0.81, 0.80), _pool("d", 0.5, 0.5)))
    assert ranks(section, "seen") == {"a": (1, 1), "b": (2, 3), "c": (2, 3), "d": (4, 4)}
    assert [text_of(rank) for rank in ((1, 1), (2, 3))] == ["1", "2-3"]


@pytest.mark.parametrize(
    ("second", "noise", "apart"),
    [((0.9, 0.6), 0.0, False), ((0.9, 0.88), 0.0, True), ((0.75, 0.74), 0.5, False), ((0.75,), 0.01, True)],
)
def test_the_larger_error_decides(second: tuple[float, ...], noise: float, apart: bool) -> None:
    section = Section((_pool("a", 0.7, 0.7), _pool("b", *second, noise=noise)))
    assert (ranks(section, "seen")["a"] == (2, 2)) == apart


def _run(tmp_path: Path, seed: int, accuracies: list[float], validation: list[float] | None, memory: int) -> RunRecord:
    lines = [
        {
            "round": r, "seconds": 2.0 * r, "bytes_down": 3e6 * r, "bytes_up": 1e6 * r, "evaluation_seconds": 0.1,
            "seen": {"accuracy": a} | ({} if validation is None else {"validation_accuracy": validation[r - 1]}),
        }
        for r, a in enumerate(accuracies, start=1)
    ]  # fmt: skip
    run = made_run("fedavg", seed)
    path = tmp_path / str(seed)
    path.mkdir()
    (path / "provenance.json").write_text(json.dumps([{"seconds": 1, "peak_memory_mb": memory}]))
    final = {"seen": {"accuracy": accuracies[-1], "worst_decile": 0.25}}
    return replace(run, path=path, metrics=lines, summary={**run.summary, "final": final})


def test_figures_of_a_method(tmp_path: Path) -> None:
    first = _run(tmp_path, 1, [0.2, 0.8, 0.7, 0.6], [0.5, 0.4, 0.9, 0.1], 300)  # 90 % of 0.6 in round 2
    second = _run(tmp_path, 2, [0.5, 0.55, 0.6, 0.65], [0.1, 0.2, 0.3, 0.4], 500)  # 90 % of 0.65, 0.585, in round 3
    (entry,) = entries(Section((Pool("a", (first, second)),)), "seen")
    assert (entry.label, entry.rank) == ("a", (1, 1))
    assert entry.last.mean == pytest.approx((0.6 + 0.65) / 2)
    assert entry.chosen is not None
    assert entry.chosen.mean == pytest.approx((0.7 + 0.65) / 2)
    assert entry.best.mean == pytest.approx((0.8 + 0.65) / 2)
    assert entry.worst is not None
    assert entry.worst.mean == pytest.approx(0.25)
    assert (entry.megabytes, entry.seconds, entry.memory) == pytest.approx(((8 + 12) / 2, (4 + 6) / 2, 400))


def test_what_is_missing_or_not_a_number_decides_nothing(tmp_path: Path) -> None:
    """A part that was interrupted has no peak memory; clients of the second seed could not be measured."""
    first = _run(tmp_path, 1, [0.2, 0.6, 0.7], [math.nan, 0.4, 0.3], 300)
    (first.path / "provenance.json").write_text(json.dumps([{"seconds": 1}, {"seconds": 1, "peak_memory_mb": 300}]))
    lines = [{"round": 3, "seconds": 1.0, "evaluation_seconds": 0.1, "bytes_down": 1, "bytes_up": 1, "seen": {}}]
    second = made_run("fedavg", 2)
    second = replace(second, metrics=lines, summary={**second.summary, "final": {"seen": {}}})
    (entry,) = entries(Section((Pool("a", (first, second)),)), "seen")
    assert entry.chosen is not None
    assert (entry.chosen.mean, entry.last.mean, entry.best.mean) == pytest.approx((0.6, 0.7, 0.7))
    (entry,) = entries(Section((Pool("a", (first,)),)), "seen")
    assert entry.memory == 300


def test_without_validation_nothing_is_chosen(tmp_path: Path) -> None:
    run = _run(tmp_path, 1, [0.2, 0.8], None, 300)
    (entry,) = entries(Section((Pool("a", (run,)),)), "seen")
    assert entry.chosen is None
    assert entries(Section((Pool("a", (run,)),)), "unseen") == []


def test_the_best_comes_first_and_not_a_number_last() -> None:
    section = Section((_pool("bad", math.nan), _pool("low", 0.5), _pool("high", 0.9)))
    assert [entry.label for entry in entries(section, "seen")] == ["high", "low", "bad"]
