"""Boosted trees beside XGBoost on all rows in one place: speed, and for ``python -m benchmarks.trees`` the table of
docs/results/statistics.md: accuracy and AUROC beside FedAvg with an MLP and the linear model, hospital by hospital.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.statistics import REPEATS, _made, _peak, _run
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import ClientData, simulated
from florilegium.partitions.federation import federate
from florilegium.partitions.settings import FederationSettings

SEEDS = (1, 2, 3)
ETA, DEPTH, ROUNDS, BINS = 0.1, 4, 50, 32
TABLES: Mapping[str, dict[str, Value]] = {
    "fed-heart-raw": {"standardise": "none"},
    "adult": {"client-column": "workclass", "task": "binary"},
}
MLP: Mapping[str, Mapping[str, Value]] = {
    "fed-heart-raw": {"standardise": "client", "learning-rate": 0.02, "rounds": 30},
    "adult": {"learning-rate": 0.05, "rounds": 30},
}
"""FedAvg's keys: those of the board of Heart Disease, and the suite's default rate."""


def growing(rows: int = 200_000, columns: int = 20, clients: int = 10, rounds: int = 20) -> tuple[float, float]:
    """Return the seconds of a run that grows trees, and those of XGBoost's bins and trees of all rows; one thread."""
    import xgboost

    data, x, y = _made(rows, columns, clients)
    ours, pooled = [], []
    for _ in range(REPEATS):
        ours.append(_run(method="trees", dataset=data, rounds=rounds, task="binary")["seconds"])
        started = time.perf_counter()
        matrix = xgboost.QuantileDMatrix(x.astype(np.float32), y, max_bin=BINS, nthread=1)
        xgboost.train(_keys(DEPTH, 0.3), matrix, rounds)
        pooled.append(time.perf_counter() - started)
    return statistics.median(ours), statistics.median(pooled)


def memory(rows: int = 200_000, columns: int = 20) -> Iterator[str]:
    """Yield lines of the peak memory of a run, by the number of clients of the same rows."""
    for clients in (100, 1000, 5000):
        data, _, _ = _made(rows, columns, clients)
        peak = _peak(f"_run(method='trees', dataset={data!r}, rounds=3, task='binary')")
        yield f"| {clients:,} | {peak / 2**20:.0f} |"


def _keys(depth: int, eta: float) -> dict[str, Any]:
    return {
        "objective": "binary:logistic", "tree_method": "hist", "grow_policy": "depthwise", "max_depth": depth,
        "eta": eta, "max_bin": BINS, "nthread": 1,
    }  # fmt: skip


# ---------------------------------------------------------------------------------- the page of results


def _figures(parts: Sequence[ClientData], margins: Sequence[NDArray[Any]]) -> dict[str, float]:
    """Return accuracy and AUROC of clients' test rows, means over the clients, NaN left out."""
    from sklearn.metrics import roc_auc_score

    y = [part.test.y.numpy() for part in parts]
    aurocs = [roc_auc_score(a, b) if 0 < a.mean() < 1 else np.nan for a, b in zip(y, margins, strict=True)]
    accuracies = [np.mean((b > 0) == a) for a, b in zip(y, margins, strict=True)]
    return {"accuracy": float(np.mean(accuracies)), "auroc": float(np.nanmean(aurocs))}


def _pooled(keys: Mapping[str, Value], seed: int) -> dict[str, float]:
    """Return the figures of XGBoost on all clients' training rows, with its own bins."""
    import xgboost

    from florilegium.apps.settings.configuration import complete, parse

    named = {"partitioner": "natural", "num-clients": 0, "participation": 1.0, "seed": seed, **keys}
    settings: FederationSettings = parse(complete(named))[0]
    federation, dataset = federate(settings)
    parts = [simulated(federation, dataset, client) for client in range(len(federation))]
    x, y = (np.concatenate([getattr(part.train, name).numpy() for part in parts]) for name in "xy")
    booster = xgboost.train(_keys(DEPTH, ETA), xgboost.QuantileDMatrix(x, y, max_bin=BINS), ROUNDS)
    tested = [xgboost.DMatrix(part.test.x.numpy()) for part in parts]
    return _figures(parts, [booster.predict(one, output_margin=True) for one in tested])


def compared() -> Iterator[str]:
    """Yield lines of the table of methods on both tables, means and standard errors over seeds."""
    trees: dict[str, Value] = {
        "method": "trees", "trees.depth": DEPTH, "boosting.eta": ETA, "boosting.bins": BINS, "rounds": ROUNDS,
    }  # fmt: skip
    for name, own in TABLES.items():
        common: dict[str, Value] = {
            "dataset": name,
            "metrics": "accuracy,auroc",
            "participation": 1.0,
            "task": "binary",
        }
        mlp = {**common, **own, "method": "fedavg", "model": "mlp", "local-epochs": 2, "batch-size": 16, **MLP[name]}
        runs: dict[str, dict[str, Value]] = {
            "`trees`": {**common, **own, **trees},
            "`trees`, secure sums": {**common, **own, **trees, "secure-aggregation": True},
            "`trees`, leaves half refitted": {**common, **own, **trees, "boosting.refit": 0.5},
            "`fedavg`, `mlp`": mlp,
            "`local`, `mlp`": {**mlp, "method": "local"},
        }
        for what, keys in runs.items():
            found = [_run(**{**keys, "seed": seed}) for seed in SEEDS]
            costs = [statistics.median(one[word] for one in found) for word in ("bytes_up", "seconds")]
            figures = [one["final"]["seen"] for one in found]
            yield f"| {name} | {what} | {_cells(figures)} | {costs[0] / 1e6:.1f} | {costs[1]:.1f} |"
        pooled = [_pooled({**own, "dataset": name, "task": "binary"}, seed) for seed in SEEDS]
        yield f"| {name} | XGBoost, pooled | {_cells(pooled)} | – | – |"


def _cells(figures: Sequence[Mapping[str, float]]) -> str:
    """Return mean ± standard error over seeds of accuracy and AUROC."""
    found = []
    for name in ("accuracy", "auroc"):
        values = [one[name] for one in figures]
        found.append(f"{np.mean(values):.3f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.3f}")
    return " | ".join(found)


if __name__ == "__main__":
    if "FLORILEGIUM_DATA" not in os.environ:
        raise SystemExit("FLORILEGIUM_DATA must name the folder of the data")
    for part in (compared, memory):
        print(f"\n{part.__name__}")
        for line in part():
            print(line, flush=True)
