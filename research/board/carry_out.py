"""Carry out a board: tune every method of a recipe alike, then run each with several seeds on the same clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from florilegium.apps.engines.base import Means
from florilegium.apps.reports.pools import Pool, Section
from florilegium.apps.reports.run_records import load_run
from florilegium.apps.sweeps.named_runs import Completion, NamedRun, check_seeds, comparison, folder_of
from florilegium.apps.sweeps.named_runs import carry_out as carry_out_runs
from florilegium.apps.tuning.results import Tuning, read_tuned
from florilegium.apps.tuning.trials import tune
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.research.board.published import published

TABLE = "board"
"""Name of the recipe's tuning table that lists the methods of its board."""


@dataclass(frozen=True)
class Board:
    """A board that has been carried out.

    Attributes:
        recipe: the recipe.
        seeds: the seeds of its runs.
        overrides: keys that applied to all trials and runs.
        tuning: how the methods were tuned.
        section: the runs that completed, a pool for each method.
        failed: why a method, or a run of it, has no figures; by method, or method and seed.
    """

    recipe: str
    seeds: Sequence[int]
    overrides: Mapping[str, Value]
    tuning: Tuning
    section: Section
    failed: Mapping[str, str]


def carry_out(
    recipe: str,
    seeds: Sequence[int],
    overrides: Mapping[str, Value],
    means: Means,
) -> Board:
    """Carry out a board, or the rest of it. A method that fails does not end it.

    Args:
        recipe: a recipe with a table ``[tune.board]``.
        seeds: the seeds of each method's runs; the trials have those of the tuning table, or the recipe's.
        overrides: keys that apply to all trials and runs.
        means: how to carry them out.

    Raises:
        ConfigurationError: before the first run, if the recipe or a configuration is wrong.
        RunError: if no run has completed.
        KeyboardInterrupt: if it was stopped; the same command goes on.
    """
    check_seeds(seeds, overrides)
    published(recipe)  # what is wrong in it is said before the trials
    tuning = tune(recipe, TABLE, overrides, means)
    failed = {result.subject.name: result.failure for result in tuning.results if result.best is None}
    names = [result.subject.name for result in tuning.results if result.best is not None]
    chosen = read_tuned(recipe, TABLE, str(overrides["runs-dir"]))
    named = {name: comparison([name], seeds, recipe, [], overrides, chosen) for name in names}
    wanted = [one for own in named.values() for one in own]
    if not wanted:
        raise RunError(f"no trial of any method completed; {tuning.plan.folder / 'report.md'} says why")
    runs_dir = folder_of(wanted)
    outcome = carry_out_runs(wanted, runs_dir, means)
    if not outcome.completed:
        raise RunError(str(outcome))
    pools = [_pool(name, own, runs_dir, outcome) for name, own in named.items()]
    section = Section(tuple(pool for pool in pools if pool.runs))
    return Board(recipe, seeds, overrides, tuning, section, failed | _failures(named, outcome))


def _pool(name: str, named: Sequence[NamedRun], runs_dir: Path, outcome: Completion) -> Pool:
    done = {path.name for path in outcome.completed}
    return Pool(name, tuple(load_run(runs_dir / one.name) for one in named if one.name in done))


def _failures(named: Mapping[str, Sequence[NamedRun]], outcome: Completion) -> dict[str, str]:
    return {
        f"{name}, seed {one.keys['seed']}": outcome.failed[one.name]
        for name, own in named.items()
        for one in own
        if one.name in outcome.failed
    }
