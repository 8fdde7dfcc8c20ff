"""What travels to the nodes of a cluster: ``python -m benchmarks.cluster_bytes``, as root, on Linux.

Three nodes in network namespaces, the first of which has the command too. Prints, as Markdown tables, the bytes that
the other two receive in a round, and what share of a dataset's rows each node is sent (key ``data-from``).
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cluster import KEYS
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.cluster.nodes import Nodes, in_namespaces
from tests.cluster.runs import finished_round, log_of, running

FIRST, LAST = 2, 8
"""Bytes are counted from the end of one round to that of another."""


def measure(workers: int, keys: Mapping[str, Any]) -> tuple[float, float, float, str]:
    """Carry out a run on three nodes, with ``workers`` messages a round.

    Returns:
        MB a round that the second and third node received together; MB in the whole run; the median seconds of these
        rounds; and the log.
    """
    with tempfile.TemporaryDirectory() as made, in_namespaces(Path(made), 3) as nodes:
        for node in range(3):
            nodes.start(node)
        every: dict[str, Any] = {**KEYS, "rounds": LAST + 1, **keys}
        folder, counts, begun = Path(made), dict[int, int](), _received(nodes)
        with running(nodes, folder, workers, **every) as run:
            while run.poll() is None:
                counts.setdefault(finished_round(folder), _received(nodes))
                time.sleep(0.01)
            whole = _received(nodes) - begun
            if run.returncode:
                raise RuntimeError((folder / "run.out").read_text()[-2000:])
        seconds = sorted(read_checkpoint(folder / "run").facts["seconds"][FIRST:LAST])
        each = (counts[LAST] - counts[FIRST]) / (LAST - FIRST)
        return each / 1e6, whole / 1e6, seconds[len(seconds) // 2], log_of(folder)


def _received(nodes: Nodes) -> int:
    return nodes.received(1) + nodes.received(2)


def models() -> None:
    """Print the bytes of the model, for two networks and for few and many messages."""
    print("| network | messages a round | MB a round | s a round |\n|---|---|---|---|")
    for model, samples in {"lenet": 50, "resnet18": 10}.items():
        for workers in (3, 12):
            keys: dict[str, Any] = {"model": model, "samples-per-client": samples, "cohort-size": 12}
            each, _, seconds, _ = measure(workers, keys)
            print(f"| `{model}` | {workers} | {each:.1f} | {seconds:.2f} |", flush=True)


def rows() -> None:
    """Print the share of the rows that each node was sent, and what it received in all."""
    print("| cohort | rows from | MB of the run | s a round | rows by node |\n|---|---|---|---|---|")
    for cohort in (48, 12):
        for source in ("folder", "store"):
            keys: dict[str, Any] = {"samples-per-client": 200, "cohort-size": cohort, "data-from": source}
            _, whole, seconds, log = measure(3, keys)
            said: list[Any] = re.findall(r"rows by node: (.*)", log)
            print(f"| {cohort} of 48 | {source} | {whole:.1f} | {seconds:.2f} | {'; '.join(said)} |", flush=True)


if __name__ == "__main__":
    for part in sys.argv[1:] or ("models", "rows"):
        {"models": models, "rows": rows}[part]()
