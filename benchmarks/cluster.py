"""Rounds on clusters of network namespaces: ``python -m benchmarks.cluster``, as root, on Linux.

Each node has a CPU of Ray's and a network of its own, but all share the processor's cores. Prints the seconds of a
round for one to three nodes, as a Markdown table: strong scaling (the same cohort) and weak scaling (a cohort for each
worker), and the ratio of three nodes to worker processes of one command, in turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import suite
from florilegium.common.settings import Value
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.cluster.nodes import in_namespaces
from tests.cluster.runs import running

COHORT, ROUNDS, TURNS = 12, 8, 3
KEYS: Mapping[str, Value] = {
    "method": "fedavg", "dataset": "benchmarks.vectorised:pictures", "partitioner": "iid", "model": "lenet",
    "num-clients": 48, "samples-per-client": 200, "local-epochs": 1, "batch-size": 10, "evaluate-every": 0,
    "evaluate-clients": 1,
}  # fmt: skip


def _median(path: Path) -> float:
    """Return the median seconds of a run's rounds after the third, without the last, which is evaluated."""
    return float(np.median(read_checkpoint(path).facts["seconds"][3:-1]))


def on_nodes(nodes: int, workers: int, cohort: int) -> float:
    """Return the seconds of a round on as many nodes, with as many messages as ``workers``."""
    keys: dict[str, Any] = {**KEYS, "cohort-size": cohort, "rounds": ROUNDS}
    with tempfile.TemporaryDirectory() as made, in_namespaces(Path(made), nodes) as cluster:
        for node in range(nodes):
            cluster.start(node)
        with running(cluster, Path(made), workers, **keys) as run:
            if run.wait(600):
                raise RuntimeError((Path(made) / "run.out").read_text()[-2000:])
        return _median(Path(made) / "run")


def in_processes(workers: int, cohort: int) -> float:
    """Return the seconds of a round with worker processes of one command."""
    with tempfile.TemporaryDirectory() as made:
        return _median(suite.run({**KEYS, "cohort-size": cohort, "rounds": ROUNDS}, workers, Path(made)))


def main() -> None:
    """Measure and print."""
    print("| nodes | workers | s, cohort of 12 | s, cohort of 6 for each worker |\n|---|---|---|---|")
    for nodes in (1, 2, 3):
        strong, weak = on_nodes(nodes, nodes, COHORT), on_nodes(nodes, nodes, nodes * COHORT // 2)
        print(f"| {nodes} | {nodes} | {strong:.2f} | {weak:.2f} |", flush=True)
    for workers in (1, 2, 4):
        strong, weak = in_processes(workers, COHORT), in_processes(workers, workers * COHORT // 2)
        print(f"| one command | {workers} | {strong:.2f} | {weak:.2f} |", flush=True)
    pairs = [(on_nodes(3, 3, COHORT), in_processes(3, COHORT)) for _ in range(TURNS)]
    ratios = [ours / theirs for ours, theirs in pairs]
    print(f"\nThree nodes ÷ three worker processes: {np.median(ratios):.2f} ({', '.join(f'{r:.2f}' for r in ratios)})")


if __name__ == "__main__":
    main()
