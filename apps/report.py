"""Reports on finished runs: Markdown tables and plots of accuracy over rounds, over bytes, and across clients."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from florilegium.apps.experiment import short_name
from florilegium.apps.figures import ShownFigure
from florilegium.apps.methods import METHODS
from florilegium.apps.settings import complete
from florilegium.common.errors import RunError
from florilegium.common.files import write_atomically, write_text
from florilegium.common.settings import Value
from florilegium.partitions.dealing import partitioner_table
from florilegium.partitions.settings import FederationSettings
from florilegium.strategies.core.metrics_file import read_metrics
from florilegium.strategies.core.run_folder import read_config

GROUPS = ("seen", "unlabeled", "unseen")
TARGET = "target"
"""Key of the final figures after a transfer to another dataset; it stands beside the groups of clients."""
COLUMNS = ("accuracy", "accuracy_global", "accuracy_weighted", "std", "worst_decile", "loss")
FEDERATION = {name.replace("_", "-") for name in FederationSettings.model_fields} - {
    "data-dir",
    "cache-dir",
    "own",
}
"""Common keys that determine the clients and their data."""


@dataclass(frozen=True)
class Run:
    """The results of a finished run.

    Attributes:
        label: its name in tables and legends.
        summary: ``summary.json``.
        metrics: the lines of ``metrics.jsonl``.
        clients: the lines of ``clients.csv``.
        federation: values of the keys ``FEDERATION`` and of the partitioner's own keys: runs with equal values have the
            same clients and data.
    """

    label: str
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    clients: list[dict[str, str]]
    federation: dict[str, Value]


def load_run(path: Path) -> Run:
    """Read the results of a finished run from its folder.

    Raises:
        RunError: if the run has not completed.
    """
    if not (path / "summary.json").exists():
        raise RunError(f"run {path} has not completed: it has no summary.json. Go on with it: resume = '{path.name}'.")
    return read_run(path)


def read_run(path: Path) -> Run:
    """Read the results so far of a run from its folder; without ``summary.json`` its summary has only the method."""
    config, file = read_config(path), path / "summary.json"
    summary = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"method": config["method"]}
    tuned = config["finetune-epochs"] and METHODS[summary["method"]].client_class().uses_finetuning == "option"
    label = short_name(summary["method"]) + ("+ft" if tuned else "")
    clients: list[dict[str, str]] = []
    if (path / "clients.csv").exists():
        with (path / "clients.csv").open(encoding="utf-8", newline="") as lines:
            clients = list(csv.DictReader(lines))
    config = complete(config)
    own = f"{partitioner_table(str(config['partitioner']))}."
    federation = {key: value for key, value in config.items() if key in FEDERATION or key.startswith(own)}
    return Run(label, summary, read_metrics(path), clients, federation)


def _with_unique_labels(runs: Sequence[Run], paths: Sequence[Path]) -> list[Run]:
    labels = [run.label for run in runs]
    return [
        replace(run, label=f"{run.label} ({path.name})") if labels.count(run.label) > 1 else run
        for run, path in zip(runs, paths, strict=True)
    ]


def markdown_table(runs: Sequence[Run]) -> str:
    """Return the final figures as a Markdown table, one line per run and group of clients; accuracies in %."""
    figures = [
        (run, group, run.summary["final"][group])
        for run in runs
        for group in (*GROUPS, TARGET)
        if group in run.summary["final"]
    ]
    columns = [name for name in COLUMNS if any(name in values for _, _, values in figures)]
    lines = [
        "| run | clients | rounds | "
        + " | ".join(name.replace("_", " ") for name in columns)
        + " | MB down | MB up | s/round |",
        "|---" * (len(columns) + 6) + "|",
    ]
    for run, group, values in figures:
        cells = [_cell(name, values.get(name)) for name in columns]
        summary = run.summary
        cells += [f"{summary[key] / 1e6:.1f}" for key in ("bytes_down", "bytes_up")] + [
            f"{summary['seconds_per_round']:.2f}"
        ]
        lines.append(f"| {run.label} | {group} | {summary['rounds']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if name == "loss" else f"{100 * value:.1f}"


def paired_table(runs: Sequence[Run]) -> str:
    """Return a Markdown table of each run's gain in accuracy over the first run, paired by client.

    The table shows the mean of the clients' differences and its standard error s/√n; differences are paired because
    clients vary far more than methods do. Runs with another federation or with fewer than two common clients are
    skipped; the result is "" if no run remains.
    """
    first, lines = runs[0], []
    for run in runs[1:]:
        if run.federation != first.federation:
            continue
        before, after = _accuracies(first), _accuracies(run)
        for group in GROUPS:
            pairs = [(before[key], after[key]) for key in before if key[0] == group and key in after]
            if len(pairs) < 2:
                continue
            gains = np.array([b - a for a, b in pairs]) * 100
            error = gains.std(ddof=1) / np.sqrt(len(gains))
            lines.append(f"| {run.label} | {group} | {len(gains)} | {gains.mean():+.1f} | {error:.1f} |")
    if not lines:
        return ""
    head = f"| against {first.label} | clients | how many | accuracy, mean difference | standard error |"
    return "\n".join([head, "|---" * 5 + "|", *lines]) + "\n"


def _accuracies(run: Run) -> dict[tuple[str, str], float]:
    return {(line["group"], line["client"]): float(line["accuracy"]) for line in run.clients if line.get("accuracy")}


def _curve(run: Run, group: str, key: str) -> tuple[list[float], list[float]]:
    points = [(line[key], 100 * line[group]["accuracy"]) for line in run.metrics if "accuracy" in line.get(group, {})]
    return [x for x, _ in points], [y for _, y in points]


def plot_runs(runs: Sequence[Run]) -> Figure:
    """Plot accuracy over rounds, accuracy over bytes, and a histogram of the clients' final accuracies.

    Runs with the same label, such as a method's seeds, have one colour and one legend entry; the histogram pools their
    clients.
    """
    figure = ShownFigure(15, 4.4)
    by_round, by_bytes, histogram = figure.subplots(1, 3)
    pooled: dict[str, list[float]] = {}
    for run in runs:
        first = run.label not in pooled
        final = pooled.setdefault(run.label, [])
        final += [100 * float(client["accuracy"]) for client in run.clients if client.get("accuracy")]
        colour = f"C{list(pooled).index(run.label) % 10}"
        for group, style in zip(GROUPS, ("-", "--", ":"), strict=True):
            rounds, accuracy = _curve(run, group, "round")
            if not rounds:
                continue
            label = (run.label if group == "seen" else f"{run.label}, {group}") if first else None
            by_round.plot(rounds, accuracy, style, color=colour, marker="o", markersize=3, label=label)
            traffic = [(line["bytes_down"] + line["bytes_up"]) / 1e6 for line in run.metrics if group in line]
            by_bytes.plot(traffic, accuracy, style, color=colour, marker="o", markersize=3, label=label)
    for index, (name, final) in enumerate(pooled.items()):
        if final:
            histogram.hist(
                final, bins=20, range=(0, 100), histtype="step", linewidth=1.6, color=f"C{index % 10}", label=name
            )
    by_round.set(xlabel="round", ylabel="mean accuracy of clients (%)", title="Accuracy over rounds")
    by_bytes.set(xlabel="MB sent, both ways, all clients", title="Accuracy over communication")
    histogram.set(xlabel="final accuracy (%)", ylabel="clients", title="Clients")
    for axes in (by_round, by_bytes, histogram):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize="small", frameon=False)
    return figure


def write_report(paths: Sequence[Path], target: Path) -> str:
    """Write ``report.md`` and ``report.png`` about the runs in ``paths`` to folder ``target``; return the tables."""
    runs = _with_unique_labels([load_run(path) for path in paths], paths)
    figure = plot_runs(runs)
    write_atomically(target / "report.png", lambda temporary: figure.savefig(temporary, dpi=130, format="png"))
    table = "\n".join(filter(None, [markdown_table(runs), paired_table(runs)]))
    sources = "\n".join(
        f"- {run.label}: `{path.name}`, seed {run.summary['seed']}" for run, path in zip(runs, paths, strict=True)
    )
    write_text(
        target / "report.md",
        f"# Report\n\nAccuracies in %: means over clients.\n\n{table}\n![Accuracy](report.png)\n\nRuns:\n\n{sources}\n",
    )
    return table
