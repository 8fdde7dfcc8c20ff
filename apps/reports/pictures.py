"""A report's pictures: curves with bands over seeds, clients' accuracies, and paired differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from florilegium.apps.figures import ShownFigure
from florilegium.apps.reports.pools import GROUPS, Pair, Pool
from florilegium.apps.reports.tables import scale

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7a7a7a", "#f0e442", "#000000")
"""Okabe and Ito's colours, which colour-blind readers tell apart."""
STYLES = ("-", "--", ":")
"""Lines of the groups of clients."""
MARKERS = "osD^vPX*<"


def colour(index: int) -> str:
    """Return the colour of the method with this index."""
    return COLOURS[index % len(COLOURS)]


PLACES = {
    "round": ("round", lambda line: line["round"]),
    "traffic": ("MB sent, both ways, all clients", lambda line: (line["bytes_down"] + line["bytes_up"]) / 1e6),
    "seconds": ("seconds of training", lambda line: line["seconds"]),
}
"""What curves are plotted over: the axis's label, and its value in a line of ``metrics.jsonl``."""


def curve(pool: Pool, group: str, x: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return a pool's accuracy (%) over x: x, mean over seeds, standard error; empty arrays if there is none.

    Only rounds that all seeds have evaluated count, since means over other seeds would jump.

    Args:
        pool: the runs.
        group: the group of clients.
        x: a key of ``PLACES``.
    """
    place, lines = PLACES[x][1], list[dict[int, tuple[float, float]]]()
    for run in pool.runs:
        evaluated = [line for line in run.metrics if line.get(group, {}).get("accuracy") is not None]
        lines.append({line["round"]: (place(line), 100 * line[group]["accuracy"]) for line in evaluated})
    rounds = sorted(set.intersection(*(set(found) for found in lines)))
    values = np.array([[found[r] for r in rounds] for found in lines], dtype=float).reshape(len(lines), len(rounds), 2)
    mean, n = values.mean(axis=0), len(lines)
    error = values[:, :, 1].std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(len(rounds))
    return mean[:, 0], mean[:, 1], error


def plot_pools(pools: Sequence[Pool]) -> ShownFigure:
    """Plot accuracy over rounds, accuracy over bytes, and the distribution of the clients' final accuracies.

    Bands are the standard error over seeds; the distribution pools the clients of all seeds.
    """
    figure = ShownFigure(15, 4.6)
    by_round, by_bytes, clients = figure.subplots(1, 3)
    draw_curves(by_round, pools, "round")
    draw_curves(by_bytes, pools, "traffic")
    draw_clients(clients, pools)
    _legend(figure, by_round, columns=6)
    return figure


def plot_curves(pools: Sequence[Pool], x: str) -> ShownFigure:
    """Plot accuracy over rounds, traffic or seconds (``PLACES``) in a figure of its own."""
    return _single(pools, lambda axes: draw_curves(axes, pools, x))


def plot_clients(pools: Sequence[Pool]) -> ShownFigure:
    """Plot the distribution of the clients' final accuracies in a figure of its own."""
    return _single(pools, lambda axes: draw_clients(axes, pools))


def _single(pools: Sequence[Pool], draw: Callable[[Axes], None]) -> ShownFigure:
    figure = ShownFigure(5.6, 3.5 + 0.1 * len(pools))
    axes = figure.subplots()
    draw(axes)
    _legend(figure, axes, columns=3)
    return figure


def _legend(figure: ShownFigure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(columns, len(labels)),
            frameon=False,
            fontsize="small",
        )


def draw_curves(axes: Axes, pools: Sequence[Pool], x: str) -> None:
    """Draw each pool's mean accuracy with a band of its standard error; groups of clients differ in line style."""
    for index, pool in enumerate(pools):
        for group, style in zip(GROUPS, STYLES, strict=True):
            places, mean, error = curve(pool, group, x)
            if not len(places):
                continue
            label = pool.label if group == "seen" else f"{pool.label}, {group}"
            marks = {"marker": MARKERS[index % len(MARKERS)], "markersize": 4, "markevery": max(1, len(places) // 8)}
            axes.plot(places, mean, style, color=colour(index), label=label, **marks)  # type: ignore[arg-type]
            if error.any():
                axes.fill_between(places, mean - error, mean + error, color=colour(index), alpha=0.18, linewidth=0)
    axes.set(xlabel=PLACES[x][0], ylabel="mean accuracy of clients (%)")
    plain(axes)


def draw_clients(axes: Axes, pools: Sequence[Pool]) -> None:
    """Draw for each pool the share of clients, of all seeds, whose final accuracy is at most x."""
    for index, pool in enumerate(pools):
        values = [100 * value for run in pool.runs for value in run.figures("accuracy").values()]
        if final := sorted(value for value in values if not np.isnan(value)):
            shares = np.arange(len(final) + 1) / len(final)
            axes.step([final[0], *final], shares, where="post", color=colour(index), label=pool.label)
    axes.set(xlabel="final accuracy (%)", ylabel="share of clients at or below")
    plain(axes)


def plot_pairs(found: Sequence[Pair]) -> ShownFigure:
    """Plot paired differences with both confidence intervals: thick over clients, thin over seeds."""
    figure = ShownFigure(6.4, 1.2 + 0.34 * len(found))
    axes = figure.subplots()
    for place, pair in enumerate(found):
        factor, over = scale(pair.figure), pair.difference
        mean = factor * over.over_seeds.mean
        for level, width in ((over.over_seeds, 1.2), (over.over_clients, 4.0)):
            if not np.isnan(level.margin):
                margin = factor * level.margin
                axes.plot([mean - margin, mean + margin], [place, place], color=colour(0), linewidth=width, alpha=0.75)
        axes.plot(mean, place, "o", color=colour(3), markersize=5)
    axes.axvline(0, color="black", linewidth=0.8)
    names = [f"{pair.second} − {pair.first}" + ("" if pair.group == "seen" else f", {pair.group}") for pair in found]
    axes.set_yticks(range(len(found)), names)
    axes.invert_yaxis()
    unit = "percentage points" if all("accuracy" in pair.figure for pair in found) else "accuracy in points, or loss"
    axes.set_xlabel(f"difference ({unit}); thick: over clients, thin: over seeds")
    plain(axes)
    return figure


def plain(axes: Axes) -> None:
    """Give axes a light grid and no box."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
