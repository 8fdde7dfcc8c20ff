"""Clustering cost against privacy budget: Pareto fronts over budgets, splits and steps (Scott, thesis, 6.5, D.8).

Runs take a second or two, so that worker processes carry them out without Flower. Each adds a line to ``points.csv``;
an interrupted command continues from there.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import complete, parse
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.figures import ShownFigure
from florilegium.common.files import write_text
from florilegium.common.pages import Table, write_page, write_picture
from florilegium.common.settings import Value, parse_numbers
from florilegium.strategies.folder.results import read_summary

OWN = "feddp-kmeans"
"""The method whose budget can be split in different ways."""
NOT_PRIVATE = ("k-fed", "optimal")
SPLITS = ("0.2,0.2,0.45,0.15", "0.35,0.1,0.45,0.1", "0.25,0.25,0.25,0.25", "0.1,0.2,0.6,0.1", "0.2,0.1,0.6,0.1",
          "0.5,0.1,0.3,0.1")  # fmt: skip
"""Shares of ε_1, ε_2, ε_3G, ε_3L to try: the thesis' two recommendations, equal shares, and others around them."""


@dataclass(frozen=True)
class Cell:
    """One run: a method with its budget and seed.

    Attributes:
        method: the method.
        steps: T, number of steps of FedDP-Lloyds.
        epsilon: ε of the whole run; 0 if the run releases nothing private or is not private.
        split: split of FedDP-Init's budget; "" if the method has none.
        seed: seed of the run.
    """

    method: str
    steps: int
    epsilon: float
    split: str
    seed: int


@dataclass(frozen=True)
class Point:
    """Result of one method and budget over seeds: mean and standard deviation of the cost per point, mean accuracy."""

    method: str
    steps: int
    epsilon: float
    split: str
    cost: float
    std: float
    accuracy: float


def cells(
    methods: Sequence[str], epsilons: Sequence[float], steps: Sequence[int], splits: Sequence[str], seeds: Sequence[int]
) -> list[Cell]:
    """Return every run to carry out, ordered by seed so that runs on the same data are adjacent."""
    chosen = []
    for seed, method in product(seeds, methods):
        if method not in METHODS or METHODS[method].task != "clustering":
            known = [name for name, entry in METHODS.items() if entry.task == "clustering"]
            raise ConfigurationError(f"'{method}' is not a clustering method. Known: {', '.join(known)}.")
        if method in NOT_PRIVATE:
            chosen.append(Cell(method, 0, 0.0, "", seed))
            continue
        own = splits if method == OWN else [""]
        if method != OWN and 0 in steps:
            chosen.append(Cell(method, 0, 0.0, "", seed))
        counts = [count for count in steps if count or method == OWN]
        chosen += [Cell(method, count, ε, split, seed) for ε, count, split in product(epsilons, counts, own)]
    return chosen


def keys_of(cell: Cell, base: Mapping[str, Value]) -> dict[str, Value]:
    """Return the complete configuration of a run."""
    keys = complete({**base, "method": cell.method, "rounds": cell.steps + 1, "seed": cell.seed})
    keys |= {"kmeans.epsilon": cell.epsilon} if cell.epsilon else {}
    return keys | {"kmeans.epsilons": ""} | ({"kmeans.split": cell.split} if cell.split else {})


def carry_out(keys: Mapping[str, Value]) -> dict[str, float]:
    """Carry out a run in this process and return its final cost, accuracy and spent ε."""
    from florilegium.apps.engines.one_process import run_here

    logging.getLogger("flwr").setLevel(logging.ERROR)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        run_here({**keys, "runs-dir": folder, "run-name": "run", "evaluate-every": 0}, path)
        summary = read_summary(path)
    return {
        "cost": summary["kmeans"]["cost"],
        "accuracy": summary["kmeans"]["accuracy"],
        "epsilon_spent": summary["privacy"].get("epsilon", 0.0),
    }


def sweep(
    wanted: Sequence[Cell], base: Mapping[str, Value], target: Path, workers: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Carry out the cells ``wanted`` in ``workers`` processes; return one line for each.

    Cells that already have a line in ``points.csv`` are not run again. ``tell`` is called with progress messages.
    """
    if base.get("kmeans.privacy-unit") == "none":
        raise ConfigurationError("kmeans.privacy-unit: 'none' spends no ε, so there is nothing to plot cost against")
    for cell in wanted:
        parse(keys_of(cell, base))
    told = json.dumps(dict(sorted(base.items())), indent=2) + "\n"
    if (target / "recipe.json").exists() and (target / "recipe.json").read_text(encoding="utf-8") != told:
        raise ConfigurationError(
            f"{target} holds the table of another configuration (recipe.json); choose another --output"
        )
    write_text(target / "recipe.json", told)
    file = target / "points.csv"
    done = {_key(line): line for line in _read(file)}
    left = [cell for cell in wanted if cell not in done]
    tell(f"{len(left)} runs, {len(wanted) - len(left)} are there already")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        results = pool.map(carry_out, [keys_of(cell, base) for cell in left], chunksize=4)
        for number, (cell, result) in enumerate(zip(left, results, strict=True), start=1):
            if result["epsilon_spent"] > cell.epsilon:
                raise RunError(f"{cell} spent ε = {result['epsilon_spent']:g}, more than its budget")
            done[cell] = {**asdict(cell), **result}
            _write(file, list(done.values()))
            if number % 10 == 0 or number == len(left):
                tell(f"{number} of {len(left)} runs")
    return [done[cell] for cell in wanted]


def _key(line: Mapping[str, str]) -> Cell:
    return Cell(line["method"], int(line["steps"]), float(line["epsilon"]), line["split"], int(line["seed"]))


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as content:
        lines = list(csv.DictReader(content))
    words = ("method", "split")
    return [{name: value if name in words else float(value) for name, value in line.items()} for line in lines]


def _write(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(file, text.getvalue())


def summarise(lines: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Return the mean over seeds of every method and budget."""
    groups: dict[tuple[str, int, float, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        key = (str(line["method"]), int(line["steps"]), float(line["epsilon"]), str(line["split"]))
        groups.setdefault(key, []).append(line)
    return [
        Point(*key, cost=float(np.mean(costs)), std=float(np.std(costs)),
              accuracy=float(np.mean([float(line["accuracy"]) for line in group])))
        for key, group in groups.items()
        for costs in [[float(line["cost"]) for line in group]]
    ]  # fmt: skip


def front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front ordered by ε: the points with no cheaper point at the same or a smaller ε."""
    chosen: list[Point] = []
    for point in sorted(points, key=lambda p: (p.epsilon, p.cost)):
        if not chosen or point.cost < chosen[-1].cost:
            chosen.append(point)
    return chosen


def table(points: Sequence[Point]) -> Table:
    """Return a table of each method's best cost per point within each budget, and its accuracy."""
    methods = list(dict.fromkeys(point.method for point in points))
    budgets = sorted({point.epsilon for point in points if point.epsilon})
    rows = []
    for budget in budgets:
        row = [f"{budget:g}"]
        for method in methods:
            within = [point for point in points if point.method == method and point.epsilon <= budget]
            best = min(within, key=lambda p: p.cost, default=None)
            row.append("–" if best is None else f"{best.cost:.3f} ± {best.std:.3f} ({100 * best.accuracy:.1f} %)")
        rows.append(row)
    return Table("", ["ε", *methods], rows)


def questions(points: Sequence[Point]) -> list[str | Table]:
    """Return the mean split and the frequency of each number of steps on FedDP-KMeans' front (tables D.2 to D.5).

    These are parts of a page; [] without runs of FedDP-KMeans.
    """
    best = front([point for point in points if point.method == OWN])
    if not best:
        return []
    shares = np.mean([parse_numbers(point.split) for point in best], axis=0)
    steps = sorted({point.steps for point in points if point.method == OWN})
    fractions = [np.mean([point.steps == count for point in best]) for count in steps]
    head = ["ε_1", "ε_2", "ε_3G", "ε_3L", *(f"{count} steps" for count in steps)]
    row = [f"{value:.2f}" for value in [*shares, *fractions]]
    return [f"On the front of {OWN}, {len(best)} points:", Table("", head, [row])]


def picture(points: Sequence[Point]) -> Figure:
    """Plot the Pareto fronts of all methods: cost per point against ε."""
    figure = ShownFigure(6.4, 4.2)
    axes = figure.subplots()
    largest = max((point.epsilon for point in points), default=1.0) or 1.0
    for number, method in enumerate(dict.fromkeys(point.method for point in points)):
        own = front([point for point in points if point.method == method])
        colour = f"C{number}"
        if method in NOT_PRIVATE:
            axes.axhline(
                own[0].cost,
                color=colour,
                linestyle="--" if method == "optimal" else ":",
                label=f"{method} (not private)",
            )
            continue
        x, y = [point.epsilon for point in own], [point.cost for point in own]
        axes.step([*x, largest], [*y, y[-1]], where="post", color=colour, alpha=0.5)
        axes.errorbar(x, y, [point.std for point in own], fmt="o", markersize=4, color=colour, label=method)
    axes.set(xlabel="ε of the whole run", ylabel="cost per point")
    finite = [point.cost for point in points if point.method == OWN or point.method == "optimal"]
    if finite:
        # Limit the axis: sphere packing alone may cost a hundred times as much as the other methods.
        low, high = min(finite), max(front_costs(points))
        axes.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure


def front_costs(points: Sequence[Point]) -> list[float]:
    """Return the lowest cost of each method, followed by all costs on FedDP-KMeans' front."""
    methods = dict.fromkeys(point.method for point in points)
    best = [front([point for point in points if point.method == method])[-1].cost for method in methods]
    return best + [point.cost for point in front([point for point in points if point.method == OWN])]


def write(points: Sequence[Point], target: Path) -> str:
    """Write ``pareto.md`` and ``pareto.png`` to ``target``; return the text of ``pareto.md``."""
    text = write_page(target / "pareto.md", table(points), *questions(points))
    write_picture(picture(points), target / "pareto.png", 150)
    return text
