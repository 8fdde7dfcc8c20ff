"""A report's pictures: curves with bands over seeds, clients' main figures, and paired differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from florilegium.apps.reports.pairs import Pair
from florilegium.apps.reports.pools import GROUPS, Pool
from florilegium.apps.reports.tables import scale
from florilegium.common.figures import ShownFigure
from florilegium.strategies.folder.main_figure import MainFigure
from florilegium.strategies.folder.metrics_file import SIMULATED, TRAINING

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7a7a7a", "#f0e442", "#000000")
"""Okabe and Ito's colours, which colour-blind readers tell apart."""
STYLES = ("-", "--", ":")
"""Lines of the groups of clients."""
MARKERS = "osD^vPX*<"
LONG = 34
"""Number of letters above which a pair of methods gets two lines."""


def colour(index: int) -> str:
    """Return the colour of the method with this index."""
    return COLOURS[index % len(COLOURS)]


Reader = Callable[[Mapping[str, Any]], float | None]
"""Reads a number from a line of ``metrics.jsonl``; None if the line has none."""

PLACES: Mapping[str, tuple[str, Reader]] = {
    "round": ("round", lambda line: line["round"]),
    "traffic": ("MB sent, both ways, all clients", lambda line: (line["bytes_down"] + line["bytes_up"]) / 1e6),
    "seconds": ("seconds of training", lambda line: line["seconds"]),
    "simulated": ("minutes of simulated time", lambda line: line[SIMULATED] / 60 if SIMULATED in line else None),
}
"""What curves are plotted over: the axis's label, and its value in a line of ``metrics.jsonl``."""


def places(pools: Sequence[Pool]) -> list[str]:
    """Return the keys of ``PLACES`` that the pools can be plotted over: simulated time if a run has a virtual clock."""
    clocked = any(SIMULATED in line for pool in pools for run in pool.runs for line in run.metrics)
    return [x for x in PLACES if clocked or x != "simulated"]


def reader(group: str, name: str, main: MainFigure = MainFigure()) -> Reader:  # noqa: B008  (a constant)
    """Return the reader of a figure, as tables show it, of a group of clients; or of the entry ``training``."""

    def read(line: Mapping[str, Any]) -> float | None:
        value = line.get(group, {}).get(name)
        return None if value is None else scale(name, main)[0] * float(value)

    return read


def curve(pool: Pool, read: Reader, x: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return a curve of a pool: x, mean over seeds, standard error; empty arrays if there is none.

    Only rounds for which all seeds have the number count, since means over other seeds would jump.

    Args:
        pool: the runs.
        read: reads the number.
        x: a key of ``PLACES``.
    """
    place, found = PLACES[x][1], list[dict[int, tuple[float, float]]]()
    for run in pool.runs:
        points = ((line["round"], place(line), read(line)) for line in run.metrics)
        found.append({r: (x_value, value) for r, x_value, value in points if x_value is not None and value is not None})
    rounds = sorted(set.intersection(*(set(own) for own in found)))
    values = np.array([[own[r] for r in rounds] for own in found], dtype=float)
    values = values.reshape(len(found), len(rounds), 2)
    mean, n = values.mean(axis=0), len(found)
    error = values[:, :, 1].std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(len(rounds))
    return mean[:, 0], mean[:, 1], error


def figure_of(pools: Sequence[Pool]) -> str:
    """Return the figure that pictures show: the main one, or "loss" where there is none."""
    main = pools[0].main.name
    return main if any(pool.figure(group, main) for pool in pools for group in pool.groups()) else "loss"


def plot_pools(pools: Sequence[Pool]) -> ShownFigure:
    """Plot the main figure (or loss) over rounds, bytes and simulated time, and its final distribution over clients.

    Bands are the standard error over seeds; the distribution pools the clients of all seeds.
    """
    shown = [x for x in places(pools) if x != "seconds"]
    figure = ShownFigure(5 + 5 * len(shown), 4.6)
    *curves, clients = figure.subplots(1, len(shown) + 1)
    for axes, x in zip(curves, shown, strict=True):
        draw_curves(axes, pools, x)
    draw_clients(clients, pools)
    _legend(figure, curves[0])
    return figure


def plot_curves(pools: Sequence[Pool], x: str) -> ShownFigure:
    """Plot the main figure, or the loss where there is none, over one of ``PLACES``."""
    return _single(pools, lambda axes: draw_curves(axes, pools, x))


def plot_training(pools: Sequence[Pool]) -> ShownFigure:
    """Plot the mean training loss of each round's cohort."""

    def draw(axes: Axes) -> None:
        for index, pool in enumerate(pools):
            _draw_curve(axes, curve(pool, reader(TRAINING, "loss"), "round"), index, "-", pool.label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set(xlabel="round", ylabel="training loss of the cohort")
        plain(axes)

    return _single(pools, draw)


def plot_clients(pools: Sequence[Pool]) -> ShownFigure:
    """Plot the distribution of the clients' final main figures in a picture of its own."""
    return _single(pools, lambda axes: draw_clients(axes, pools))


def _single(pools: Sequence[Pool], draw: Callable[[Axes], None]) -> ShownFigure:
    figure = ShownFigure(4.8, 3.3 + 0.1 * len(pools))
    axes = figure.subplots()
    draw(axes)
    _legend(figure, axes)
    return figure


def _legend(figure: ShownFigure, axes: Axes) -> None:
    """Put the legend of ``axes`` below the figure, in as many columns as its labels have room for."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        columns = int(figure.get_figwidth() * 14 / (max(map(len, labels)) + 6))
        figure.legend(
            handles, labels, loc="outside lower center", ncols=max(1, min(columns, len(labels))), frameon=False,
            fontsize="small",
        )  # fmt: skip


def draw_curves(axes: Axes, pools: Sequence[Pool], x: str) -> None:
    """Draw each pool's mean main figure, or loss, with a band of its standard error; groups differ in style."""
    figure = figure_of(pools)
    for index, pool in enumerate(pools):
        for group, style in zip(GROUPS, STYLES, strict=True):
            label = pool.label if group == "seen" else f"{pool.label}, {group}"
            _draw_curve(axes, curve(pool, reader(group, figure, pool.main), x), index, style, label)
    if x == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    unit = " (%)" if pools[0].main.is_percent(figure) else ""
    axes.set(xlabel=PLACES[x][0], ylabel=f"mean {figure} of clients{unit}")
    plain(axes)


def _draw_curve(
    axes: Axes,
    points: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    index: int,
    style: str,
    label: str,
) -> None:
    """Draw a curve, with its band if there is one; nothing if it has no points."""
    x, mean, error = points
    if not len(x):
        return
    marker, every = MARKERS[index % len(MARKERS)], max(1, len(x) // 8)
    axes.plot(x, mean, style, color=colour(index), label=label, marker=marker, markersize=4, markevery=every)
    if error.any() and len(x) > 1:
        axes.fill_between(x, mean - error, mean + error, color=colour(index), alpha=0.18, linewidth=0)
    elif error.any():  # a band of a single point would not be seen
        axes.errorbar(x, mean, yerr=error, color=colour(index), capsize=3)


def draw_clients(axes: Axes, pools: Sequence[Pool]) -> None:
    """Draw for each pool the share of clients, of all seeds, whose final main figure is at most x."""
    main = pools[0].main
    for index, pool in enumerate(pools):
        factor, _ = scale(main.name, main)
        values = [factor * value for run in pool.runs for value in run.figures(main.name).values()]
        if final := sorted(value for value in values if not np.isnan(value)):
            shares = np.arange(len(final) + 1) / len(final)
            axes.step([final[0], *final], shares, where="post", color=colour(index), label=pool.label)
    axes.set(xlabel=f"final {main.name}" + (" (%)" if main.percent else ""), ylabel="share of clients at or below")
    plain(axes)


def plot_pairs(found: Sequence[Pair]) -> ShownFigure:
    """Plot paired differences with both confidence intervals: thick over clients, thin over seeds."""
    names = [f"{pair.second} − {pair.first}" + ("" if pair.group == "seen" else f", {pair.group}") for pair in found]
    if long := any(len(name) > LONG for name in names):
        names = [name.replace(" − ", "\n− ", 1) for name in names]
    figure = ShownFigure(6.4, 1.2 + (0.45 if long else 0.32) * len(found))
    axes = figure.subplots()
    for place, pair in enumerate(found):
        (factor, _), over = scale(pair.figure, pair.main), pair.difference
        mean = factor * over.over_seeds.mean
        for level, width in ((over.over_seeds, 1.2), (over.over_clients, 4.0)):
            if not np.isnan(level.margin):
                margin = factor * level.margin
                axes.plot([mean - margin, mean + margin], [place, place], color=colour(0), linewidth=width, alpha=0.75)
        axes.plot(mean, place, "o", color=colour(3), markersize=5)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(found)), names, fontsize="small")
    axes.set_ylim(len(found) - 0.4, -0.6)
    figures = {pair.figure: pair.main.is_percent(pair.figure) for pair in found}
    unit = "percentage points" if all(figures.values()) else ", or ".join(
        f"{name} in points" if percent else name for name, percent in figures.items())  # fmt: skip
    axes.set_xlabel(f"difference ({unit})\nthick: over clients, thin: over seeds", fontsize="small")
    plain(axes)
    return figure


def plain(axes: Axes) -> None:
    """Give axes a light grid and no box."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
