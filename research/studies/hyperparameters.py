"""The β and η that FedL2P gives each client, by layer (the paper's figure 2) and by domain (figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from florilegium.apps.runs.personal import reopened
from florilegium.apps.settings.configuration import read_settings
from florilegium.clients.core.network import network_for
from florilegium.common.errors import RunError
from florilegium.common.figures import ShownFigure
from florilegium.common.files import write_atomically
from florilegium.common.pages import write_page
from florilegium.models.batch_norm import layers_of, norms_of
from florilegium.models.parameters import trained
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.fedl2p import FedL2P
from florilegium.strategies.folder.run_folder import read_config

Matrix = NDArray[np.float64]

SYMBOLS = {"distances": "ξ", "mixing": "β", "moments": "x", "rates": "η"}
"""Symbols of BNNet's input and output, then of LRNet's, by array name."""


@dataclass(frozen=True)
class Found:
    """Inputs and outputs of FedL2P's meta-nets for every client of a run.

    Attributes:
        values: arrays by symbol: ξ and β (n, B), absent without batch norm; x (n, 2M); η (n, tensors).
        norms, tensors: names of the B batch-norm layers, and of the parameter tensors.
        sizes: number of parameters in each tensor.
        domains: domain of each client, (n,); "" if the dataset has none.
    """

    values: Mapping[str, Matrix]
    norms: Sequence[str]
    tensors: Sequence[str]
    sizes: NDArray[np.int64]
    domains: NDArray[np.str_]

    @property
    def sparsity(self) -> Matrix:
        """Share of the parameters with η = 0, which fine-tuning leaves unchanged, for each client, (n,)."""
        return np.asarray((self.values["η"] == 0) @ self.sizes / self.sizes.sum())


def hyperparameters(run: Path) -> Found:
    """Compute the hyper-parameters of every client of a finished run.

    Raises:
        RunError: if the run is not of method ``fedl2p`` or ``l2p``.
    """
    settings, _ = read_settings(run)
    with reopened(run) as again:
        strategy = again.strategy
        if not isinstance(strategy, FedL2P):
            raise RunError(f"run {run} is one of method '{settings.method}'; 'fedl2p' and 'l2p' make hyper-parameters")
        spec = dataset_of(settings)
        network = network_for(spec, settings, settings.seed)
        named, norms = trained(network), list(norms_of(network))
        shapes = {
            "distances": (len(norms),), "mixing": (len(norms),),
            "moments": (2 * len(layers_of(network)),), "rates": (len(named),),
        }  # fmt: skip
        outcome = again.round.ask(
            "describe", list(strategy.clients), send=strategy.result, reduce="stack", shapes=shapes,
            evaluation=True,
        )  # fmt: skip
    federation, _ = federate(settings)
    values = {symbol: outcome.arrays[name].astype(np.float64) for name, symbol in SYMBOLS.items()}
    return Found(
        {symbol: found for symbol, found in values.items() if found.size},
        norms,
        list(named),
        np.array([parameter.numel() for parameter in named.values()]),
        federation.names[[int(client) for client in outcome.clients]],
    )


def cluster_distances(values: Matrix, domains: NDArray[np.str_]) -> Matrix:
    """Return log(d(j, k) / √(d(j, j)·d(k, k))) for each pair of domains, (D, D).

    d(j, k) is the mean distance between clients of domains j and k. Above 0, clients are closer to their own domain
    than to the other (section 4.4). NaN if all clients of a domain are equal, or it has only one.

    Args:
        values: one row per client, (n, …).
        domains: domain of each client, (n,).
    """
    kinds = np.unique(domains)
    groups = [values[domains == kind] for kind in kinds]
    d = np.empty((len(kinds), len(kinds)))
    for j, one in enumerate(groups):
        for k, other in enumerate(groups):
            pairs = cdist(one, other)
            # The distance of a client to itself is not counted.
            d[j, k] = pairs.sum() / max(1, pairs.size - len(one)) if j == k else pairs.mean()
    within = np.sqrt(np.outer(d.diagonal(), d.diagonal()))
    return np.log(np.divide(d, within, out=np.full_like(d, np.nan), where=(within > 0) & (d > 0)))


def agreement(values: Matrix, domains: NDArray[np.str_], seed: int) -> float:
    """Return the adjusted Rand index between the domains and as many spectral clusters; 1 is full agreement.

    The similarity of two clients is exp(−(d/d̄)²), where d is their distance and d̄ the mean distance. NaN if all
    clients are equal.
    """
    from sklearn.cluster import SpectralClustering
    from sklearn.metrics import adjusted_rand_score

    d = cdist(values, values)
    if not d.any():
        return float("nan")
    clusters = SpectralClustering(
        len(np.unique(domains)), affinity="precomputed", assign_labels="discretize", random_state=seed
    ).fit_predict(np.exp(-((d / d.mean()) ** 2)))
    return float(adjusted_rand_score(domains, clusters))


def write_hyperparameters(run: Path, output: Path) -> str:
    """Write ``hyperparameters.md``, ``layers.png`` and ``domains.png`` to ``output``; return the tables.

    ``domains.png`` and the Rand indices are written only if there are several domains with at least two clients each:
    clusters of one client each would always agree.
    """
    found, seed = hyperparameters(run), int(read_config(run)["seed"])
    β, η = found.values.get("β"), found.values["η"]
    lines = ["| clients | mean β | mean abs. η | sparsity, mean and range |", "|---|---|---|---|"]
    mixing, sparsity = "–" if β is None else f"{β.mean():.3f}", found.sparsity
    spread = f"{sparsity.mean():.2f}, {sparsity.min():.2f} to {sparsity.max():.2f}"
    lines.append(f"| {len(η)} | {mixing} | {np.abs(η).mean():.3g} | {spread} |")
    layers = layers_picture(found)
    pictures = {"layers": layers}
    if len(np.unique(found.domains)) > 1 and np.unique(found.domains, return_counts=True)[1].min() > 1:
        indices = {symbol: agreement(values, found.domains, seed) for symbol, values in found.values.items()}
        lines += ["", "Adjusted Rand index of domains and clusters:", ""]
        lines += [f"| {' | '.join(indices)} |", "|---" * len(indices) + "|"]
        lines.append("| " + " | ".join(f"{index:.2f}" for index in indices.values()) + " |")
        pictures["domains"] = domains_picture(found)
    text = "\n".join(lines)
    write_page(output / "hyperparameters.md", text)
    for name, figure in pictures.items():
        write_atomically(output / f"{name}.png", lambda path, f=figure: f.savefig(path, format="png", dpi=130))  # type: ignore[misc]
    return text


def layers_picture(found: Found) -> Figure:
    """Plot the spread of β and η over clients for each layer."""
    panels = [("β", found.norms)] if "β" in found.values else []
    panels += [("η", found.tensors)]
    figure = Figure(figsize=(2.5 + 0.35 * (len(found.norms) + len(found.tensors)), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    widths = [1 + len(names) for _, names in panels]
    grid = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
    for axes, (symbol, names) in zip(grid, panels, strict=True):
        axes.boxplot(found.values[symbol], whis=(5, 95), sym="", medianprops={"color": "C1"})
        axes.set_xticks(range(1, len(names) + 1), names, rotation=60, ha="right", fontsize=7)
        axes.set_title(f"{symbol} of {len(found.values[symbol])} clients", fontsize=9)
        axes.grid(alpha=0.3, axis="y")
        axes.spines[["top", "right"]].set_visible(False)
        if symbol == "β":
            axes.set_ylim(-0.05, 1.05)
    return figure


def domains_picture(found: Found) -> Figure:
    """Plot a heat map of the distances between domains for each input and output of the meta-nets."""
    kinds = np.unique(found.domains)
    figure = ShownFigure(3.1 * len(found.values) + 1, 3.6)
    maps = {symbol: cluster_distances(values, found.domains) for symbol, values in found.values.items()}
    for number, (symbol, distances) in enumerate(maps.items()):
        axes = figure.add_subplot(1, len(maps), number + 1)
        reach = max(0.1, float(np.nanmax(np.abs(distances), initial=0)))
        image = axes.imshow(distances, cmap="RdBu", vmin=-reach, vmax=reach)
        axes.set_xticks(range(len(kinds)), kinds, rotation=60, ha="right", fontsize=6)
        axes.set_yticks(range(len(kinds)), kinds if number == 0 else [], fontsize=6)
        axes.set_title(symbol, fontsize=10)
        figure.colorbar(image, ax=axes, shrink=0.7)
    return figure
