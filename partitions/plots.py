"""Plot of a federation: the number of examples of each class that every client holds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axis import Axis

from florilegium.common.figures import ShownFigure
from florilegium.common.files import write_atomically
from florilegium.partitions.shares import Federation
from florilegium.partitions.spec import Dataset

LABEL = 0.19
"""Least distance of two labels of an axis, in inches."""
NUMBERED = 600
"""Most cells in which numbers are written."""


def plot_federation(federation: Federation, dataset: Dataset, path: Path, title: str) -> None:
    """Write a PNG heat map, clients × classes, of the numbers of training examples to ``path``."""
    figure = draw_federation(federation, dataset, title)
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=130, format="png"))


def draw_federation(federation: Federation, dataset: Dataset, title: str) -> ShownFigure:
    """Return a heat map, clients × classes, of the numbers of training examples; cells without examples are blank."""
    counts = federation.class_counts(dataset)
    clients, classes = counts.shape
    size = (float(np.clip(0.42 * classes + 2.2, 4.5, 14)), float(np.clip(0.24 * clients + 1.3, 2.8, 14)))
    figure = ShownFigure(*size)
    axes = figure.subplots()
    cells = axes.imshow(np.ma.masked_equal(counts, 0), aspect="auto", cmap="YlGnBu", vmin=0, interpolation="nearest")
    figure.colorbar(cells, label="training examples", pad=0.02)
    if counts.size <= NUMBERED:
        dark = counts.max() / 2
        for (client, label), count in np.ndenumerate(counts):
            if count:
                colour = "white" if count > dark else "black"
                axes.text(label, client, str(count), ha="center", va="center", fontsize=7, color=colour)
    _number(axes.xaxis, classes, size[0] - 1.8)
    _number(axes.yaxis, clients, size[1] - 1.0)
    axes.set(xlabel="class", ylabel="client", title=title)
    axes.spines[:].set_visible(False)
    return figure


def _number(axis: Axis, n: int, inches: float) -> None:
    """Label an axis with 0 … n − 1, or with every second, fifth, tenth … number where all of them would overlap."""
    least = n * LABEL * max(1, len(str(n)) / 2.5) / max(inches, LABEL)
    steps = (unit * 10**power for power in range(9) for unit in (1, 2, 5))
    axis.set_ticks(range(0, n, next(step for step in steps if step >= math.floor(least + 0.5) or step >= n)))
