"""Carry out runs from Python: one, several methods and seeds, or a recipe's sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from florilegium.apps.api.keywords import read_keywords
from florilegium.apps.api.runs import GROUPS, Run
from florilegium.apps.engine import OnEvaluation
from florilegium.apps.engines import EngineName
from florilegium.apps.engines import engine as choose
from florilegium.apps.experiment import resolve, run_experiment, short_name, warn_of_idle_keys
from florilegium.apps.progress import Display, silent, suitable
from florilegium.apps.settings import complete, defaults, parse
from florilegium.apps.tuning.chosen import read_tuned
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(
    recipe: str | Path | None = None,
    *,
    engine: EngineName = "auto",
    workers: int = 1,
    progress: bool = True,
    on_evaluation: OnEvaluation | None = None,
    **keys: Any,
) -> Run:
    """Carry out one run and return it.

    Args:
        recipe: a recipe's name such as "ppfe-cifar10-s2" or, with a variant, "ppfe-cifar10-s2:fedper"; or a TOML file.
        engine: "process": in this process and worker processes of its own; "ray": Flower's simulation on Ray; "auto":
            "process", unless ``RAY_ADDRESS`` names a cluster or several workers are to share several GPUs.
        workers: number of worker processes; with one, this process trains one client after the other.
        progress: whether to show a progress bar.
        on_evaluation: called after every evaluation with the round and the figures of each group of clients, such as
            ``{"seen": {"accuracy": 0.91, …}}``. If it returns true, the run ends with this evaluation (with "ray", with
            the next one).
        keys: configuration keys, ``_`` for ``-``; tables as dicts: ``fedprox={"mu": 0.1}``. ``resume="RUN"`` goes on
            with a run.

    Returns:
        The run. After Ctrl-C a KeyboardInterrupt says how to go on; the run then ended after a whole round.

    Raises:
        ConfigurationError: before the run starts, if its configuration is wrong.
        RunError: if the run failed.
    """
    named = read_keywords(keys)
    overrides = resolve(recipe, [], named)
    warn_of_idle_keys(named, [overrides])
    with choose(engine, workers, [overrides], on_evaluation) as chosen:
        return Run(run_experiment(chosen, overrides, _display(progress)))


class Comparison:
    """Several methods on one federation, with one or more seeds.

    Args:
        runs: each method's runs, one for each seed.
    """

    def __init__(self, runs: Mapping[str, Sequence[Run]]) -> None:
        self.runs = {method: list(own) for method, own in runs.items()}

    def __repr__(self) -> str:
        return f"<florilegium comparison of {', '.join(self.runs)}: {sum(map(len, self.runs.values()))} runs>"

    @property
    def table(self) -> pd.DataFrame:
        """Final figures: a row per method and group of clients, with mean and standard deviation (n − 1) over seeds."""
        rows = []
        for method, runs in self.runs.items():
            for group in GROUPS:
                finals = [run.summary["final"][group] for run in runs if group in run.summary.get("final", {})]
                if finals:
                    rows.append({"method": method, "clients": group, "seeds": len(finals), **_pooled(finals)})
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Return a figure of all runs: accuracy over rounds, over bytes, and a histogram of the clients' accuracies.

        Each method has a colour; its seeds are a line each in the first two panels and pooled in the histogram.
        """
        from florilegium.apps.report import plot_runs, read_run

        return plot_runs([read_run(run.path) for runs in self.runs.values() for run in runs])

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False, float_format="{:.4f}".format))


def _pooled(finals: Sequence[Mapping[str, float]]) -> dict[str, float]:
    shown: dict[str, float] = {}
    for name in ("accuracy", "accuracy_global", "loss"):
        values = [figures[name] for figures in finals if name in figures]
        if values:
            shown[name] = float(np.mean(values))
            if len(values) > 1:
                shown[f"{name}_sd"] = float(np.std(values, ddof=1))
    return shown


def compare(
    methods: Sequence[Any],
    recipe: str | Path | None = None,
    *,
    seeds: Sequence[int] = (),
    tuned: str = "",
    engine: EngineName = "auto",
    workers: int = 1,
    progress: bool = True,
    **keys: Any,
) -> Comparison:
    """Run several methods on the same clients, with the same cohorts and initial model, and compare them.

    Args:
        methods: names of methods, or your own (:func:`run`).
        recipe, engine, workers, progress, keys: as for :func:`run`.
        seeds: seeds to run every method with; default: the seed of the configuration.
        tuned: a table ``[tune.<name>]`` of the recipe, or a file ``tuned.toml``: each method gets the values that
            :func:`tune` has chosen for it.

    Raises:
        ConfigurationError: before the first run, if the configuration of one is wrong.
        RunError: if a run failed.
    """
    if isinstance(methods, str) or not methods:
        raise ConfigurationError("compare: give a list of methods, such as ['fedavg', 'local']")
    if not isinstance(seeds, Iterable) or not all(isinstance(seed, int | np.integer) for seed in seeds):
        raise ConfigurationError(f"seeds: give a list of whole numbers, such as [1, 2, 3] (found: {seeds!r:.60})")
    for key in {"run_name", "resume"} & keys.keys():
        raise ConfigurationError(f"{key}: compare makes several runs; leave it out")
    best = read_tuned(recipe, tuned, str(keys.get("runs_dir", defaults()["runs-dir"]))) if tuned else None
    cells: list[tuple[str, dict[str, Value]]] = []
    for method in methods:
        for chosen_seed in [{"seed": int(seed)} for seed in seeds] or [{}]:
            own = {**keys, "method": method, **chosen_seed}
            given = read_keywords(own)
            overrides = best.runs([str(given["method"])], [], given)[0] if best else resolve(recipe, [], given)
            parse(complete(overrides))
            cells.append((str(overrides["method"]), overrides))
    warn_of_idle_keys(given, [overrides for _, overrides in cells])
    named = list(dict.fromkeys(name for name, _ in cells))
    if len(named) < len(methods) or len({*seeds}) < len(seeds):
        raise ConfigurationError("compare: a method or seed is given twice")
    brief = [short_name(name) for name in named]
    labels = {name: short if brief.count(short) == 1 else name for name, short in zip(named, brief, strict=True)}
    runs: dict[str, list[Run]] = {}
    with choose(engine, workers, [overrides for _, overrides in cells]) as chosen:
        for name, overrides in cells:
            runs.setdefault(labels[name], []).append(Run(run_experiment(chosen, overrides, _display(progress))))
    return Comparison(runs)


class Sweep:
    """The runs of a recipe's sweep.

    Attributes:
        table: a row per variant, value of the swept key and seed, with the run's name and final figures.
        runs: the runs, in the order of the table.
        report: the report in Markdown: the sweep's table.
        path: folder of the report and its picture.
    """

    def __init__(self, table: pd.DataFrame, runs: Sequence[Run], report: str, path: Path) -> None:
        self.table, self.runs, self.report, self.path = table, list(runs), report, path

    def __repr__(self) -> str:
        return f"<florilegium sweep {self.path.name}: {len(self.runs)} runs>"

    def _repr_markdown_(self) -> str:
        return self.report


def sweep(
    recipe: str, name: str, *, engine: EngineName = "auto", workers: int = 1, progress: bool = True, **keys: Any
) -> Sweep:
    """Carry out a recipe's sweep, a table or figure of a paper; finished runs are reused.

    Args:
        recipe: a recipe's name, or a TOML file.
        name: one of its sweeps.
        engine, workers, progress, keys: as for :func:`run`; the keys apply to all runs.

    Raises:
        ConfigurationError: before the first run, if the configuration of one is wrong.
        RunError: if a run failed; finished runs are kept.
    """
    from florilegium.apps.experiment import recipe_name
    from florilegium.apps.sweep import cells, read_sweep, run_cells, unfinished, write_sweep

    overrides = resolve(None, [], read_keywords(keys))
    wanted = cells(recipe, name, overrides)
    warn_of_idle_keys(overrides, [dict(cell.keys) for cell in wanted])
    folder = Path(str(complete(overrides)["runs-dir"])).expanduser()
    with choose(engine, workers, unfinished(wanted, folder)) as chosen:
        paths = run_cells(wanted, folder, lambda own: run_experiment(chosen, own, _display(progress)))
    target = folder / f"{recipe_name(recipe)}-{name}"
    report = write_sweep(f"{recipe_name(recipe)}: {name}", read_sweep(recipe, name), wanted, paths, target)
    runs = [Run(path) for path in paths]
    rows = [
        {"variant": cell.variant, "value": cell.value, "seed": cell.keys["seed"], "run": one.name, "clients": group}
        | {figure: number for figure, number in figures.items() if figure in ("accuracy", "loss")}
        for cell, one in zip(wanted, runs, strict=True)
        for group, figures in one.summary["final"].items()
    ]
    return Sweep(pd.DataFrame(rows), runs, report, target)


def _display(progress: bool) -> Display:
    return suitable() if progress else silent
