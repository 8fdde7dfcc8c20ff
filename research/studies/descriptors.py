"""Rank correlation between descriptor distances and class-mix distances (PeFLL; Scott, thesis, 4.4.1, Figure 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from florilegium.apps.settings.configuration import read_settings
from florilegium.common.errors import RunError
from florilegium.common.figures import ShownFigure
from florilegium.common.pages import Table, write_page, write_picture
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint

Matrix = NDArray[np.float64]
FEWEST = 3
"""Smallest number of clients: distances to two others can be ranked."""


def rank_correlations(descriptors: Matrix, mixes: Matrix, of: NDArray[np.int64]) -> Matrix:
    """Return Spearman's rank correlation between a client's descriptor distances and class-mix distances.

    The distances of a client are those to all other clients.

    Args:
        descriptors: v (n, l).
        mixes: shares of the classes π (n, C).
        of: indices of the clients to evaluate.

    Returns:
        ρ from -1 to 1 for each client of ``of``, (len(of),); NaN if all its descriptor distances, or all its class-mix
        distances, are equal.
    """
    found = []
    for i in of:
        others = np.arange(len(mixes)) != i
        near, truth = (cdist(a[i : i + 1], a[others])[0] for a in (descriptors, mixes))
        ranked = np.ptp(near) > 0 and np.ptp(truth) > 0
        found.append(float(spearmanr(near, truth).statistic) if ranked else np.nan)
    return np.array(found)


@dataclass(frozen=True)
class Correlation:
    """Mean and standard deviation of the rank correlations of a group of clients after a round."""

    round: int
    group: str
    mean: float
    std: float


def correlations(run: Path) -> list[Correlation]:
    """Return the rank correlations of a run's seen and unseen clients at every evaluation.

    Raises:
        RunError: if the run kept no descriptors, ran on real devices, has too few clients, or all distances are equal.
    """
    files = sorted((run / "descriptors").glob("*.safetensors"), key=lambda path: int(path.stem))
    if not files:
        raise RunError(f"run {run} kept no descriptors; run it with method = 'pefll' and pefll.keep-descriptors = true")
    if read_checkpoint(run).facts["deployed"]:
        raise RunError(f"run {run} ran on real devices, and only these know their class frequencies")
    settings, _ = read_settings(run)
    federation, dataset = federate(settings)
    counts = federation.class_counts(dataset)
    found = []
    for file in files:
        arrays = load_file(file)
        clients = sorted(map(int, arrays))
        if len(clients) < FEWEST:
            raise RunError(
                f"run {run} has descriptors of {len(clients)} clients after round {file.stem}; distances of one client "
                f"to the others can be ranked if there are {FEWEST}"
            )
        v = np.stack([arrays[str(client)] for client in clients]).astype(np.float64)
        mixes = counts[clients] / counts[clients].sum(axis=1, keepdims=True)
        unseen = federation.unseen[clients]
        for group, members in (("seen", ~unseen), ("unseen", unseen)):
            if members.any():
                ρ = rank_correlations(v, mixes, np.flatnonzero(members))
                ranked = ρ[~np.isnan(ρ)]
                if not len(ranked):
                    raise RunError(
                        f"run {run}: all {group} clients are equally far from all others after round {file.stem}, by "
                        "their class frequencies or by their descriptors; there is nothing to rank"
                    )
                found.append(Correlation(int(file.stem), group, float(ranked.mean()), float(ranked.std())))
    return found


def write_correlations(run: Path, output: Path) -> str:
    """Write ``descriptors.md`` and ``descriptors.png`` to ``output``; return the text of ``descriptors.md``."""
    found = correlations(run)
    head = ("round", "clients", "mean rank correlation", "std over clients")
    table = Table("", head, [(str(c.round), c.group, f"{c.mean:.3f}", f"{c.std:.3f}") for c in found])
    text = write_page(output / "descriptors.md", table)
    figure = ShownFigure(5, 3.5)
    axes = figure.add_subplot()
    for group in dict.fromkeys(c.group for c in found):
        own = [c for c in found if c.group == group]
        axes.plot([c.round for c in own], [c.mean for c in own], marker="o", markersize=3, label=group)
    axes.set(xlabel="round", ylabel="rank correlation", ylim=(min(0.0, *(c.mean for c in found)), 1))
    axes.set_title("Distances of descriptors and of class frequencies", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(title="clients", frameon=False)
    write_picture(figure, output / "descriptors.png", 150)
    return text
