"""What a board says of each method, from runs made up."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

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


def test_methods_that_no_test_tells_apart_share_their_ranks() -> None:
    means = {"a": (0.90, 0.901, 0.90), "b": (0.80, 0.82, 0.81), "c": (0.81, 0.80, 0.815), "d": (0.50, 0.501, 0.502)}
    section = Section(tuple(_pool(label, *own, noise=0.0) for label, own in means.items()))
    assert ranks(section, "seen") == {"a": (1, 1), "b": (2, 3), "c": (2, 3), "d": (4, 4)}
    assert [text_of(rank) for rank in ((1, 1), (2, 3), None)] == ["1", "2-3", ""]


@pytest.mark.parametrize("others", [0, 1, 8])
def test_a_pair_is_told_apart_as_by_a_paired_t_test_with_holms_adjustment(others: int) -> None:
    """Of k equal methods beside a better one, all k pairs with it have p, and the others differ by chance alone."""
    rng = np.random.default_rng(1)
    base = rng.normal(0.7, 0.02, 4)
    means = {"z": base + 0.01 + rng.normal(0, 0.0015, 4)}
    means |= {f"m{number}": base + rng.normal(0, 0.0001, 4) for number in range(1 + others)}
    section = Section(tuple(_pool(label, *map(float, own), noise=0.0) for label, own in means.items()))
    names = [*means]
    tests = sorted((float(ttest_rel(means[a], means[b]).pvalue), "z" in (a, b)) for a, b in combinations(names, 2))
    rejected = 0
    for number, (p, with_z) in enumerate(tests):
        if p * (len(tests) - number) >= 0.05:
            break
        rejected += with_z
    worst = ranks(section, "seen")["z"][1]
    assert worst == len(names) - rejected


def test_a_method_that_lacks_a_seed_has_no_rank() -> None:
    section = Section((_pool("a", 0.9, 0.901, noise=0.0), _pool("b", 0.5), _pool("c", 0.7, 0.702, noise=0.0)))
    assert ranks(section, "seen") == {"a": (1, 1), "c": (2, 2)}


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
