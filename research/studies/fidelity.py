"""Compare FedAvg on real and on simulated clients over hyper-parameters (Scott, thesis, 3.4.2).

There are four kinds of clients: real; drawn from the distribution fitted by ``mdm`` (MDM); with the histograms of real
clients but other rows (conditional); and identically distributed (IID). All are evaluated on the whole test split.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from florilegium.apps.runs.experiment import pick, read_layers, recipe_name
from florilegium.apps.settings.configuration import Settings, complete, parse
from florilegium.apps.sweeps.named_runs import NamedRun, run_all
from florilegium.clients.core.network import network_for
from florilegium.clients.core.training import evaluate
from florilegium.clients.hyper.mdm import MDMHyper
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.figures import ShownFigure
from florilegium.common.files import write_text
from florilegium.common.pages import write_page, write_picture
from florilegium.common.settings import Value
from florilegium.models.parameters import set_arrays
from florilegium.partitions.clientdata import Examples, to_inputs
from florilegium.partitions.dirichlet_multinomial import Counts
from florilegium.partitions.features import find_feature
from florilegium.partitions.federation import federate
from florilegium.research.studies.heterogeneity import histograms
from florilegium.strategies.folder.run_folder import read_checkpoint, read_frozen

log = logging.getLogger("flwr")

KINDS = ("real", "MDM", "conditional", "IID")
STYLES = {"real": ("C2", ":"), "MDM": ("C3", "-"), "conditional": ("C2", "-"), "IID": ("C0", "-")}
MOST_ROWS = 0.9
"""Largest share of the rows that simulated clients may need on average; it limits their number."""
ALIKE = 1e9
"""Concentration α_0 of the Dirichlet distribution for IID clients; large, so that all have the same mix."""
LAW = "mdm"
"""Name of the recipe's variant that fits the distribution of the clients."""

Run = Callable[[Mapping[str, Value]], Path]


@dataclass(frozen=True)
class Grid:
    """Hyper-parameters of FedAvg to try, in all combinations."""

    batch_sizes: Sequence[int]
    learning_rates: Sequence[float]
    epochs: Sequence[int]

    def settings(self) -> list[dict[str, Value]]:
        """Return the keys of every point of the grid."""
        return [
            {"batch-size": batch, "local-epochs": epochs, "learning-rate": rate}
            for batch, epochs, rate in product(self.batch_sizes, self.epochs, self.learning_rates)
        ]


def laws(
    base: Mapping[str, Value], law: Path, hyper: MDMHyper, target: Path, *, disjoint: bool
) -> dict[str, dict[str, Value]]:
    """Write the distributions of IID and conditional clients; return the keys that each kind adds to ``base``.

    Args:
        base: the keys of the runs with real clients.
        law: folder of the run of ``mdm`` that fitted the distribution of the clients.
        hyper: hyper-parameters of that run, which name the counted feature.
        target: the folder to write to.
        disjoint: whether simulated clients draw from the server's rows.
    """
    settings = parse(complete(base))[0]
    real = histograms(settings, hyper.feature, hyper.bins)
    _, dataset = federate(settings)
    feature = find_feature(dataset.spec, hyper.feature, hyper.bins)
    everything = feature.values(np.asarray(dataset.train.x), dataset.train.y)
    values = np.bincount(everything[everything >= 0], minlength=feature.categories)
    said = {"feature": hyper.feature, "bins": hyper.bins}
    files = {"IID": said | _alike(real.sum(axis=1), values), "conditional": said | {"histograms": real.tolist()}}
    for kind, content in files.items():
        write_text(target / f"{kind.lower()}.json", json.dumps(content))
    paths = {"MDM": law, **{kind: target / f"{kind.lower()}.json" for kind in files}}
    rows = settings.server_examples if disjoint else len(dataset.train) - settings.server_examples
    # The sizes of simulated clients are random; with fewer clients the rows suffice.
    clients = min(len(real), int(MOST_ROWS * rows / real.sum(axis=1).mean()))
    simulated: dict[str, Value] = {"partitioner": "mdm", "samples-per-client": 0, "num-clients": clients}
    simulated |= {"client-column": "", "min-test-examples": 0, "share-out": "server" if disjoint else "clients"}
    return {"real": {}} | {kind: {**simulated, "mdm-params": str(path.absolute())} for kind, path in paths.items()}


def _alike(real: Counts, values: Counts) -> dict[str, object]:
    """Return the distribution of IID clients: sizes as in ``real`` (n,), values in proportion to ``values`` (C,).

    ``values`` counts each value over all training rows of the dataset.
    """
    sizes = np.bincount(real)[1:]
    shares = np.maximum(values / values.sum(), 1 / ALIKE)
    return {
        "tau": [1.0],
        "alpha": [(ALIKE * shares).tolist()],
        "edges": list(range(1, len(sizes) + 2)),
        "pi": [(sizes / sizes.sum()).tolist()],
    }


def study(
    recipe: str, overrides: Mapping[str, Value], grid: Grid, runs_dir: Path, run: Run, *, disjoint: bool
) -> list[dict[str, float]]:
    """Return the accuracy of each kind of clients at each point of the grid; finished runs are not repeated.

    A run that fails has accuracy NaN; the log says why.

    Args:
        recipe: recipe of the real clients, with a variant ``mdm`` that fits their distribution.
        overrides: keys that override the others in all runs.
        grid: hyper-parameters of FedAvg.
        runs_dir: folder of runs.
        run: carries out a run and returns its folder.
        disjoint: whether simulated clients use rows that no real client has, half of all rows (A.4.2).

    Raises:
        ConfigurationError: if the recipe has no such variant, or simulated clients would train on test examples.
    """
    layers, name = read_layers(recipe), recipe_name(recipe)
    shared = {**overrides, **(_halves({**layers.keys, **overrides}) if disjoint else {})}
    base: dict[str, Value] = {**layers.keys, **shared}
    finds = {**layers.keys, **pick(LAW, layers.variants, f"recipe '{recipe}'", "variant"), **shared}
    suffix = "-disjoint" if disjoint else ""
    _, hyper = parse(complete(finds))
    if not isinstance(hyper, MDMHyper):
        raise ConfigurationError(f"recipe '{recipe}': its variant '{LAW}' must be of method 'mdm'")
    if not disjoint and federate(parse(complete(base))[0])[0].test_from_train:
        raise ConfigurationError(
            f"recipe '{recipe}': '{base['dataset']}' has no test split, so that simulated clients would train on what "
            "real ones are tested on; compare with --disjoint"
        )
    label = f"{name}{suffix}-law"
    (law,) = run_all([NamedRun(label, {**finds, "run-name": label})], runs_dir, run).all()
    kinds = laws(base, law, hyper, runs_dir / f"{name}{suffix}-laws", disjoint=disjoint)
    rows = []
    for point in grid.settings():
        row: dict[str, float] = {key: float(value) for key, value in point.items()}
        for kind, keys in kinds.items():
            words = [f"{name}{suffix}", kind, *(f"{key}-{value}" for key, value in point.items())]
            own = {**base, **keys, **point, "evaluate-every": 0, "run-name": "-".join(words)}
            try:
                (path,) = run_all([NamedRun(str(own["run-name"]), own)], runs_dir, run).all()
                row[kind] = accuracy(path, parse(complete(base))[0])
            except RunError as error:  # for example too large a learning rate; the other settings are still useful
                log.warning("%s: %s", own["run-name"], error)
                row[kind] = float("nan")
        rows.append(row)
    return rows


def _halves(keys: Mapping[str, Value]) -> dict[str, Value]:
    """Return the keys that reserve half of the training rows for the server."""
    _, dataset = federate(parse(complete(keys))[0])
    return {"server-examples": len(dataset.train) // 2}


def accuracy(run: Path, settings: Settings) -> float:
    """Return the accuracy of a run's last model on the test split, or on the real clients' test rows without one.

    Args:
        run: the run's folder.
        settings: settings of the runs with real clients.
    """
    federation, dataset = federate(settings)
    split = dataset.train if dataset.test is None else dataset.test
    rows = np.sort(federation.test.rows) if dataset.test is None else np.arange(len(split))
    network = network_for(dataset.spec, settings, settings.seed)
    set_arrays(network, read_frozen(run) | read_checkpoint(run).arrays)
    right, task = 0.0, dataset.spec.learned
    for part in np.array_split(rows, max(1, len(rows) // 1000)):
        x = to_inputs(dataset.spec, np.asarray(split.x[part]), dataset.vocabulary)
        right += evaluate(network, Examples(x, torch.from_numpy(split.y[part])), task)[task.main] * len(part)
    return right / len(rows)


def write_fidelity(rows: Sequence[Mapping[str, float]], output: Path) -> str:
    """Write ``fidelity.md`` and ``fidelity.png`` to ``output``; return the table, accuracies in %."""
    keys = [key for key in rows[0] if key not in KINDS]
    lines = ["| " + " | ".join([*keys, *KINDS]) + " |", "|---" * (len(keys) + len(KINDS)) + "|"]
    for row in rows:
        cells = [f"{row[key]:g}" for key in keys] + [
            f"{100 * row[kind]:.1f}".replace("nan", "failed") for kind in KINDS
        ]
        lines.append("| " + " | ".join(cells) + " |")
    gaps = {kind: np.nanmean([abs(row[kind] - row["real"]) for row in rows]) for kind in KINDS[1:]}
    shown = ["mean difference from real", *[""] * len(keys), *(f"{100 * gap:.2f}" for gap in gaps.values())]
    lines.append("| " + " | ".join(shown) + " |")
    figure = ShownFigure(8, 4)
    axes = figure.subplots()
    for kind, (colour, line) in STYLES.items():
        axes.plot([100 * row[kind] for row in rows], line, marker="o", markersize=3, color=colour, label=kind)
    axes.set_xticks(
        range(len(rows)), [", ".join(f"{row[key]:g}" for key in keys) for row in rows], rotation=60, fontsize=7
    )
    axes.set(xlabel=", ".join(keys), ylabel="test accuracy (%)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    write_picture(figure, output / "fidelity.png")
    text = "\n".join(lines)
    write_page(output / "fidelity.md", text)
    return text
