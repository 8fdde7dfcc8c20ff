"""A report's pictures: curves with bands over seeds, clients' accuracies, and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from florilegium.apps.figures import ShownFigure
from florilegium.apps.reports.pools import GROUPS, Pool

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7a7a7a", "#f0e442", "#000000")
"""Okabe and Ito's colours, which colour-blind readers tell apart."""
STYLES = ("-", "--", ":")
"""Lines of the groups of clients."""
MARKERS = "osD^vPX*<"


def colour(index: int) -> str:
    """Return the colour of the method with this index."""
    return COLOURS[index % len(COLOURS)]


def curve(pool: Pool, group: str, x: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return a pool's accuracy (%) over rounds or traffic: x, mean over seeds, standard error; empty if there is none.

    Only rounds that all seeds have evaluated count, since means over other seeds would jump.

    Args:
        x: "round", or "traffic" (MB sent both ways).
    """
    lines: list[dict[int, tuple[float, float]]] = []
    for run in pool.runs:
        found = {}
        for line in run.metrics:
            if "accuracy" in line.get(group, {}):
                place = line["round"] if x == "round" else (line["bytes_down"] + line["bytes_up"]) / 1e6
                found[line["round"]] = (float(place), 100 * float(line[group]["accuracy"]))
        lines.append(found)
    rounds = sorted(set.intersection(*(set(found) for found in lines)))
    values = np.array([[found[r] for r in rounds] for found in lines]).reshape(len(lines), len(rounds), 2)
    mean, n = values.mean(axis=0), len(lines)
    error = values[:, :, 1].std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(len(rounds))
    return mean[:, 0], mean[:, 1], error


def plot_pools(pools: Sequence[Pool]) -> ShownFigure:
    """Plot accuracy over rounds, accuracy over bytes, and the distribution of the clients' final accuracies.

    Bands are the standard error over seeds; the distribution pools the clients of all seeds.
    """
    figure = ShownFigure(15, 4.6)
    by_round, by_bytes, spread = figure.subplots(1, 3)
    for index, pool in enumerate(pools):
        for group, style in zip(GROUPS, STYLES, strict=True):
            label = pool.label if group == "seen" else f"{pool.label}, {group}"
            for axes, x in ((by_round, "round"), (by_bytes, "traffic")):
                draw_curve(axes, curve(pool, group, x), index, style, label)
        draw_clients(spread, pool, index)
    by_round.set(xlabel="round", ylabel="mean accuracy of clients (%)", title="Accuracy over rounds")
    by_bytes.set(xlabel="MB sent, both ways, all clients", title="Accuracy over communication")
    spread.set(xlabel="final accuracy (%)", ylabel="share of clients at or below", title="Clients")
    for axes in (by_round, by_bytes, spread):
        plain(axes)
    handles, labels = by_round.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)), frameon=False)
    return figure


def plain(axes: Axes) -> None:
    """Give axes a light grid and no box."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def draw_curve(
    axes: Axes,
    points: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    index: int,
    style: str,
    label: str,
) -> None:
    """Draw a curve with its band; nothing if it has no points."""
    x, mean, error = points
    if not len(x):
        return
    marks: dict[str, Any] = {"marker": MARKERS[index % len(MARKERS)], "markersize": 4, "markevery": max(1, len(x) // 8)}
    axes.plot(x, mean, style, color=colour(index), label=label, **marks)
    if error.any():
        axes.fill_between(x, mean - error, mean + error, color=colour(index), alpha=0.18, linewidth=0)


def draw_clients(axes: Axes, pool: Pool, index: int) -> None:
    """Draw the distribution function of the final accuracies of all clients of all seeds."""
    final = sorted(100 * value for run in pool.runs for value in run.figures("accuracy").values())
    if final:
        axes.step([final[0], *final], np.arange(len(final) + 1) / len(final), where="post", color=colour(index))
