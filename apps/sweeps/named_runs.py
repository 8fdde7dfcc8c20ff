"""Several runs whose names follow from their settings: finished ones are reused, interrupted ones go on.

Sweeps name their runs after recipe, variant, value and seed; comparisons after method, dataset, seed, and a hash of
everything that decides the figures.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from filelock import FileLock, Timeout

from florilegium.apps.engines.base import Means
from florilegium.apps.engines.progress import numbered
from florilegium.apps.engines.registry import engine as choose
from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.origins.hashes import origins_of
from florilegium.apps.origins.package import project
from florilegium.apps.origins.provenance import by_other_code
from florilegium.apps.runs.experiment import (
    offered,
    read_assignments,
    resolve,
    run_experiment,
    short_name,
)
from florilegium.apps.settings.configuration import complete, defaults, parse
from florilegium.apps.settings.idle import warn_of_idle_keys
from florilegium.apps.tuning.results import Chosen, read_tuned
from florilegium.common.errors import ConfigurationError, FileError, RunError
from florilegium.common.settings import Value, folder
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.folder.claim import is_carried_out
from florilegium.strategies.folder.results import SUMMARY
from florilegium.strategies.folder.run_folder import (
    FIGURES_ON_RESUME,
    ORIGINS,
    changed_origins,
    deciding,
    differing_settings,
    has_checkpoint,
    read_config,
)

log = logging.getLogger("flwr")

LOCKS = ".locks"
"""Folder beside the runs with a lock for each run: its own folder may be deleted while it is locked."""


@dataclass(frozen=True)
class NamedRun:
    """One of several runs.

    Attributes:
        variant, value: its place in a sweep's table.
        name: the run's name.
        keys: its configuration, where it differs from the defaults.
    """

    name: str
    keys: Mapping[str, Value]
    variant: str = ""
    value: Value | None = None


@dataclass(frozen=True)
class Completion:
    """What became of several runs.

    Attributes:
        completed: the folders of the runs that have completed, in the order in which they were asked for.
        failed: why the others failed, by name.
    """

    completed: list[Path]
    failed: dict[str, str]

    def __str__(self) -> str:
        """Return in words which runs failed, and why, a line each."""
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in self.failed.items())
        return f"{len(self.failed)} of {len(self.failed) + len(self.completed)} runs failed:{reasons}"

    def all(self) -> list[Path]:
        """Return the folders of all runs.

        Raises:
            RunError: if a run failed.
        """
        if self.failed:
            raise RunError(str(self))
        return self.completed


def compare(
    methods: Sequence[str],
    seeds: Sequence[int],
    recipe: str | Path | None,
    assignments: Sequence[str],
    options: Mapping[str, Value],
    means: Means,
    tuned: str = "",
) -> tuple[list[NamedRun], Completion]:
    """Carry out the runs of a comparison that have not completed yet; return all of them, and what became of them.

    Args:
        methods, seeds, recipe, assignments, options: as for :func:`comparison`.
        means: how to carry them out.
        tuned: a table ``[tune.<name>]`` of the recipe, or a file ``tuned.toml``; "": the recipe's own values.

    Raises:
        ConfigurationError, DataError: before the first run, if one cannot begin.
        FileError: if a file cannot be written; finished runs are kept.
    """
    named = {**read_assignments(assignments), **options}
    best = read_tuned(recipe, tuned, str(named.get("runs-dir", defaults()["runs-dir"]))) if tuned else None
    wanted = comparison(methods, seeds, recipe, assignments, options, best)
    warn_of_idle_keys(named, [one.keys for one in wanted], offered(recipe))
    return wanted, carry_out(wanted, folder_of(wanted), means)


def comparison(
    methods: Sequence[str],
    seeds: Sequence[int],
    recipe: str | Path | None,
    assignments: Sequence[str],
    options: Mapping[str, Value],
    tuned: Chosen | None = None,
) -> list[NamedRun]:
    """Return the runs of several methods with several seeds, checked; everything but method and seed is the same.

    Args:
        methods: names of methods; [] for the configured one.
        seeds: seeds; [] for the configured one.
        recipe, assignments, options: as for :func:`florilegium.apps.runs.experiment.resolve`.
        tuned: what a tuning has chosen for each method, if it is to be used.

    Raises:
        ConfigurationError: if a method or seed is given twice, a method does not exist, or a configuration is wrong.
    """
    check_seeds(seeds, {**read_assignments(assignments), **options})
    for method in methods if tuned is None else ():
        if problem := METHODS.problem(method):
            raise ConfigurationError(problem)
    if len({*methods}) < len(methods):
        raise ConfigurationError(f"a method is given twice: {', '.join(methods)}")
    found = []
    numbers: list[int | None] = [*seeds]
    for method, seed in product(methods or [""], numbers or [None]):
        own = {**options, **({} if seed is None else {"seed": seed})}
        if tuned is not None:
            keys = tuned.run(method, assignments, own)
        else:
            keys = resolve(recipe, assignments, {**own, **({"method": method} if method else {})})
        if named := [key for key in ("resume", "run-name") if keys.get(key)]:
            raise ConfigurationError(f"{named[0]}: several runs are named after their settings; leave it out")
        found.append(NamedRun(_name(keys), keys))
    return [NamedRun(one.name, {**one.keys, "run-name": one.name}) for one in found]


def check_seeds(seeds: Sequence[int], named: Collection[str]) -> None:
    """Raise :class:`ConfigurationError` if a seed is given twice, or ``named`` keys set another one."""
    if seeds and "seed" in named:
        raise ConfigurationError("seed: it is set although a list of seeds is given; leave one of the two out")
    if len({*seeds}) < len(seeds):
        raise ConfigurationError(f"a seed is given twice: {', '.join(map(str, seeds))}")


def folder_of(wanted: Sequence[NamedRun]) -> Path:
    """Return the folder of the runs of a comparison, which is the same for all."""
    return folder(str(complete(wanted[0].keys)["runs-dir"]))


def report_name(wanted: Sequence[NamedRun]) -> str:
    """Return the name of the folder for a report on several runs; other runs have another one."""
    methods = list(dict.fromkeys(short_name(str(complete(one.keys)["method"])) for one in wanted))
    short = hashlib.sha256("\n".join(one.name for one in wanted).encode()).hexdigest()[:8]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(["compare", *methods[:3], short]))


def _name(keys: Mapping[str, Value]) -> str:
    """Return the name of a run, with a hash of the settings, data and code that decide its figures."""
    config = complete(keys)
    settings, _ = parse(config)
    origins = origins_of(config, settings)
    decided = [deciding(config, table_of(settings.method)), origins, project()["version"]]
    if not all(origins.values()):
        decided.append(time.time_ns())  # code typed into a notebook that is not known any more: nothing is reused
    short = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:8]
    words = [short_name(settings.method), dataset_of(settings).name, short, f"seed{settings.seed}"]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(words))


def carry_out(
    wanted: Sequence[NamedRun],
    runs_dir: Path,
    means: Means,
) -> Completion:
    """Carry out those of several runs that have not completed yet; return the outcome of all (:func:`run_all`).

    Args:
        wanted: the runs.
        runs_dir: folder of runs.
        means: how to carry them out.

    Raises:
        ConfigurationError, DataError: before the first run, if one cannot begin.
        FileError: if a file cannot be written; finished runs are kept.
    """
    left = unfinished(wanted, runs_dir)
    shown = numbered(means.display, len(left))
    with choose(means.engine, means.workers, left, fork=means.fork) as chosen:
        return run_all(wanted, runs_dir, lambda keys: run_experiment(chosen, keys, shown))


def run_all(wanted: Sequence[NamedRun], runs_dir: Path, run: Callable[[Mapping[str, Value]], Path]) -> Completion:
    """Return the outcome of each run; finished runs are reused, unfinished ones resumed, others started.

    After a run that fails, the others go on. A warning names the reused runs that other code of this package made.

    Args:
        wanted: the runs.
        runs_dir: folder of runs.
        run: carries out a run with the given keys and returns its folder.

    Raises:
        ConfigurationError: before the first run, if a run with one of the names but other settings exists.
        FileError: if a file cannot be written; finished runs are kept.
    """
    for one in wanted:
        _check_earlier(one, runs_dir / one.name)
    reused = [one.name for one in wanted if (runs_dir / one.name / SUMMARY).exists()]
    if other := [name for name in reused if by_other_code(runs_dir / name)]:
        log.warning(
            "reused: %s, which were made by another version of florilegium's code; delete the runs that should be "
            "repeated with this one", ", ".join(other),
        )  # fmt: skip
    try:
        (runs_dir / LOCKS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"runs-dir: {runs_dir} cannot be made ({error.strerror}); name another folder") from error
    outcome = Completion([], {})
    for one in wanted:
        try:
            outcome.completed.append(_finished(one, runs_dir / one.name, run))
        except FileError:
            raise
        except RunError as error:
            outcome.failed[one.name] = str(error)
    return outcome


def unfinished(wanted: Sequence[NamedRun], runs_dir: Path) -> list[Mapping[str, Value]]:
    """Return the keys of the runs that have not completed.

    Raises:
        ConfigurationError: if a run with one of the names but other settings exists.
    """
    for one in wanted:
        _check_earlier(one, runs_dir / one.name)
    return [one.keys for one in wanted if not (runs_dir / one.name / SUMMARY).exists()]


def _check_earlier(one: NamedRun, path: Path) -> None:
    """Raise :class:`ConfigurationError` if ``path`` holds a run with other settings, data or code than wanted."""
    if not (path / "config.toml").exists():
        return
    # Runs from earlier versions lack newer keys; they behaved as the defaults of those keys.
    before, now = complete(read_config(path)), complete(one.keys)
    differing = differing_settings(before, now, table_of(str(now["method"])))
    if differing:
        raise ConfigurationError(
            f"there is already a run {path} with other settings. {'; '.join(differing)}. Choose another --runs-dir, or "
            "delete it."
        )
    if resumed := [key for key in FIGURES_ON_RESUME if before.get(key) != now[key]]:
        changes = "; ".join(f"{key}: was {before.get(key)!r}, is {now[key]!r}" for key in resumed)
        same = " ".join(f"--set {key}={before.get(key)}" for key in resumed)
        raise ConfigurationError(
            f"there is already a run {path} with other settings. {changes}. A run is named after the settings it began "
            f"with, and keeps the name when `resume` changes them. Ask for the same ({same}), choose another "
            "--runs-dir, or delete it."
        )
    if (path / ORIGINS).exists() and (changed := changed_origins(path, origins_of(now, parse(now)[0]))):
        raise ConfigurationError(
            f"there is already a run {path}, which was made from another {' and another '.join(changed)}. Choose "
            "another --runs-dir, or delete it."
        )


def _finished(one: NamedRun, path: Path, run: Callable[[Mapping[str, Value]], Path]) -> Path:
    try:
        with FileLock(path.parent / LOCKS / path.name, timeout=0):
            if (path / SUMMARY).exists():
                _transfer(path)
                return path
            keys = dict(one.keys)
            if has_checkpoint(path):
                keys |= {"run-name": "", "resume": one.name}
            elif path.exists():
                if is_carried_out(path):  # not by a sweep
                    raise RunError(f"another command is working on {path}")
                shutil.rmtree(path)  # it ended before its first checkpoint
            return run(keys)
    except Timeout as error:
        raise RunError(f"another command is working on {path}") from error


def _transfer(path: Path) -> None:
    """Carry out the transfer to another dataset that a finished run ends with, unless that is done."""
    if read_config(path).get("transfer-target"):
        from florilegium.apps.runs.transfer import transfer_once  # imports torch, which takes seconds

        transfer_once(path)
