"""What a board says of each method: accuracies, effort, and its rank among methods that can be told apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from florilegium.apps.reports.pairs import pairs
from florilegium.apps.reports.pools import Pool, Section
from florilegium.apps.reports.run_records import RunRecord
from florilegium.apps.reports.statistics import CONFIDENCE, Estimate, estimate
from florilegium.strategies.folder.attempts import read_provenance
from florilegium.strategies.folder.main_figure import MainFigure, read_main
from florilegium.strategies.folder.metrics_file import is_evaluated

TARGET = 0.9
"""Effort is counted until this share of a run's final accuracy is reached."""
LEVEL = 1 - CONFIDENCE
"""Adjusted p-value below which two methods are told apart."""


@dataclass(frozen=True)
class Entry:
    """One method on a board, for one group of clients; shares are fractions, means over clients, then over seeds.

    Attributes:
        label: the method's name on the board.
        rank: the best and the worst rank that it may have: methods that cannot be told apart share ranks. None if
            seeds that other methods have are missing.
        last: the main figure in the last evaluation.
        chosen: the main figure in the evaluation with the best one on held-back training examples of the seen clients;
            None if none are held back.
        best: the best main figure of all evaluations on the test examples, which no user could choose.
        worst: mean main figure of the worst tenth of the clients.
        megabytes, seconds: sent both ways for all clients, and spent in training rounds, until the main figure
            reached ``TARGET`` of its final value; means over seeds.
        memory: peak memory of all processes in MB, mean over seeds; NaN if unknown.
        main: which figure it is.
    """

    label: str
    rank: tuple[int, int] | None
    last: Estimate
    chosen: Estimate | None
    best: Estimate
    worst: Estimate | None
    megabytes: float
    seconds: float
    memory: float
    main: MainFigure

    @property
    def estimates(self) -> tuple[Estimate | None, ...]:
        """The figures in the order of tables: last, by validation, best, worst decile."""
        return self.last, self.chosen, self.best, self.worst


def entries(section: Section, group: str) -> list[Entry]:
    """Return the methods that have figures of a group of clients, the best first."""
    shown = [pool for pool in section.pools if pool.figure(group, pool.main.name)]
    ranked = ranks(Section(tuple(shown)), group)
    found = [_entry(pool, group, ranked.get(pool.label)) for pool in shown]
    sign = -1 if found and found[0].main.higher else 1
    return sorted(found, key=lambda entry: sign * entry.last.mean if math.isfinite(entry.last.mean) else math.inf)


def _entry(pool: Pool, group: str, rank: tuple[int, int] | None) -> Entry:
    name, best = pool.main.name, max if pool.main.higher else min
    last = pool.figure(group, name)
    assert last is not None
    curves = [lines for run in pool.runs if (lines := _evaluations(run, group))]
    chosen = [own for lines in curves if (own := _by_validation(lines, group, pool.main)) is not None]
    megabytes, seconds = np.mean([_effort(lines, group, pool.main) for lines in curves], axis=0)
    return Entry(
        pool.label, rank, last, estimate(chosen) if len(chosen) == len(curves) else None,
        estimate([best(line[group][name] for line in lines) for lines in curves]),
        pool.figure(group, "worst_decile"), megabytes, seconds, float(np.mean([_memory(run) for run in pool.runs])),
        pool.main,
    )  # fmt: skip


def _evaluations(run: RunRecord, group: str) -> list[Mapping[str, Any]]:
    """Return the lines of the evaluations in which some client of the group was measured."""
    return [line for line in run.metrics if is_evaluated(line) and read_main(run.summary).name in line.get(group, {})]


def _by_validation(lines: Sequence[Mapping[str, Any]], group: str, main: MainFigure) -> float | None:
    held = f"validation_{main.name}"
    known = [line for line in lines if math.isfinite(line.get("seen", {}).get(held, math.nan))]
    if not known:
        return None
    best = max if main.higher else min
    return float(best(known, key=lambda line: line["seen"][held])[group][main.name])


def _effort(lines: Sequence[Mapping[str, Any]], group: str, main: MainFigure) -> tuple[float, float]:
    """Return MB and seconds until the final main figure, to the share ``TARGET``, was reached for the first time."""
    final = lines[-1][group][main.name]
    values = [line[group][main.name] for line in lines]
    near = [value >= TARGET * final if main.higher else TARGET * value <= final for value in values]
    first = next((line for line, reached in zip(lines, near, strict=True) if reached), lines[-1])
    return (first["bytes_down"] + first["bytes_up"]) / 1e6, first["seconds"]


def _memory(run: RunRecord) -> float:
    """Return the peak memory in MB, of the parts of the run for which it is known."""
    known = [float(part["peak_memory_mb"]) for part in read_provenance(run.path) if "peak_memory_mb" in part]
    return max(known, default=math.nan)


def ranks(section: Section, group: str) -> dict[str, tuple[int, int]]:
    """Return the best and the worst rank that each method may have, of those that have all seeds.

    Two methods are told apart by the rule of all reports (:mod:`florilegium.apps.reports.pairs`): the paired t-test
    over seeds, its p-value adjusted for all pairs of these methods by Holm's procedure, is below 5 %. A method's best
    rank counts those that are better beyond doubt, its worst rank those that are not worse beyond doubt.
    """
    most = max((len(pool.seeds) for pool in section.pools), default=0)
    whole = Section(tuple(pool for pool in section.pools if len(pool.seeds) == most))
    better, worse = ({pool.label: 0 for pool in whole.pools} for _ in range(2))
    main = whole.pools[0].main if whole.pools else MainFigure()
    for pair in pairs(whole, main.name, group):
        if pair.p < LEVEL:
            ahead = (pair.difference.over_seeds.mean > 0) == main.higher
            first, second = (pair.first, pair.second) if ahead else (pair.second, pair.first)
            better[first] += 1
            worse[second] += 1
    return {label: (1 + better[label], len(better) - worse[label]) for label in better}


def text_of(rank: tuple[int, int] | None) -> str:
    """Return a rank in words: "3", or "1-4"; "" for none."""
    if rank is None:
        return ""
    return str(rank[0]) if rank[0] == rank[1] else f"{rank[0]}-{rank[1]}"
