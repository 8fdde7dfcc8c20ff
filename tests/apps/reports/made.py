"""Runs made up for tests of reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from florilegium.apps.reports.run_records import RunRecord
from florilegium.common.settings import Value
from tests.support import config

Accuracies = dict[tuple[str, str], float]


def made_run(method: str = "fedavg", seed: int = 1, accuracies: Accuracies | None = None, **keys: Any) -> RunRecord:
    """Return a completed run whose clients have these final accuracies."""
    accuracies = {("seen", "0"): 0.5, ("seen", "1"): 0.7} if accuracies is None else accuracies
    clients = [{"group": g, "client": c, "accuracy": repr(a)} for (g, c), a in accuracies.items()]
    mean = float(np.mean([a for (group, _), a in accuracies.items() if group == "seen"] or [0.5]))
    final = {"seen": {"accuracy": mean, "loss": 1 - mean}}
    line = {"round": 2, "seconds": 1.5, "bytes_down": 1e6, "bytes_up": 1e6, **final}
    summary = {"final": final, "rounds": 2, "clients": keys.get("num-clients", 20), "seconds_per_round": 0.5, **line}
    values: dict[str, Value] = {"method": method, "seed": seed, **keys}
    origins = {"dataset": "d", "partition": f"p{seed}"}
    return RunRecord(Path(f"{method}-{seed}"), config(**values), summary, [line], clients, origins)


def made_accuracies(clients: int, seed: int, group: str = "seen") -> Accuracies:
    return {(group, str(i)): float(a) for i, a in enumerate(np.random.default_rng(seed).uniform(size=clients))}
