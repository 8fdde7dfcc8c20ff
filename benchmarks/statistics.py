"""Statistics beside the same analysis of all rows in one process: speed, and for ``python -m benchmarks.statistics``
the tables of docs/results/statistics.md: error, rounds, bytes, seconds, what rounded times change, coverage with ε.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.settings.configuration import complete
from florilegium.clients.hyper.statistics import GLMHyper
from florilegium.common.settings import Value
from florilegium.models.statistics.glm import FAMILIES, Rows, bounded_poisson, sums
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.privacy.accounting import multiplier
from florilegium.privacy.clipping import clip_rows
from florilegium.strategies.statistics.private_glm import PrivateGLM, linear, newton

Array = NDArray[np.float64]
REPEATS = 3
COMMON: Mapping[str, Value] = {"partitioner": "natural", "num-clients": 0, "rounds": 40, "evaluate-every": 0}
SURVIVAL = "age_at_index,ajcc_pathologic_t_T2,ajcc_pathologic_n_N1,ajcc_pathologic_n_N2,prior_malignancy_yes"


def _run(**keys: Value) -> dict[str, Any]:
    """Carry out a run in this process; return its summary."""
    with tempfile.TemporaryDirectory() as folder:
        named = {name.replace("_", "-"): value for name, value in keys.items()}
        path = run_here(complete({**COMMON, **named, "runs-dir": folder, "run-name": "run"}), Path(folder) / "run")
        found: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        return found


def _made(rows: int, columns: int, clients: int) -> tuple[str, Array, Array]:
    """Return a dataset of many rows, with a few test rows, and its inputs and targets."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    y = (rng.random(rows) < 1 / (1 + np.exp(-x[:, :5].sum(axis=1) * 0.4))).astype(np.int64)
    owners = np.char.add("c", (np.arange(rows) % clients).astype(str))
    few = slice(0, 2 * clients)
    name = array_dataset((x, y, owners), (x[few], y[few], owners[few]))
    return name, x.astype(np.float64), y.astype(np.float64)


def logistic(rows: int = 1_000_000, columns: int = 20, clients: int = 10) -> tuple[float, float, int]:
    """Return the seconds of all rounds of a logistic fit, those of as many pooled Newton steps, and the rounds."""
    data, x, y = _made(rows, columns, clients)
    ours, pooled, rounds = [], [], 0
    for _ in range(REPEATS):
        summary = _run(method="glm", dataset=data)
        ours.append(summary["seconds"])
        rounds, started = summary["rounds"], time.perf_counter()
        design, β = np.column_stack([np.ones(rows), x]), np.zeros(columns + 1)
        for _ in range(rounds):
            μ = 1 / (1 + np.exp(-design @ β))
            β += np.linalg.solve(design.T @ ((μ * (1 - μ))[:, None] * design), design.T @ (y - μ))
        pooled.append(time.perf_counter() - started)
    return statistics.median(ours), statistics.median(pooled), rounds


def describing(rows: int = 1_000_000, columns: int = 40, clients: int = 100) -> tuple[float, float]:
    """Return the seconds of a description, and those of pandas' ``describe`` with a histogram of each column."""
    import pandas as pd

    data, x, _ = _made(rows, columns, clients)
    frame = pd.DataFrame(x)
    ours, pooled = [], []
    for _ in range(REPEATS):
        ours.append(_run(method="describe", dataset=data, rounds=1, **{"describe.by-client": False})["seconds"])
        started = time.perf_counter()
        frame.describe()
        for column in frame:
            np.histogram(frame[column], 18)
        pooled.append(time.perf_counter() - started)
    return statistics.median(ours), statistics.median(pooled)


def memory(rows: int = 200_000, columns: int = 20) -> Iterator[str]:
    """Yield lines of the peak memory of a fit and of a description, by the number of clients of the same rows."""
    for clients in (100, 1000, 5000):
        data, _, _ = _made(rows, columns, clients)
        peaks = [_peak(f"_run(method={method!r}, dataset={data!r}, **{keys!r})") for method, keys in (
            ("glm", {}), ("describe", {"rounds": 1, "describe.by-client": False}), ("describe", {"rounds": 1}),
        )]  # fmt: skip
        yield f"| {clients:,} | " + " | ".join(f"{peak / 2**20:.0f}" for peak in peaks) + " |"


def _peak(code: str) -> int:
    """Return the peak memory, in bytes, of a process that carries out ``code`` in this module."""
    script = (
        f"import logging; from {__name__ if __name__ != '__main__' else 'benchmarks.statistics'} import _run\n"
        "logging.getLogger('flwr').setLevel(logging.ERROR)\n"
        f"{code}\nimport resource; print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout.rsplit("peak", 1)[1])


# ---------------------------------------------------------------------------------- the page of results


def _error(lines: list[dict[str, Any]], expected: Array) -> float:
    """Return the largest relative difference of coefficients."""
    found = np.array([line["coefficient"] for line in lines])
    return float(np.abs(found / expected - 1).max())


def _costs(summary: Mapping[str, Any]) -> str:
    return f"{summary['rounds']} | {summary['bytes_up'] / 1000:.0f} | {summary['seconds']:.2f}"


def fits() -> Iterator[str]:
    """Yield lines of the table of pooled against federated fits."""
    import pandas as pd
    import statsmodels.api as sm
    from lifelines import CoxPHFitter

    def train(name: str) -> Any:
        return load_dataset(FederationSettings(dataset=name, data_dir=os.environ["FLORILEGIUM_DATA"]))

    heart = train("fed-heart-raw").train
    pooled = sm.Logit(heart.y, sm.add_constant(np.asarray(heart.x, np.float64))).fit(disp=0, tol=1e-14)
    for what, secure in (("", False), (", secure sums", True)):
        summary = _run(method="glm", dataset="fed-heart-raw", **{"secure-aggregation": secure})
        error = _error(summary["glm"]["coefficients"], pooled.params)
        yield f"| Heart Disease, logistic{what} | {error:.1e} | {_costs(summary)} |"
    owners = pd.get_dummies(heart.clients["hospital"]).to_numpy(float)
    pooled = sm.Logit(heart.y, np.column_stack([np.asarray(heart.x, np.float64), owners])).fit(disp=0, tol=1e-14)
    summary = _run(method="glm", dataset="fed-heart-raw", **{"glm.intercept": "client"})
    error = _error(summary["glm"]["coefficients"], pooled.params[:13])
    yield f"| Heart Disease, intercepts of hospitals | {error:.1e} | {_costs(summary)} |"
    dataset = train("fed-tcga-brca")
    frame = pd.DataFrame(np.asarray(dataset.train.x, np.float64), columns=[*dataset.spec.table.numbers])
    frame = frame[SURVIVAL.split(",")].assign(T=dataset.train.y[:, 0], E=dataset.train.y[:, 1])
    options = {"precision": 1e-12, "max_steps": 200}
    for kind in ("stratified", "unstratified"):
        table = frame.assign(region=dataset.train.clients["region"]) if kind == "stratified" else frame
        strata = ["region"] if kind == "stratified" else None
        expected = CoxPHFitter().fit(table, "T", "E", strata=strata, fit_options=options)
        keys: dict[str, Value] = {"survival.cox": kind, "survival.columns": SURVIVAL}
        summary = _run(method="survival", dataset="fed-tcga-brca", **keys)
        lines = summary["survival"]["model"]["coefficients"]
        error = _error(lines, expected.params_[[line["name"] for line in lines]].to_numpy())
        yield f"| TCGA-BRCA, Cox {kind} | {error:.1e} | {_costs(summary)} |"


def rounding() -> Iterator[str]:
    """Yield lines of what public intervals change in an unstratified Cox model."""
    keys: dict[str, Value] = {"method": "survival", "dataset": "fed-tcga-brca", "survival.columns": SURVIVAL}
    exact = _run(**{**keys, "survival.cox": "unstratified"})
    lines = exact["survival"]["model"]["coefficients"]
    β, errors = (np.array([line[word] for line in lines]) for word in ("coefficient", "standard_error"))
    yield f"| none: exact | – | {exact['bytes_up'] / 1000:.0f} |"
    cases: list[tuple[str, dict[str, Value]]] = [
        (f"{w} days", {"survival.cox": "unstratified", "survival.width": float(w), "survival.horizon": 8760.0})
        for w in (30, 91, 182, 365)
    ]
    cases += [
        (f"{w} days, discrete", {"survival.cox": "discrete", "survival.width": float(w), "survival.horizon": 8760.0})
        for w in (30, 91, 182, 365)
    ]
    cases.append(("exact, stratified by region", {"survival.cox": "stratified"}))
    for what, more in cases:
        summary = _run(**{**keys, **more})
        other = np.array([line["coefficient"] for line in summary["survival"]["model"]["coefficients"]])
        yield f"| {what} | {np.abs((other - β) / errors).max():.2f} | {summary['bytes_up'] / 1000:.0f} |"


def coverage(repetitions: int = 200, rows: int = 4000) -> Iterator[str]:
    """Yield lines of how often 95 % intervals of private fits hold the true coefficients, and how wide they are."""
    true, clip, steps, bound = np.array([-0.3, 0.8, -0.5, 0.0]), 4.0, 6, 10.0
    family = FAMILIES["logistic"]
    for name in ("logistic", "linear", "poisson"):
        for epsilon in (0.5, 1.0, 4.0):
            inside, errors, plain = [], [], []
            for seed in range(repetitions):
                rng = np.random.default_rng(seed)
                z = np.column_stack([np.ones(rows), np.clip(rng.normal(size=(rows, 3)), -2, 2)])
                if name == "poisson":
                    step, information = _poisson(rng, true, epsilon, 5 * rows)
                    plain.append(np.sqrt(np.diag(np.linalg.inv(information))))
                elif name == "logistic":
                    z = clip_rows(z, clip)
                    each = np.sqrt(2 * steps) * multiplier("gaussian", epsilon, 1e-6)
                    scales = each * family.residual * clip, each * family.slope_norm * clip**2
                    y = (rng.random(rows) < 1 / (1 + np.exp(-z @ true))).astype(np.float64)[:, None]
                    θ = np.zeros((1, 4))
                    for _ in range(steps):
                        found = sums(family, Rows(z, y, np.ones(rows), np.zeros(rows)), θ)
                        step = newton(found["gradient"], found["hessian"], θ, scales, rng)
                        θ = step["theta"]
                    plain.append(np.sqrt(np.diag(np.linalg.inv(found["hessian"]))))
                else:
                    target = z @ true + rng.normal(size=rows)
                    joint = clip_rows(np.column_stack([z, np.clip(target / bound, -1, 1)]), clip)
                    step = linear(joint.T @ joint, multiplier("gaussian", epsilon, 1e-6) * clip**2, bound, rng)
                    plain.append(np.sqrt(np.diag(np.linalg.inv(z.T @ z))))
                error = np.sqrt(np.diag(step["covariance"]))
                inside.append(np.abs(step["theta"][0] - true) <= 1.96 * error)
                errors.append(error)
            share, wider = np.mean(inside), np.mean(errors) / np.mean(plain)
            lowest = np.mean(inside, axis=0).min()
            yield f"| {name} | {epsilon:g} | {share:.3f} | {lowest:.3f} | {wider:.1f} |"


def _poisson(rng: np.random.Generator, true: Array, epsilon: float, rows: int) -> tuple[dict[str, Array], Array]:
    """Return the last step of a private Poisson fit of made rows, and the exact Hessian there."""
    hyper = GLMHyper(privacy_unit="example", epsilon=epsilon, clip=4.0, steps=6, target_bound=12.0)
    private, family = PrivateGLM(hyper, "poisson"), bounded_poisson(12.0)
    z = clip_rows(np.column_stack([np.ones(rows), rng.normal(size=(rows, 3))]), 4.0)
    made = Rows(z, np.minimum(rng.poisson(np.exp(z @ true)), 12.0)[:, None], np.ones(rows), np.zeros(rows))
    step: dict[str, Array] = {"theta": np.zeros((1, 4))}

    def ask(phase: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Array], int]:
        return sums(family, made, step["theta"]), 1

    for _ in range(hyper.steps):
        step = private.step(ask, step["theta"], rng)
    return step, sums(family, made, step["theta"])["hessian"]


if __name__ == "__main__":
    for part in (fits, rounding, coverage, memory):
        print(f"\n{part.__name__}")
        for line in part():
            print(line, flush=True)
