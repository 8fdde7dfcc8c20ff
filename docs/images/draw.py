"""Draw the pictures of the documentation that show no results of papers: ``python docs/images/draw.py [name …]``.

Without a name all are drawn, for light and for dark pages. Nothing is downloaded: the data are scikit-learn's digits.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial

import numpy as np
from diagrams import DIAGRAMS, write_diagram
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from themes import write_figure

import florilegium as fl
from florilegium.apps.settings.configuration import complete, parse
from florilegium.common.figures import ShownFigure
from florilegium.common.settings import Value
from florilegium.partitions.federation import federate

PARTITIONERS: dict[str, dict[str, Value]] = {
    "iid": {},
    "classes": {},
    "dirichlet": {},
    "dirichlet\nover classes": {"dirichlet-over": "classes"},
    "shard": {},
    "pathological": {},
    "inner-dirichlet": {},
    "distribution": {},
    "linear": {},
    "square": {"num-clients": 10},
    "exponential": {"num-clients": 6},
    "continuous": {},
}
"""Title of each panel, which begins with the partitioner, and its keys."""
SPLITS: dict[str, dict[str, Value]] = {
    "pfllib-pathological": {},
    "pfllib-pathological\nbalanced": {"pfllib-pathological.balanced": True},
    "pfllib-practical": {},
    "pathological\none class each": {"pathological.classes": 1},
    "pathological\ntwo classes each": {},
    "extended-dirichlet\nall classes, α = 0.5": {"extended-dirichlet.classes": 0, "extended-dirichlet.alpha": 0.5},
    "extended-dirichlet\ntwo classes each, α = 10": {},
    "quantity-skew": {},
}
"""The same for the splits that papers share."""
FIRST = {
    "num_clients": 10, "classes_per_client": 3, "rounds": 12, "local_epochs": 2, "batch_size": 16, "learning_rate": 0.1,
    "evaluate_every": 3,
}  # fmt: skip
"""Keys of the README's first result."""


def first_comparison() -> None:
    """Carry out the README's first comparison and plot it."""
    with tempfile.TemporaryDirectory() as runs:
        compared = fl.compare(
            ["fedavg", "fedprox", "local", "fedper"], seeds=[1, 2], fedprox={"mu": 0.5}, runs_dir=runs, **FIRST
        )
        print(compared.table[["method", "accuracy", "accuracy_se"]].round(3))
        write_figure("first-comparison", compared.plot)


def partition() -> None:
    """Plot the clients of the default federation."""
    write_figure("partition", fl.partition().plot, heat_map=True)


def partitioners() -> None:
    """Plot federations of twelve partitioners."""
    write_figure("partitioners", partial(_federations, PARTITIONERS, rows=3), heat_map=True)


def splits() -> None:
    """Plot federations of the splits that papers share."""
    write_figure("splits", partial(_federations, SPLITS, rows=2), heat_map=True)


def _federations(panels: dict[str, dict[str, Value]], rows: int) -> Figure:
    """Return heat maps of the digits' training examples by client and class, ``rows`` rows of them."""
    columns = -(-len(panels) // rows)
    figure = ShownFigure(3 * columns, 3.2 * rows)
    for place, (title, keys) in enumerate(panels.items(), 1):
        settings, _ = parse(complete({"partitioner": title.split()[0], **keys}))
        federation, data = federate(settings)
        _heat_map(figure.add_subplot(rows, columns, place), federation.class_counts(data), title)
    return figure


def _heat_map(axes: Axes, counts: np.ndarray, title: str) -> None:
    axes.imshow(np.ma.masked_equal(counts, 0), aspect="auto", cmap="YlGnBu", vmin=0, interpolation="nearest")
    axes.set(title=title, xlabel="class", ylabel="client", xticks=range(10), yticks=range(0, len(counts), 5))


PLOTS: dict[str, Callable[[], None]] = {
    "first-comparison": first_comparison, "partition": partition, "partitioners": partitioners, "splits": splits,
}  # fmt: skip


if __name__ == "__main__":
    for wanted in sys.argv[1:] or [*DIAGRAMS, *PLOTS]:
        PLOTS[wanted]() if wanted in PLOTS else write_diagram(wanted)
