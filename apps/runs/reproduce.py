"""Carry a run out again and compare the two, figure by figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

from florilegium.apps.engines.progress import Display
from florilegium.apps.engines.registry import engine
from florilegium.apps.origins.provenance import differences
from florilegium.apps.runs.experiment import run_experiment
from florilegium.apps.runs.run_list import resume_command
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.strategies.folder.attempts import read_provenance
from florilegium.strategies.folder.metrics_file import TRAINING, read_evaluations
from florilegium.strategies.folder.results import WORDS, read_clients, read_summary
from florilegium.strategies.folder.run_folder import (
    ORIGINS,
    changed_origins,
    has_results,
    read_checkpoint,
    read_config,
)

ROUNDING = 1e-6
"""Largest relative difference of two figures that counts as float rounding."""
SHOWN = 50
"""Largest number of differing figures that are listed."""
COUNTS = ("seed", "rounds", "clients", "nodes", "left out", "bytes down", "bytes up")
"""Numbers in ``summary.json`` that every run has, whatever it computes."""


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
            count = len(self.differing)
            lines = [f"{count} {'figure differs' if count == 1 else 'figures differ'}, {self.figures} were compared:"]
            lines += [f"  {line}" for line in self.differing[:SHOWN]]
            lines += [f"  and {count - SHOWN} more"] * (count > SHOWN)
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
    if not (summary := read_summary(run)):
        raise RunError(f"run '{run.name}' has not completed; resume it: {resume_command(run)}")
    name, workers = _engine_of(run)
    ended = int(summary["rounds"])
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
    """Compare all numbers of two finished runs but seconds: of evaluations, ``summary.json`` and ``clients.csv``.

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
    notes = _notes(first)
    if before.keys() <= {*COUNTS}:
        notes.append(f"{first.name} has no figures of an evaluation or of its method; only counts were compared")
    common = len(before.keys() & after.keys())
    return Comparison(common, differing, largest, _reasons(first, again) if differing else [], notes)


def _figures(run: Path) -> Iterator[tuple[str, float]]:
    """Yield the figures of a run, each with its name in words."""
    for line in read_evaluations(run):
        evaluated = {name: value for name, value in line.items() if name not in ("round", TRAINING)}
        yield from _numbers(evaluated, f"round {line['round']}, ")
    yield from _numbers(read_summary(run))
    for line in read_clients(run):
        for name, cell in line.items():
            if name not in WORDS and cell:
                yield f"client {line['client']} ({line['group']}), {name.replace('_', ' ')}", float(cell)


def _numbers(content: Mapping[str, Any] | Sequence[Any], where: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of JSON values but seconds, each with the names or places that lead to it."""
    for name, value in content.items() if isinstance(content, Mapping) else enumerate(content):
        here = f"{where}{name}".replace("_", " ")
        if isinstance(value, Mapping | list):
            yield from _numbers(value, f"{here}, ")
        elif isinstance(value, int | float) and not isinstance(value, bool) and "seconds" not in str(name):
            yield here, float(value)


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
    workers = int(parts[-1]["workers"] if parts else read_summary(run)["nodes"])
    return ("ray" if parts and parts[-1]["engine"] in ("ray", "flower") else "process"), workers


def _free_name(run: Path) -> str:
    """Return "<run>-again", or with a number if there is such a run."""
    names = (f"{run.name}-again" + (f"-{number}" if number > 1 else "") for number in count(1))
    return next(name for name in names if not has_results(run.parent / name))
