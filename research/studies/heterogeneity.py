"""Compare the histograms of real, simulated and identically distributed clients (Scott, thesis, 3.4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from florilegium.apps.settings.configuration import Settings, read_settings
from florilegium.clients.hyper.mdm import MDMHyper
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.figures import ShownFigure
from florilegium.common.pages import write_page, write_picture
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.dirichlet_multinomial import Counts
from florilegium.partitions.features import find_feature, uncovered
from florilegium.partitions.federation import federate
from florilegium.partitions.mdm_params import read_law
from florilegium.partitions.shares import client_rows
from florilegium.strategies.folder.run_folder import read_checkpoint, read_config

Shares = NDArray[np.float64]
LARGEST = 1000
"""Largest number of clients that are compared; more take minutes and crowd the picture."""
COLOURS = {"real": "C2", "MDM": "C3", "IID": "C0"}


def histograms(settings: Settings, feature: str, bins: str) -> Counts:
    """Return the histograms of the training examples of a federation's clients, (n, C)."""
    federation, dataset = federate(settings)
    found = find_feature(dataset.spec, feature, bins)
    rows = [client_rows(federation, dataset, client, "train") for client in range(len(federation))]
    values = [found.values(np.asarray(split.x[own]), split.y[own]) for split, own in rows]
    if any((own < 0).any() for own in values):
        raise ConfigurationError(uncovered(feature, bins))
    return np.stack([np.bincount(own, minlength=found.categories) for own in values])


def clients_of(run: Path) -> dict[str, Counts]:
    """Return the histograms (n, C) of n "real", n "MDM" and n "IID" clients.

    "MDM" clients are drawn from the distribution that ``run`` has fitted. "IID" clients have the sizes of the real
    ones, and the values of their examples follow the pooled distribution of all clients.

    Raises:
        RunError: if the run is not of method ``mdm``, or ran on real devices, whose histograms are unknown.
    """
    settings, hyper = read_settings(run)
    if not isinstance(hyper, MDMHyper):
        raise RunError(f"run {run} is one of method '{settings.method}'; heterogeneity is shown of a run of 'mdm'")
    if read_checkpoint(run).facts["deployed"]:
        raise RunError(f"run {run} ran on real devices, and only these know their histograms")
    real = histograms(settings, hyper.feature, hyper.bins)
    rng = numpy_generator(settings.seed, "heterogeneity")
    pooled = real.sum(axis=0) / real.sum()
    return {
        "real": real,
        "MDM": read_law(str(run), 0).draw(len(real), rng),
        "IID": np.stack([rng.multinomial(size, pooled) for size in real.sum(axis=1)]),
    }


def distance(some: Counts, others: Counts) -> float:
    """Return the Wasserstein distance of two equally large sets of clients, 0 to 1.

    Clients are matched one to one so that the mean total variation between their normalised histograms is minimal.
    """
    gaps = cdist(_shares(some), _shares(others), "cityblock") / 2
    return float(gaps[linear_sum_assignment(gaps)].mean())


def _shares(counts: Counts) -> Shares:
    result: Shares = counts / counts.sum(axis=1, keepdims=True)
    return result


def table(clients: Mapping[str, Counts], seed: int) -> str:
    """Return a Markdown table of each kind's distance from real clients; for "real", between two random halves."""
    real = clients["real"]
    order = numpy_generator(seed, "heterogeneity", "halves").permutation(len(real))
    half = len(real) // 2
    first, second = real[order[:half]], real[order[half : 2 * half]]
    lines = ["| clients | distance from real ones | values per client |", "|---|---|---|"]
    for name, counts in clients.items():
        gap = distance(first, second if name == "real" else counts[:half])
        lines.append(f"| {name} | {gap:.3f} | {(counts > 0).sum(axis=1).mean():.1f} |")
    return "\n".join(lines)


def picture(clients: Mapping[str, Counts], seed: int) -> Figure:
    """Plot all clients in a plane by t-SNE of their normalised histograms; similar clients lie close together."""
    from sklearn.manifold import TSNE

    everybody = np.concatenate([_shares(counts) for counts in clients.values()])
    placed = TSNE(perplexity=min(30.0, (len(everybody) - 1) / 3), random_state=seed).fit_transform(everybody)
    figure = ShownFigure(6, 5)
    axes = figure.subplots()
    start = 0
    for name, counts in clients.items():
        own = placed[start : start + len(counts)]
        axes.scatter(own[:, 0], own[:, 1], s=6, alpha=0.6, linewidths=0, color=COLOURS[name], label=name)
        start += len(counts)
    axes.set(xticks=[], yticks=[])
    figure.legend(loc="outside lower center", ncols=3, markerscale=3, frameon=False)
    return figure


def write_heterogeneity(run: Path, output: Path) -> str:
    """Write ``heterogeneity.md`` and ``heterogeneity.png`` to ``output``; return the table."""
    everybody = clients_of(run)
    seed = int(read_config(run)["seed"])
    rng = numpy_generator(seed, "heterogeneity", "shown")
    chosen = {name: counts[np.sort(rng.permutation(len(counts))[:LARGEST])] for name, counts in everybody.items()}
    text = table(chosen, seed)
    write_page(output / "heterogeneity.md", text)
    drawn = picture(chosen, seed)
    write_picture(drawn, output / "heterogeneity.png")
    return text
