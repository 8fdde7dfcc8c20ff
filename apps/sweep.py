"""A recipe's sweep: one run for each variant × value of a key × seed, reported in one table and one picture.

    [sweeps.figure-3a]
    variants = ["", "fedavg", "local"]      # "" is the recipe itself
    over = "num-clients"                    # optional: without it, only variants are compared
    values = [20, 50, 100]
    seeds = [1, 2, 3]                       # default: the recipe's seed
    clients = "unseen"                      # group to report, default "seen"; "target": figures after a transfer
    figure = "validation_accuracy"          # figure to report, default "accuracy", or "loss" in regression

Runs are named after their settings, so that an interrupted sweep continues where it stopped.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from florilegium.apps.experiment import pick, read_layers, read_recipe, recipe_name
from florilegium.apps.methods import METHODS, table_of
from florilegium.apps.origins import origins_of
from florilegium.apps.report import load_run
from florilegium.apps.settings import Settings, complete, defaults, parse
from florilegium.apps.studies.transfer import check_target, transfer_once
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.files import write_atomically, write_text
from florilegium.common.settings import Section, Value
from florilegium.strategies.core.run_folder import ORIGINS, changed_origins, differing_settings, read_config


class Sweep(BaseModel):
    """A table ``[sweeps.<name>]`` of a recipe."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    variants: list[str] = Field(default=[""], min_length=1)
    over: str = ""
    values: list[bool | int | float | str] = []
    seeds: list[int] = []
    clients: Literal["seen", "unlabeled", "unseen", "target"] = "seen"
    figure: Literal["", "accuracy", "loss", "validation_accuracy", "validation_loss"] = ""

    @model_validator(mode="after")
    def _is_whole(self) -> Sweep:
        if bool(self.over) != bool(self.values):
            raise ValueError("over and values go together")
        if self.over in ("seed", "resume", "run-name"):
            raise ValueError(f"over: a sweep cannot go over '{self.over}'; for several seeds there is seeds")
        return self


def _check(name: str, sweep: Sweep, settings: Settings, hyper: Section) -> None:
    """Raise :class:`ConfigurationError` if a run of the sweep would not produce the figure that the sweep reports."""
    lacking = {
        "unseen": "unseen-fraction" if not settings.unseen_fraction else "",
        "unlabeled": "labeled-fraction" if settings.labeled_fraction == 1 else "",
        "target": "transfer-target" if not settings.transfer_target else "",
    }.get(sweep.clients)
    if lacking:
        raise ConfigurationError(f"sweep '{name}': clients = '{sweep.clients}', but {lacking} makes none")
    if sweep.figure.startswith("validation") and not settings.validation_fraction:
        raise ConfigurationError(
            f"sweep '{name}': figure = '{sweep.figure}', but validation-fraction is 0: nothing is held back"
        )
    if "accuracy" in sweep.figure and METHODS[settings.method].task != "classification":
        raise ConfigurationError(
            f"sweep '{name}': figure = '{sweep.figure}', but method '{settings.method}' has no classes to predict; "
            "leave figure out, or set it to 'loss'"
        )
    if settings.transfer_target:
        check_target(settings, hyper)


_FIGURES = ("rounds", "init", "evaluate-clients", "min-success")
"""Keys that may change when a run is resumed, although they change its figures."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its variant and value (the place in the table), its name, and its keys."""

    variant: str
    value: Value | None
    name: str
    keys: Mapping[str, Value]


def read_sweep(recipe: str, name: str) -> Sweep:
    """Return the sweep ``name`` of a recipe.

    Raises:
        ConfigurationError: if there is no such sweep, or its table is invalid.
    """
    table = pick(name, read_layers(recipe).sweeps, f"recipe '{recipe}'", "sweep")
    try:
        return Sweep.model_validate(table)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, p['loc'])) or name}: {p['msg']}" for p in error.errors())
        raise ConfigurationError(f"recipe '{recipe}', sweep '{name}': {said}") from error


def cells(recipe: str, name: str, overrides: Mapping[str, Value]) -> list[Cell]:
    """Return every run of a sweep, checked; ``overrides`` apply to all runs, and a ``seed`` there replaces ``seeds``.

    A run is named after recipe, variant, value and seed, not after the sweep, so that sweeps can share runs.

    Raises:
        ConfigurationError: if the configuration of a run is wrong, or two runs are the same.
    """
    sweep, result = read_sweep(recipe, name), []
    for key in {sweep.over, "resume", "run-name"} & overrides.keys():
        raise ConfigurationError(f"--set {key}: a sweep sets it for each of its runs")
    values: list[Value | None] = [*sweep.values] or [None]
    for variant, value in product(sweep.variants, values):
        base = read_recipe(f"{recipe}:{variant}" if variant else recipe)
        own = {**base, **({sweep.over: value} if value is not None else {}), **overrides}
        seeds: list[Value] = [] if "seed" in overrides else [*sweep.seeds]
        for seed in seeds or [own.get("seed", defaults()["seed"])]:
            words = [recipe_name(recipe), variant, f"seed{seed}"]
            words[2:2] = [f"{sweep.over}-{value}"] if value is not None else []
            label = re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(word for word in words if word))
            keys: dict[str, Value] = {**own, "seed": seed, "run-name": label}
            _check(name, sweep, *parse(complete(keys)))
            result.append(Cell(variant, value, label, keys))
    names = [cell.name for cell in result]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigurationError(f"recipe '{recipe}', sweep '{name}' has the run {min(twice)} twice")
    return result


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
    differing += [f"{key}: was {before.get(key)!r}, is {now[key]!r}" for key in _FIGURES if before.get(key) != now[key]]
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
                transfer_once(path)
                return path
            keys = dict(cell.keys)
            if any(path.glob("checkpoint/*.safetensors")):
                keys |= {"run-name": "", "resume": cell.name}
            elif path.exists():
                shutil.rmtree(path)  # it ended before its first checkpoint
            return run(keys)
    except Timeout as error:
        raise RunError(f"another command is at work on {path}") from error


def write_sweep(title: str, sweep: Sweep, wanted: Sequence[Cell], paths: Sequence[Path], target: Path) -> str:
    """Write ``report.md`` and ``report.png`` about the runs of a sweep to folder ``target``; return the table.

    The table shows the final figures of the sweep's group of clients, accuracies in %: the mean over seeds and, with
    several seeds, the standard deviation (n − 1).
    """
    found: dict[tuple[str, Value | None], list[float]] = {}
    metric = ""
    for cell, path in zip(wanted, paths, strict=True):
        groups: dict[str, Any] = load_run(path).summary["final"]
        if sweep.clients not in groups:
            raise ConfigurationError(
                f"sweep: run {path} has no figures of clients = '{sweep.clients}', only of {', '.join(groups)}"
            )
        final = groups[sweep.clients]
        metric = sweep.figure or ("accuracy" if "accuracy" in final else "loss")
        if metric not in final:
            raise ConfigurationError(f"sweep: run {path} has no figure = '{metric}', only {', '.join(final)}")
        found.setdefault((cell.variant, cell.value), []).append((1 if "loss" in metric else 100) * final[metric])
    variants = list(dict.fromkeys(cell.variant for cell in wanted))
    values = list(dict.fromkeys(cell.value for cell in wanted))
    own = {cell.variant: str(cell.keys.get("method", defaults()["method"])) for cell in wanted}
    labels = [variant or own[variant] for variant in variants]
    digits = 3 if "loss" in metric else 1
    unit = metric.replace("_", " ") + ("" if "loss" in metric else " (%)")
    lines = [f"| {sweep.over} | " + " | ".join(labels) + " |", "|---" * (len(labels) + 1) + "|"]
    for value in values:
        shown = [_figure(found[variant, value], digits) for variant in variants]
        lines.append(f"| {unit if value is None else value} | " + " | ".join(shown) + " |")
    table = "\n".join(lines) + "\n"
    of = "" if sweep.clients == "target" else f" of {sweep.clients} clients"
    picture = _draw(found, variants, labels, values, sweep.over, f"mean {unit}{of}")
    write_atomically(target / "report.png", lambda temporary: picture.savefig(temporary, dpi=130, format="png"))
    runs = "\n".join(f"- `{path.name}`" for path in paths)
    write_text(
        target / "report.md",
        f"# {title}\n\nMean {unit}{of}.\n\n{table}\n![{title}](report.png)\n\nRuns:\n\n{runs}\n",
    )
    return table


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation (n − 1) over seeds; 0 for a single seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _figure(values: Sequence[float], digits: int) -> str:
    spread = f" ± {_spread(values):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def _draw(
    found: Mapping[tuple[str, Value | None], Sequence[float]],
    variants: Sequence[str],
    labels: Sequence[str],
    values: Sequence[Value | None],
    over: str,
    title: str,
) -> Figure:
    """Plot one line per variant over the values of the key; bars if only variants are compared."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3, axis="both" if over else "y")
    axes.set_ylabel(title)
    if not over:
        means = [float(np.mean(found[variant, None])) for variant in variants]
        axes.bar(labels, means, yerr=[_spread(found[variant, None]) for variant in variants], color="C0")
        axes.set_ylim(max(0, min(means) - 0.25 * (max(means) - min(means)) - 0.02 * max(means)))
        axes.tick_params(axis="x", rotation=35)
        return figure
    numeric = all(isinstance(value, int | float) for value in values)
    x = [float(value) for value in values] if numeric else list(range(len(values)))  # type: ignore[arg-type]
    for variant, label in zip(variants, labels, strict=True):
        runs = [found[variant, value] for value in values]
        means, spreads = [float(np.mean(r)) for r in runs], [_spread(r) for r in runs]
        axes.errorbar(
            x, means, yerr=spreads if any(spreads) else None, marker="o", markersize=4, capsize=2, label=label
        )
    if not numeric:
        axes.set_xticks(x, [str(value) for value in values])
    axes.set_xlabel(over)
    axes.legend(frameon=False)
    return figure
