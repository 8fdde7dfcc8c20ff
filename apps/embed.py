"""FLowDUP's representations of clients' data, r(X), in a picture: do similar clients lie together? (Figure 1)"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from apps.methods import METHODS
from apps.personal import reopened
from apps.settings import read_settings
from clients.wire import pack
from common.errors import RunError
from common.files import write_atomically, write_text
from partitions.federation import federate
from strategies.run_folder import read_config

MOST_COLOURS = 10


@dataclass(frozen=True)
class Representations:
    """What a run's hypernetwork sees in its clients.

    Attributes:
        r: r(X_i), (n, e).
        kinds: a word for each client that says how it differs: its rotation, or the classes it has.
        unseen: which clients took no part in training, (n,).
    """

    r: NDArray[np.float64]
    kinds: list[str]
    unseen: NDArray[np.bool_]


def representations(run: Path) -> Representations:
    """Have every client of a finished run represent its inputs.

    Raises:
        RunError: if the run is not one of FLowDUP.
    """
    settings, _ = read_settings(run)
    if not hasattr(METHODS[settings.method].client(), "embed"):
        raise RunError(f"run {run} is one of method '{settings.method}', which represents no inputs; 'flowdup' does")
    with reopened(run) as again:
        arrays, clients = pack(again.checkpoint.arrays), list(again.strategy.roster.clients)
        outcome = again.strategy.exchange(
            again.grid, clients, again.checkpoint.round, "embed", reduce="stack", arrays=arrays, evaluation=True
        )
    federation, dataset = federate(settings)
    rows = [int(client) for client in outcome.clients]
    if federation.angles.any():
        kinds = [f"{federation.angles[row]:g}°" for row in rows]
    else:
        kinds = [" ".join(map(str, np.flatnonzero(counts))) for counts in federation.class_counts(dataset)[rows]]
    return Representations(outcome.arrays["representation"].astype(np.float64), kinds, federation.unseen[rows])


def agreement(found: Representations, seed: int) -> float:
    """Return the adjusted Rand index of the kinds and k-means of r, k their number: 1 where the two agree."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    labels = KMeans(len(set(found.kinds)), n_init=10, random_state=seed).fit_predict(found.r)
    return float(adjusted_rand_score(found.kinds, labels))


def picture(found: Representations, seed: int) -> Figure:
    """Return r of all clients in two planes, by their main directions (PCA) and by neighbourhood (t-SNE)."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(found.r) - 1) / 3)
    planes = {
        "PCA": PCA(2, random_state=seed).fit_transform(found.r),
        "t-SNE": TSNE(perplexity=perplexity, random_state=seed).fit_transform(found.r),
    }
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    kinds = np.array(found.kinds)
    for axes, (title, points) in zip(figure.subplots(1, 2), planes.items(), strict=True):
        for number, kind in enumerate(sorted(set(found.kinds))):
            own = points[kinds == kind]
            axes.scatter(own[:, 0], own[:, 1], s=12, color=f"C{number % MOST_COLOURS}", label=kind, linewidths=0)
        axes.set(title=title, xticks=[], yticks=[])
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=MOST_COLOURS, frameon=False)
    return figure


def write_embedding(run: Path, output: Path) -> str:
    """Write ``embedding.md`` and ``embedding.png`` to ``output``; return the table."""
    found, seed = representations(run), int(read_config(run)["seed"])
    lines = ["| clients | kinds | adjusted Rand index |", "|---|---|---|"]
    lines.append(f"| {len(found.r)} | {len(set(found.kinds))} | {agreement(found, seed):.3f} |")
    text = "\n".join(lines)
    write_text(output / "embedding.md", text + "\n")
    drawn = picture(found, seed)
    write_atomically(output / "embedding.png", lambda path: drawn.savefig(path, format="png", dpi=130))
    return text
