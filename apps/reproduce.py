"""Carry a run out again and compare the two, figure by figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

from florilegium.apps.engines import engine
from florilegium.apps.experiment import run_experiment
from florilegium.apps.progress import Display
from florilegium.apps.provenance import differences
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.strategies.core.attempts import read_provenance
from florilegium.strategies.core.metrics_file import read_evaluations
from florilegium.strategies.core.run_folder import (
    ORIGINS,
    changed_origins,
    has_results,
    read_checkpoint,
    read_config,
)

ROUNDING = 1e-6
"""Largest relative difference of two figures that counts as float rounding."""
BYTES = ("bytes_down", "bytes_up")


@dataclass(frozen=True)
class Comparison:
    """What two runs of one configuration have in common.

    Attributes:
        figures: number of figures that both have.
        differing: figures that differ beyond rounding, or that one run lacks, in words.
        largest: the largest relative difference of the others; 0: they are identical.
        reasons: why they may differ, in words.
        notes: what is to be known of the comparison in any case, in words.
    """

    figures: int
    differing: list[str]
    largest: float
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether nothing differs beyond rounding."""
        return not self.differing

    def __str__(self) -> str:
        """Return the result in words: each figure that differs, possible reasons, and notes."""
        if not self.same:
            lines = [f"{len(self.differing)} figures differ, {self.figures} were compared:"]
            lines += [f"  {line}" for line in self.differing]
            lines += [f"possible reason: {reason}" for reason in self.reasons]
        elif self.largest:
            lines = [f"equal up to rounding: {self.figures} figures, largest relative difference {self.largest:.1e}"]
        else:
            lines = [f"identical: {self.figures} figures"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def reproduce(run: Path, display: Display, *, fork: bool = False) -> tuple[Path, Comparison]:
    """Carry out the run in folder ``run`` again, beside it; compare both.

    Its configuration, engine and number of workers are used. The name is that of the run with "-again".

    Args:
        run: the folder of a completed run.
        display: shows the progress.
        fork: whether worker processes may be forked from this process.

    Returns:
        The folder of the new run, and the comparison.

    Raises:
        ConfigurationError: if the run's clients were real devices, or its configuration is wrong today.
        RunError: if the run has not completed, or fails this time.
    """
    if not (run / "summary.json").exists():
        raise RunError(f"run '{run.name}' has not completed; go on with it: resume = '{run.name}'")
    name, workers = _engine_of(run)
    ended = int(_summary(run)["rounds"])
    config = read_config(run)
    again: dict[str, Value] = {
        **config, "resume": "", "run-name": _free_name(run), "runs-dir": str(run.resolve().parent),
    }  # fmt: skip

    def as_far(server_round: int, figures: Mapping[str, Any]) -> bool:
        return server_round >= ended

    shorter = ended < int(config["rounds"])  # its user ended it, or it ended itself and will do so again
    with engine(name, workers, [again], as_far if shorter else None, fork=fork) as chosen:
        path = run_experiment(chosen, again, display)
    return path, compare_runs(run, path)


def compare_runs(first: Path, again: Path) -> Comparison:
    """Compare all figures of two finished runs: every evaluation's, the final ones, and bytes.

    Raises:
        RunError: if a file of theirs is damaged.
    """
    before, after = dict(_figures(first)), dict(_figures(again))
    differing, largest = [], 0.0
    for what in {**before, **after}:
        if what not in before or what not in after:
            differing.append(f"{what}: only in {(first if what in before else again).name}")
            continue
        gap = _relative(before[what], after[what])
        if gap > ROUNDING:
            differing.append(f"{what}: {before[what]:.10g}, now {after[what]:.10g}")
        else:
            largest = max(largest, gap)
    common = len(before.keys() & after.keys())
    return Comparison(common, differing, largest, _reasons(first, again) if differing else [], _notes(first))


def _figures(run: Path) -> Iterator[tuple[str, float]]:
    """Yield the figures of a run, each with its name in words."""
    for line in read_evaluations(run):
        yield from _of(f"round {line['round']}", line)
    summary = _summary(run)
    yield "rounds", float(summary["rounds"])
    yield from _of("final", {**summary["final"], **{name: summary[name] for name in BYTES}})


def _of(where: str, entry: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in entry.items():
        if name in BYTES:
            yield f"{where}, {name.replace('_', ' ')}", float(value)
        elif isinstance(value, Mapping) and name != "training":
            yield from ((f"{where}, {name}, {figure}", float(number)) for figure, number in value.items())


def _relative(one: float, other: float) -> float:
    """Return |a − b| ÷ the larger of |a| and |b|; 0 for equal numbers, and for two that are NaN."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    gap = abs(one - other) / max(abs(one), abs(other))
    return gap if math.isfinite(gap) else math.inf


def _reasons(first: Path, again: Path) -> list[str]:
    """Return why two runs of one configuration may differ."""
    origins = json.loads((again / ORIGINS).read_text(encoding="utf-8"))
    changed = [f"{what}: it has changed since" for what in changed_origins(first, origins)]
    resumed = len(read_provenance(first)) - 1
    parts = [f"{first.name} was resumed {resumed} times, perhaps with other keys of evaluation"] if resumed > 0 else []
    return [*changed, *parts, *(differences(first, again) if read_provenance(first) else [])]


def _notes(first: Path) -> list[str]:
    """Return what limits how well a run can be repeated."""
    unit, notes = read_config(first).get("privacy.unit", "none"), []
    if unit != "none":
        notes.append(f"privacy.unit = '{unit}': noise comes from no seed, so the run cannot be repeated exactly")
    if not read_provenance(first):
        notes.append(
            f"{first.name} was carried out by an earlier version: its engine, machine and versions are unknown, and "
            "the number of workers is taken to be that of its nodes"
        )
    return notes


def _engine_of(run: Path) -> tuple[Literal["process", "ray"], int]:
    """Return the engine and number of workers to carry a run out again.

    Raises:
        ConfigurationError: if its clients were real devices.
    """
    parts = read_provenance(run)
    deployed = parts[-1]["engine"] == "devices" if parts else bool(read_checkpoint(run).facts.get("deployed"))
    if deployed:
        raise ConfigurationError(
            f"run '{run.name}' was carried out on real devices, whose data and presence this command cannot repeat"
        )
    workers = int(parts[-1]["workers"] if parts else _summary(run)["nodes"])
    return ("ray" if parts and parts[-1]["engine"] in ("ray", "flower") else "process"), workers


def _summary(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "summary.json").read_text(encoding="utf-8")))


def _free_name(run: Path) -> str:
    """Return "<run>-again", or with a number if there is such a run."""
    names = (f"{run.name}-again" + (f"-{number}" if number > 1 else "") for number in count(1))
    return next(name for name in names if not has_results(run.parent / name))
