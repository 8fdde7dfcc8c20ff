"""Choosing k at no cost of privacy: the elbow of clusterings of the weighted server points (Scott, thesis, D.8.3)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from apps.one_process import run_here
from apps.settings import defaults
from common.errors import ConfigurationError
from common.files import write_atomically, write_text
from common.settings import Value
from models.clustering import cost, k_means
from strategies.run_folder import read_checkpoint


def elbow(costs: Sequence[float]) -> int:
    """Return k at the elbow of the costs of 1, 2, … clusters: farthest below the line from the first to the last."""
    y = np.asarray(costs, float)
    x = np.linspace(0, 1, len(y))
    scaled = (y - y[-1]) / max(float(y[0] - y[-1]), np.finfo(float).tiny)
    return int((1 - x - scaled).argmax()) + 1


def choose_k(base: Mapping[str, Value], largest: int, target: Path) -> int:
    """Run steps 1 and 2 of FedDP-Init for k' = ``largest``; return the elbow over k = 1..k' and draw it (D.8.3).

    Args:
        base: a recipe's keys.
        largest: k', at least 3.
        target: folder of ``elbow.png`` and ``elbow.csv``.
    """
    if largest < 3:
        raise ConfigurationError(f"choose-k: an elbow needs at least three values of k (found: {largest})")
    keys = {**defaults(), **base, "method": "feddp-kmeans", "rounds": 1, "kmeans.k": largest}
    with TemporaryDirectory() as folder:
        run_here({**keys, "runs-dir": folder, "run-name": "run"}, Path(folder) / "run")
        state = read_checkpoint(Path(folder) / "run").state
    heavy = state["weights"] >= max(float(keys["kmeans.weight-threshold"]), 1e-9)
    points, weights = state["points"][heavy], state["weights"][heavy]
    counts = range(1, min(largest, len(points)) + 1)
    rng = np.random.default_rng(0)
    costs = [cost(points, weights, k_means(points, weights, k, 10, rng)) for k in counts]
    chosen = elbow(costs)
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(counts, costs, "o-")
    axes.axvline(chosen, color="C1", linestyle="--", label=f"elbow: k = {chosen}")
    axes.set(xlabel="k", ylabel="cost of the weighted server points")
    axes.legend()
    target.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("k", "cost"), *zip(counts, costs, strict=True)])
    write_text(target / "elbow.csv", text.getvalue())
    write_atomically(target / "elbow.png", lambda temporary: figure.savefig(temporary, format="png", dpi=150))
    return chosen
