"""Plot FLowDUP's representations r(X) of the clients' data, to see whether similar clients lie together (Figure 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from florilegium.apps.methods.registry import METHODS
from florilegium.apps.runs.personal import reopened
from florilegium.apps.settings.configuration import read_settings
from florilegium.common.errors import RunError
from florilegium.common.figures import ShownFigure
from florilegium.common.pages import write_page, write_picture
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_config

Matrix = NDArray[np.float64]
COLOURS, MARKERS = 10, "os^Dv"
FEWEST = 3
"""Smallest number of clients, and of features of a representation, for a picture in a plane."""


@dataclass(frozen=True)
class Representations:
    """The representations of a run's clients, which its hypernetwork takes as inputs.

    Attributes:
        r: representations r(X_i), (n, e).
        kinds: the kind of each client: its rotation, or the classes it has.
        unseen: whether each client took no part in training, (n,).
    """

    r: Matrix
    kinds: list[str]
    unseen: NDArray[np.bool_]


def representations(run: Path) -> Representations:
    """Compute the representation of every client of a finished run.

    Raises:
        RunError: if the run's method makes no representations, as FLowDUP does.
    """
    settings, _ = read_settings(run)
    if not hasattr(METHODS[settings.method].client_class(), "represent"):
        raise RunError(f"run {run} is one of method '{settings.method}', which represents no inputs; 'flowdup' does")
    with reopened(run) as again:
        model, clients = again.checkpoint.arrays, list(again.strategy.clients)
        shapes = {"representation": (model["outer.0.weight"].shape[1],)}
        outcome = again.round.ask("represent", clients, send=model, reduce="stack", shapes=shapes, evaluation=True)
    federation, dataset = federate(settings)
    rows = [int(client) for client in outcome.clients]
    if federation.angles.any():
        kinds = [f"{federation.angles[row]:g}°" for row in rows]
    else:
        kinds = [" ".join(map(str, np.flatnonzero(counts))) for counts in federation.class_counts(dataset)[rows]]
    return Representations(outcome.arrays["representation"].astype(np.float64), kinds, federation.unseen[rows])


def are_groups(kinds: Sequence[str]) -> bool:
    """Return whether the kinds form groups: on average at least two clients share a kind."""
    return 2 * len(set(kinds)) <= len(kinds)


def agreement(r: Matrix, kinds: Sequence[str], seed: int) -> float:
    """Return the adjusted Rand index between the kinds and as many k-means clusters of r; 1 is full agreement.

    NaN if the kinds form no groups: one cluster per client would always agree with one kind per client.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    if not are_groups(kinds):
        return math.nan
    labels = KMeans(len(set(kinds)), n_init=10, random_state=seed).fit_predict(r)
    return float(adjusted_rand_score(kinds, labels))


def picture(found: Representations, seed: int) -> Figure:
    """Plot the representations of all clients in two dimensions, by PCA and by t-SNE.

    Clients that took no part in training have a black edge.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(found.r) - 1) / 3)
    planes = {
        "PCA": PCA(2, random_state=seed).fit_transform(found.r),
        "t-SNE": TSNE(perplexity=perplexity, random_state=seed).fit_transform(found.r),
    }
    figure = ShownFigure(8, 4.2)
    kinds, edges = np.array(found.kinds), np.where(found.unseen, "black", "none")
    styles = [(f"C{colour}", marker) for marker in MARKERS for colour in range(COLOURS)]
    distinct = sorted(set(found.kinds), key=lambda kind: (len(kind), kind))  # 90° before 180°
    groups = distinct if are_groups(found.kinds) and len(distinct) <= len(styles) else []
    for axes, (title, points) in zip(figure.subplots(1, 2), planes.items(), strict=True):
        for kind, (colour, marker) in zip(groups, styles, strict=False):
            own = points[kinds == kind]
            edge = edges[kinds == kind]
            axes.scatter(*own.T, s=14, color=colour, marker=marker, label=kind, linewidths=0.7, edgecolors=edge)
        if not groups:
            axes.scatter(*points.T, s=14, linewidths=0.7, edgecolors=edges)
        axes.set(title=title, xticks=[], yticks=[])
    handles = [
        Line2D([], [], ls="", color=c, marker=m, ms=4, label=k) for k, (c, m) in zip(groups, styles, strict=False)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=COLOURS, frameon=False, fontsize=8)
    return figure


def write_embedding(run: Path, output: Path) -> str:
    """Write ``embedding.md`` and ``embedding.png`` to ``output``; return the table.

    Raises:
        RunError: if there are too few clients or features for a picture.
    """
    found, seed = representations(run), int(read_config(run)["seed"])
    if min(found.r.shape) < FEWEST:
        raise RunError(
            f"run {run} has {len(found.r)} clients, represented by {found.r.shape[1]} numbers (flowdup.features) each; "
            f"a picture needs {FEWEST} of both"
        )
    lines = ["| clients | number | kinds | adjusted Rand index |", "|---|---|---|---|"]
    for group, chosen in (("all", np.full(len(found.r), True)), ("unseen", found.unseen)):
        if chosen.any():
            kinds = [kind for kind, one in zip(found.kinds, chosen, strict=True) if one]
            index = agreement(found.r[chosen], kinds, seed)
            said = "–" if math.isnan(index) else f"{index:.3f}"
            lines.append(f"| {group} | {len(kinds)} | {len(set(kinds))} | {said} |")
    text = "\n".join(lines)
    write_page(output / "embedding.md", text)
    drawn = picture(found, seed)
    write_picture(drawn, output / "embedding.png")
    return text
