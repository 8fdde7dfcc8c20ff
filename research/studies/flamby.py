"""The tables of FLamby's Fed-Heart-Disease and Fed-TCGA-BRCA: all methods of a recipe, five seeds, on all test sets.

Each model is evaluated as FLamby does: after the last round, on the pooled test rows and on those of each client. Of
heart disease the pooled rows are standardised together, and the clients' own by hospital, so that "pooled" is not the
union of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from florilegium.apps.api.runs import Run
from florilegium.apps.engines.base import Means
from florilegium.apps.settings.configuration import Settings, complete, parse
from florilegium.apps.sweeps.named_runs import NamedRun, carry_out, folder_of
from florilegium.apps.sweeps.sweep import runs_of
from florilegium.clients.core.training import evaluate
from florilegium.common.pages import Table, write_page
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import Examples, to_inputs
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import load_dataset, task_of
from florilegium.research.ledger.records import RECORDS, PrintedTable, read_published
from florilegium.research.studies import flamby_draws
from florilegium.research.studies.flamby_draws import HEART, ORDER, TCGA, turns

Draws = Literal["flamby", "workers", "suite"]
SWEEP = "table"
LOCAL, POOLED, CYCLIC = "local", "pooled", "cyclic"
"""Variants whose clients train alone, on all rows in one place, and alone in turns."""
_PUBLISHED = {
    "fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "fedadam": "FedAdam", "fedyogi": "FedYogi",
    "fedadagrad": "FedAdagrad", CYCLIC: "Cyclic", POOLED: "Pooled training",
}  # fmt: skip
_TABLES = {"fed-heart": "Fed-Heart-Disease", "fed-tcga-brca": "Fed-TCGA-BRCA"}
_ORDERS = {"fed-heart": "heart", "fed-tcga-brca": "tcga"}
_SIZES = {"fed-heart": HEART, "fed-tcga-brca": TCGA}


def with_flambys_draws(one: NamedRun, dataset: str, rounds: int, *, workers: bool) -> NamedRun:
    """Return a run of the recipe's table with FLamby's initial model, rows and batches instead of the suite's.

    Args:
        one: the run.
        dataset: name of the federated dataset.
        rounds: of a federated training; client 0 has its turn in some of them where clients train in turns.
        workers: whether batches of federated trainings are those of loaders with worker processes.
    """
    own = one.variant in (LOCAL, POOLED)
    cyclic = "_cyclic" if one.variant == CYCLIC else ""
    order = "alone" if own else _ORDERS[dataset] + cyclic + ("_with_workers" if workers else "")
    name = f"{one.name}-flamby{'-workers' if workers and not own else ''}"
    keys: dict[str, Value] = {
        **one.keys,
        "model": f"{flamby_draws.__name__}:seed_{one.keys['seed']}",
        "partitioner": f"{flamby_draws.__name__}:{'POOLED' if one.variant == POOLED else 'CLIENTS'}",
        "batch-order": f"{flamby_draws.__name__}:{order}",
        "run-name": name,
    }
    if cyclic:
        keys["rounds"] = max(1, first_turns(int(one.keys["seed"]), dataset, rounds))
    return replace(one, name=name, keys=keys)


def first_turns(seed: int, dataset: str, rounds: int) -> int:
    """Return in how many rounds of FLamby's "cyclic" training client 0 takes steps; its model is the one evaluated."""
    return [*islice(turns(seed, len(_SIZES[dataset])), rounds)].count(0)


class Tests:
    """The test sets of a federation: all rows pooled, then each client's own.

    Attributes:
        names: the clients, in FLamby's order.

    Args:
        settings: configuration of a federated run.
    """

    def __init__(self, settings: Settings) -> None:
        federation, dataset = federate(settings)
        pooled, own = dataset.spec.name, dataset.test
        if pooled == "fed-heart":
            pooled = "fed-heart-pooled"
        whole = load_dataset(settings.model_copy(update={"dataset": pooled})).test
        assert whole is not None
        assert own is not None
        self.task = task_of(settings)
        self.names = ORDER[dataset.spec.client_columns[0]]
        places = [[*federation.names].index(name) for name in self.names]
        parts = [(whole.x, whole.y)]
        parts += [(own.x[federation.test[i]], own.y[federation.test[i]]) for i in places]
        self.sets = [
            Examples(to_inputs(dataset.spec, np.asarray(x)), torch.from_numpy(np.asarray(y))) for x, y in parts
        ]

    def figures(self, model: nn.Module) -> list[float]:
        """Return the main figure of a model on each set."""
        return [evaluate(model, examples, self.task)[self.task.main] for examples in self.sets]


def models(run: Path, variant: str, clients: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the models of a run by row: each client's where clients train alone, the first one's where in turns."""
    if variant == LOCAL:
        for number, name in enumerate(clients):
            yield f"Local {number}", Run(run).model(name)
    else:
        yield _PUBLISHED[variant], Run(run).model(clients[0] if variant == CYCLIC else None)


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """Return the model that FLamby draws from a seed in place of ``model``, which may have been trained."""
    layer = next(one for one in model.modules() if isinstance(one, nn.Linear))
    drawn: nn.Module = getattr(flamby_draws, f"seed_{seed}")((layer.in_features,), layer.out_features)
    return drawn


def measure(
    recipe: str, overrides: Mapping[str, Value], means: Means, *, draws: Draws = "flamby"
) -> tuple[str, list[str], dict[str, NDArray[np.float64]]]:
    """Carry out the runs of a recipe's table that have not completed yet, and measure their models.

    Args:
        recipe: ``flamby-heart``, ``flamby-tcga``, or a recipe that extends one of them.
        overrides: keys that apply to all runs; ``seed`` replaces the recipe's seeds.
        means: how to carry them out.
        draws: as FLamby, as FLamby with worker processes that load its batches, or as the suite.

    Returns:
        The dataset; the names of the test sets, "pooled" and the clients; and the main figure of each row of the table,
        (seeds, test sets).
    """
    wanted = runs_of(recipe, SWEEP, overrides)
    federated = complete(next(one.keys for one in wanted if one.variant not in (LOCAL, POOLED, CYCLIC)))
    dataset, rounds = str(federated["dataset"]), int(federated["rounds"])
    if draws != "suite":
        wanted = [with_flambys_draws(one, dataset, rounds, workers=draws == "workers") for one in wanted]
    done = carry_out(wanted, folder_of(wanted), means).all()
    tests = Tests(parse(federated)[0])
    found: dict[str, list[list[float]]] = {}
    for one, path in zip(wanted, done, strict=True):
        seed = int(one.keys["seed"])
        for row, model in models(path, one.variant, tests.names):
            if one.variant == CYCLIC and draws != "suite" and not first_turns(seed, dataset, rounds):
                model = untrained(model, seed)
            found.setdefault(row, []).append(tests.figures(model))
    return dataset, ["pooled", *tests.names], {row: np.array(values) for row, values in found.items()}


def table(dataset: str, sets: Sequence[str], found: Mapping[str, NDArray[np.float64]]) -> Table:
    """Return the table of figures, mean ± sample standard deviation over seeds, with the published ones in brackets."""
    printed = published(dataset)
    rows = []
    for row, values in found.items():
        whole = np.column_stack([values, values[:, 1:].mean(axis=1)])
        cells = []
        for place, column in enumerate(whole.T):
            theirs = printed.rows[row][place] if row in printed.rows else None
            spread = f" ± {column.std(ddof=1):.3f}" if len(column) > 1 else ""
            cells.append(f"{column.mean():.3f}{spread}" + (f" ({theirs.text})" if theirs else ""))
        rows.append([row, *cells])
    return Table("", ["method", *sets, "mean of clients"], rows)


def published(dataset: str) -> PrintedTable:
    """Return the published table of a dataset, from the ledger."""
    paper = read_published(RECORDS / "published" / "flamby.toml")
    return next(one for one in paper.tables if one.name == _TABLES[dataset])


def write_flamby(
    recipe: str, overrides: Mapping[str, Value], means: Means, target: Path, *, draws: Draws = "flamby"
) -> Table:
    """Carry out and measure a recipe's table; write it to ``<dataset>-<draws>.md`` in ``target``, and return it.

    The CSV file beside it has the figure of each row, seed and test set. Arguments are those of :func:`measure`.
    """
    dataset, sets, found = measure(recipe, overrides, means, draws=draws)
    made = table(dataset, sets, found)
    name = f"{dataset}-{draws}"
    lines = ["method,number," + ",".join(sets)]
    lines += [
        f"{row},{number}," + ",".join(f"{value:.6f}" for value in values)
        for row, seeds in found.items()
        for number, values in enumerate(seeds)
    ]
    write_page(target / f"{name}.md", made)
    write_page(target / f"{name}.csv", "\n".join(lines))
    return made
