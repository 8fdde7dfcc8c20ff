"""Draw ``splits.png``, the splits that papers share, on MNIST: ``python docs/images/splits.py [dataset]``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from florilegium.apps.settings import complete, parse
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import decoded
from florilegium.partitions.federation import federate

PANELS: dict[str, dict[str, Value]] = {
    "pfllib-pathological": {},
    "pfllib-practical": {},
    "pathological (#C = 1)": {"pathological.classes": 1},
    "pathological (#C = 2)": {},
    "extended-dirichlet\nall classes, α = 0.5": {"extended-dirichlet.classes": 0, "extended-dirichlet.alpha": 0.5},
    "extended-dirichlet\nC = 2, α = 10": {},
    "quantity-skew": {},
}
"""Title of each panel, which begins with the partitioner, and its keys."""


def main(dataset: str) -> None:
    """Write the picture beside this file."""
    figure = Figure(figsize=(12, 7.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 4)
    for axes, (title, keys) in zip(panels.flat, PANELS.items(), strict=False):
        partitioner = title.split()[0]
        settings, _ = parse(complete({"dataset": dataset, "partitioner": partitioner, "num-clients": 20, **keys}))
        federation, data = federate(settings)
        counts = federation.class_counts(data)
        axes.imshow(np.ma.masked_equal(counts, 0), aspect="auto", cmap="YlGnBu", vmin=0, interpolation="nearest")
        axes.set(title=title, xlabel="class", ylabel="client", xticks=range(10), yticks=range(0, 20, 5))
    settings, _ = parse(complete({"dataset": dataset, "partitioner": "noise", "num-clients": 20, "noise.sigma": 0.5}))
    federation, data = federate(settings)
    shown = [decoded(federation, data, client, "train")[0][client % 5] for client in (0, 6, 13, 19)]
    panels.flat[7].imshow(
        np.block([[image.squeeze(-1) for image in row] for row in (shown[:2], shown[2:])]),
        cmap="gray",
        vmin=0,
        vmax=255,
    )
    panels.flat[7].set(title="noise, σ = 0.5\nclients 0, 6, 13, 19", xticks=[], yticks=[])
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=90)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["mnist"]))
