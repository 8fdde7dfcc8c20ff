"""Carry out runs from Python: one, several methods and seeds, or a recipe's sweep."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from florilegium.apps.api.keywords import read_keywords
from florilegium.apps.api.runs import Run
from florilegium.apps.engines.base import Means, OnEvaluation
from florilegium.apps.engines.progress import silent, suitable
from florilegium.apps.reports.pairs import pairs
from florilegium.apps.reports.pools import sections
from florilegium.apps.reports.run_records import load_run
from florilegium.apps.runs.experiment import carry_out_run, offered, resolve
from florilegium.apps.settings.idle import warn_of_idle_keys
from florilegium.apps.sweeps.named_runs import compare as carry_out_comparison
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.strategies.folder.main_figure import read_main

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("flwr")


def run(
    recipe: str | Path | None = None,
    *,
    engine: str = "auto",
    workers: int = 1,
    progress: bool = True,
    on_evaluation: OnEvaluation | None = None,
    **keys: Any,
) -> Run:
    """Run one experiment and return the run.

    Args:
        recipe: a recipe's name, or a TOML file. A variant follows a colon: "ppfe-cifar10-s2:fedper".
        engine: process: local worker processes; ray: Flower's simulation; auto: ray for a cluster or several GPUs. A
            cluster is what ``RAY_ADDRESS`` names. Engines of other packages are named as there.
        workers: worker processes, one CPU each. With one, "process" trains one client after the other in this process.
        progress: whether to show a progress bar.
        on_evaluation: called after every evaluation with the round and the figures of each group of clients, such as
            ``{"seen": {"accuracy": 0.91, …}}``. If it returns true, the run ends with this evaluation (with "ray", with
            the next one).
        keys: configuration keys, ``_`` for ``-``; tables as dicts: ``fedprox={"mu": 0.1}``. ``resume="RUN"`` continues
            a run.

    Returns:
        The run. After Ctrl-C a KeyboardInterrupt says how to resume; the run then ended after a whole round.

    Raises:
        ConfigurationError: before the run starts, if its configuration is wrong.
        RunError: if the run failed.
    """
    named = read_keywords(keys)
    overrides = resolve(recipe, [], named)
    warn_of_idle_keys(named, [overrides], offered(recipe))
    return Run(carry_out_run(overrides, _means(engine, workers, progress), on_evaluation))


def describe(**keys: Any) -> dict[str, Any]:
    """Describe the clients' tables before anything is trained; return the description.

    Args:
        keys: configuration keys, as of :func:`run`: ``dataset``, ``partitioner``, ``describe={"min_count": 10}``, ….

    Returns:
        What ``description.json`` in the run's folder has: "columns", "by_client", "correlations", and "problems", the
        worst first (docs/methods/describe.md).

    Raises:
        ConfigurationError, RunError: as :func:`run`.
    """
    found: dict[str, Any] = run(progress=False, **{"method": "describe", "rounds": 1, **keys}).summary["description"]
    return found


class Comparison:
    """Several methods on one federation, with one or more seeds.

    Args:
        paths: the folders of the runs.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        found = sections([load_run(path) for path in paths])
        if len(found) > 1:
            raise RunError(
                "compare: the runs are not of the same clients and data: " + "; ".join(one.title() for one in found)
            )
        self._section = found[0]
        self.runs = {pool.label: [Run(run.path) for run in pool.runs] for pool in self._section.pools}

    def __repr__(self) -> str:
        return f"<florilegium comparison of {', '.join(self.runs)}: {sum(map(len, self.runs.values()))} runs>"

    @property
    def table(self) -> pd.DataFrame:
        """Final figures: a row per method and group of clients, with mean and standard error ("…_se") over seeds."""
        rows = []
        for pool in self._section.pools:
            for group in pool.groups():
                row: dict[str, Any] = {"method": pool.label, "clients": group, "seeds": len(pool.runs)}
                main = pool.main.name
                for name in (main, f"{main}_global", "loss"):
                    if (figure := pool.figure(group, name)) is not None:
                        row[name] = figure.mean
                        row |= {f"{name}_se": figure.error} if figure.n > 1 else {}
                rows.append(row)
        return pd.DataFrame(rows)

    @property
    def pairs(self) -> pd.DataFrame:
        """Paired differences: a row per pair of methods and group of clients, with two 95 % confidence intervals.

        "difference" is second − first, the mean over common clients, then over common seeds. "clients_low" and
        "clients_high" bound it for other clients, "seeds_low" and "seeds_high" for other seeds; "p" is the p-value over
        seeds, adjusted by Holm's procedure (:mod:`florilegium.apps.reports.statistics`).
        """
        rows = []
        for pair in pairs(self._section):
            row: dict[str, Any] = {
                "first": pair.first,
                "second": pair.second,
                "clients": pair.group,
                "figure": pair.figure,
            }
            row |= {"difference": pair.difference.over_seeds.mean, "n": pair.difference.over_clients.n}
            for level, found in (("clients", pair.difference.over_clients), ("seeds", pair.difference.over_seeds)):
                row |= {f"{level}_low": found.mean - found.margin, f"{level}_high": found.mean + found.margin}
            rows.append({**row, "seeds": len(pair.seeds), "p": pair.p})
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Return a picture: the main figure over rounds, over bytes, and its distribution over the clients.

        Bands are the standard error over seeds; the distribution pools the clients of all seeds.
        """
        from florilegium.apps.reports.pictures import plot_pools

        return plot_pools(self._section.pools)

    def report(self, target: str | Path, *, html: bool = False) -> Path:
        """Write a report, as ``florilegium report`` does; return its folder.

        Args:
            target: folder for report.md and report.png.
            html: also write report.html: one file with all tables and pictures.
        """
        from florilegium.apps.reports.writing import write_report

        paths = [run.path for runs in self.runs.values() for run in runs]
        write_report(paths, Path(target), ", ".join(self.runs), html=html)
        return Path(target)

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False, float_format="{:.4f}".format))


def compare(
    methods: Sequence[Any],
    recipe: str | Path | None = None,
    *,
    seeds: Sequence[int] = (),
    tuned: str = "",
    engine: str = "auto",
    workers: int = 1,
    progress: bool = True,
    **keys: Any,
) -> Comparison:
    """Run several methods on the same clients, with the same cohorts and initial model, and compare them.

    Finished runs with the same settings, data, initial model and code of your own are reused; interrupted ones are
    resumed. Warnings in the log name reused runs that another version of florilegium's code made, and runs that failed;
    the others are compared.

    Args:
        methods: methods to run on the same clients with the same seeds. They are names, or your own (:func:`run`).
        recipe, engine, workers, progress, keys: as for :func:`run`.
        seeds: seeds to run every method with; default: the seed of the configuration.
        tuned: use values found by `tune RECIPE NAME`: NAME, or tuned.toml. Each method gets what :func:`tune` has
            chosen for it.

    Raises:
        ConfigurationError: before the first run, if the configuration of one is wrong.
        RunError: if all runs failed.
    """
    if isinstance(methods, str) or not methods:
        raise ConfigurationError("compare: give a list of methods, such as ['fedavg', 'local']")
    if not isinstance(seeds, Iterable) or not all(isinstance(seed, int | np.integer) for seed in seeds):
        raise ConfigurationError(f"seeds: give a list of whole numbers, such as [1, 2, 3] (found: {seeds!r:.60})")
    names = [str(read_keywords({"method": method})["method"]) for method in methods]
    numbers = [int(seed) for seed in seeds]
    means = _means(engine, workers, progress)
    _, outcome = carry_out_comparison(names, numbers, recipe, [], read_keywords(keys), means, tuned)
    if not outcome.completed:
        outcome.all()
    if outcome.failed:
        log.warning("%s", outcome)
    return Comparison(outcome.completed)


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
    recipe: str, name: str, *, engine: str = "auto", workers: int = 1, progress: bool = True, **keys: Any
) -> Sweep:
    """Run a recipe's sweep, which reproduces a table or figure of a paper; finished runs are reused.

    Args:
        recipe: a recipe's name, or a TOML file.
        name: one of the recipe's sweeps: a table or figure of a paper.
        engine, workers, progress, keys: as for :func:`run`; the keys apply to all runs.

    Raises:
        ConfigurationError: before the first run, if the configuration of one is wrong.
        RunError: after the last run, if one failed; finished runs are kept.
    """
    from florilegium.apps.sweeps.report import carry_out_sweep

    overrides = resolve(None, [], read_keywords(keys))
    done = carry_out_sweep(recipe, name, overrides, _means(engine, workers, progress))
    runs = [Run(path) for path in done.paths]
    rows = [
        {"variant": one.variant, "value": one.value, "seed": one.keys["seed"], "run": run.name, "clients": group}
        | {figure: number for figure, number in figures.items() if figure in (read_main(run.summary).name, "loss")}
        for one, run in zip(done.runs, runs, strict=True)
        for group, figures in run.summary["final"].items()
    ]
    return Sweep(pd.DataFrame(rows), runs, done.report.markdown(), done.folder)


def _means(engine: str, workers: int, progress: bool) -> Means:
    return Means(engine, workers, suitable() if progress else silent)
