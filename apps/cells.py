"""Several runs whose names follow from their settings: finished ones are reused, interrupted ones go on.

Sweeps name their runs after recipe, variant, value and seed; comparisons after method, dataset, seed, and a hash of
everything that decides the figures.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from florilegium.apps.app_folder import project
from florilegium.apps.experiment import resolve, short_name
from florilegium.apps.methods import METHODS, table_of
from florilegium.apps.origins import origins_of
from florilegium.apps.settings import complete, parse
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.run_folder import (
    FIGURES_ON_RESUME,
    ORIGINS,
    changed_origins,
    deciding,
    differing_settings,
    read_config,
)

if TYPE_CHECKING:
    from florilegium.apps.tuning.chosen import Chosen


@dataclass(frozen=True)
class Cell:
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


def comparison(
    methods: Sequence[str],
    seeds: Sequence[int],
    recipe: str | Path | None,
    assignments: Sequence[str],
    options: Mapping[str, Value],
    tuned: Chosen | None = None,
) -> list[Cell]:
    """Return the runs of several methods with several seeds, checked; everything but method and seed is the same.

    Args:
        methods: names of methods; [] for the configured one.
        seeds: seeds; [] for the configured one.
        recipe, assignments, options: as for :func:`florilegium.apps.experiment.resolve`.
        tuned: what a tuning has chosen for each method, if it is to be used.

    Raises:
        ConfigurationError: if a method or seed is given twice, a method does not exist, or a configuration is wrong.
    """
    for method in methods if tuned is None else ():
        if problem := METHODS.problem(method):
            raise ConfigurationError(problem)
    for what, given in (("method", methods), ("seed", seeds)):
        if len({*given}) < len(given):
            raise ConfigurationError(f"a {what} is given twice: {', '.join(map(str, given))}")
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
        found.append(Cell(_name(keys), keys))
    return [Cell(cell.name, {**cell.keys, "run-name": cell.name}) for cell in found]


def report_name(wanted: Sequence[Cell]) -> str:
    """Return the name of the folder for a report on several runs; other runs have another one."""
    methods = list(dict.fromkeys(short_name(str(complete(cell.keys)["method"])) for cell in wanted))
    short = hashlib.sha256("\n".join(cell.name for cell in wanted).encode()).hexdigest()[:8]
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


def run_cells(wanted: Sequence[Cell], runs_dir: Path, run: Callable[[Mapping[str, Value]], Path]) -> list[Path]:
    """Return the folder of each cell's run; finished runs are reused, unfinished ones resumed, others started.

    Args:
        wanted: the cells.
        runs_dir: folder of runs.
        run: carries out a run with the given keys and returns its folder.

    Raises:
        ConfigurationError: before the first run, if a run with a cell's name but other settings exists.
        RunError: if another command is carrying out the same cell, or a run failed; finished runs are kept.
    """
    for cell in wanted:
        _check_earlier(cell, runs_dir / cell.name)
    runs_dir.mkdir(parents=True, exist_ok=True)
    return [_finished(cell, runs_dir / cell.name, run) for cell in wanted]


def unfinished(wanted: Sequence[Cell], runs_dir: Path) -> list[Mapping[str, Value]]:
    """Return the keys of the cells whose runs have not completed.

    Raises:
        ConfigurationError: if a run with a cell's name but other settings exists.
    """
    for cell in wanted:
        _check_earlier(cell, runs_dir / cell.name)
    return [cell.keys for cell in wanted if not (runs_dir / cell.name / "summary.json").exists()]


def _check_earlier(cell: Cell, path: Path) -> None:
    """Raise :class:`ConfigurationError` if ``path`` holds a run with other settings, data or code than the cell."""
    if not (path / "config.toml").exists():
        return
    # Runs from earlier versions lack newer keys; they behaved as the defaults of those keys.
    before, now = complete(read_config(path)), complete(cell.keys)
    differing = differing_settings(before, now, table_of(str(now["method"])))
    differing += [
        f"{key}: was {before.get(key)!r}, is {now[key]!r}" for key in FIGURES_ON_RESUME if before.get(key) != now[key]
    ]
    if differing:
        raise ConfigurationError(
            f"there is already a run {path} with other settings. {'; '.join(differing)}. Choose another --runs-dir, or "
            "delete it."
        )
    if (path / ORIGINS).exists() and (changed := changed_origins(path, origins_of(now, parse(now)[0]))):
        raise ConfigurationError(
            f"there is already a run {path}, which was made from another {' and another '.join(changed)}. Choose "
            "another --runs-dir, or delete it."
        )


def _finished(cell: Cell, path: Path, run: Callable[[Mapping[str, Value]], Path]) -> Path:
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=0):
            if (path / "summary.json").exists():
                _transfer(path)
                return path
            keys = dict(cell.keys)
            if any(path.glob("checkpoint/*.safetensors")):
                keys |= {"run-name": "", "resume": cell.name}
            elif path.exists():
                shutil.rmtree(path)  # it ended before its first checkpoint
            return run(keys)
    except Timeout as error:
        raise RunError(f"another command is at work on {path}") from error


def _transfer(path: Path) -> None:
    """Carry out the transfer to another dataset that a finished run ends with, unless that is done."""
    if read_config(path).get("transfer-target"):
        from florilegium.apps.studies.transfer import transfer_once  # imports torch, which takes seconds

        transfer_once(path)
