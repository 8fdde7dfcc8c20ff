"""Reading and encoding a large CSV table, beside pandas and scikit-learn, each in a process of its own.

Run as a script with a kind and a folder, it reads ``<folder>/own/train.csv`` once in one of two ways, and prints the
seconds, the peak memory and the encoded array's size in bytes as JSON.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS, REPEATS = 1_000_000, 3
NUMBERS, CATEGORIES = 30, 10
_PAGE = 1024
"""Bytes in the unit of ``ru_maxrss`` on Linux."""


def write(folder: Path, rows: int) -> None:
    """Write a table of 30 numbers, 10 categories of 5 to 41 values each, and a label."""
    import pandas as pd

    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"n{i}": rng.normal(50, 10, rows).round(3) for i in range(NUMBERS - 5)}
    columns |= {f"i{i}": rng.integers(0, 1000, rows) for i in range(5)}
    for i in range(CATEGORIES):
        columns[f"c{i}"] = np.array([f"cat{k}" for k in range(5 + 4 * i)])[rng.integers(0, 5 + 4 * i, rows)]
    columns["label"] = rng.integers(0, 2, rows)
    (folder / "own").mkdir()
    pd.DataFrame(columns).to_csv(folder / "own" / "train.csv", index=False)


def ours(folder: Path) -> int:
    """Read and encode the table as a run does that has no cache; return the size of the encoded array."""
    from florilegium.partitions.loading import load_dataset
    from florilegium.partitions.settings import FederationSettings

    shutil.rmtree(folder / "cache", ignore_errors=True)
    keys = {"dataset": str(folder / "own"), "cache-dir": str(folder / "cache"), "partitioner": "iid"}
    return load_dataset(FederationSettings.model_validate(keys)).train.x.nbytes


def theirs(folder: Path) -> int:
    """Read and encode the table with pandas and scikit-learn; return the size of the encoded array."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame = pd.read_csv(folder / "own" / "train.csv")
    numbers = [name for name in frame if name[0] in "ni"]
    steps = [
        ("numbers", StandardScaler(), numbers),
        ("categories", OneHotEncoder(sparse_output=False, dtype=np.float32), [n for n in frame if n[0] == "c"]),
    ]
    size: int = ColumnTransformer(steps).fit_transform(frame).astype(np.float32).nbytes
    return size


KINDS = {"ours": ours, "theirs": theirs}


def _in_a_process(kind: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.tables", kind, str(folder)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def measure(rows: int = ROWS, repeats: int = REPEATS) -> dict[str, dict[str, float]]:
    """Return medians of seconds, peak memory and size of the array in bytes of each kind, measured in turn."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), rows)
        for _ in range(repeats):
            for kind, values in found.items():
                values.append(_in_a_process(kind, Path(folder)))
    return {
        kind: {name: float(np.median([one[name] for one in values])) for name in values[0]}
        for kind, values in found.items()
    }


def main() -> None:
    """Read the table in the way that the first argument names, and print what it cost."""
    import pandas  # noqa: F401  (imports are not measured)
    import sklearn.compose  # noqa: F401

    import florilegium.partitions.loading  # noqa: F401

    begun = time.perf_counter()
    size = KINDS[sys.argv[1]](Path(sys.argv[2]))
    seconds = time.perf_counter() - begun
    print(json.dumps({
        "seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PAGE, "array": size,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
