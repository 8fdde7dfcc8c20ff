"""The elbow plot for choosing k: cost of clustering the weighted server points (Scott, thesis, D.8.3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.settings.configuration import complete
from florilegium.common.errors import ConfigurationError
from florilegium.common.figures import ShownFigure
from florilegium.common.pages import write_picture
from florilegium.common.settings import Value
from florilegium.strategies.folder.results import read_summary


def choose_k(base: Mapping[str, Value], largest: int, target: Path) -> int:
    """Run FedDP-KMeans with k chosen from 1 to ``largest``; plot the cost against k and return the chosen k.

    Args:
        base: a recipe's keys.
        largest: largest k to try, at least 3.
        target: folder for ``elbow.png`` and the run's folder ``run``.
    """
    if largest < 3:
        raise ConfigurationError(f"choose-k: an elbow needs at least three values of k (found: {largest})")
    keys = complete({**base, "method": "feddp-kmeans", "kmeans.choose-k": largest})
    path = run_here({**keys, "runs-dir": str(target.absolute()), "run-name": "run"}, target.absolute() / "run")
    clustering = read_summary(path)["kmeans"]
    figure = ShownFigure(5, 3.4)
    axes = figure.subplots()
    axes.plot(range(1, largest + 1), clustering["elbow"], "o-")
    axes.axvline(clustering["k"], color="C1", linestyle="--", label=f"elbow: k = {clustering['k']}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="k", ylabel="cost of the weighted server points")
    axes.legend()
    write_picture(figure, target / "elbow.png", 150)
    return int(clustering["k"])
