"""What a process keeps of clients' examples: a value of each, up to a bound, and in runs what is read only once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from florilegium.clients.core.kept import Kept
from florilegium.partitions import clientdata
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.partitions.spec import Dataset
from tests.runs import Runs
from tests.support import CACHE


def test_a_value_is_made_once_and_replaced_by_one_of_another_key() -> None:
    made: list[tuple[str, int | None]] = []

    def make(name: str) -> Callable[[int | None], tuple[int, int]]:
        def made_from(before: int | None) -> tuple[int, int]:
            made.append((name, before))
            return len(made), 10

        return made_from

    store = Kept(25)
    assert [store.get("a", b"1", make("a1")) for _ in range(3)] == [1, 1, 1]
    assert store.get("a", b"2", make("a2")) == 2
    assert store.get("b", b"1", make("b1")) == 3
    assert [store.get("c", b"1", make("c1")) for _ in range(2)] == [4, 5]  # no room for a third
    assert store.get("a", b"2", make("a2")) == 2  # what was there is not pushed out
    assert made == [("a1", None), ("a2", 1), ("b1", None), ("c1", None), ("c1", None)]


def test_a_fit_reads_its_rows_once_if_they_fit_and_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without what is kept, the same numbers; with it, each client's training rows are decoded once."""
    rng = np.random.default_rng(0)
    x, owners = rng.normal(size=(300, 3)).astype(np.float32), np.char.add("c", (np.arange(300) % 3).astype(str))
    y = (rng.random(300) < 1 / (1 + np.exp(-x[:, 0]))).astype(np.int64)
    data = array_dataset((x, y, owners), (x[:6], y[:6], owners[:6]), cache_dir=str(CACHE))
    decoded, reads, found = clientdata.decoded, list[str](), dict[int, object]()

    def counted(federation: object, dataset: Dataset, client: int, part: str) -> object:
        reads.append(part)
        return decoded(federation, dataset, client, part)  # type: ignore[arg-type]

    monkeypatch.setattr(clientdata, "decoded", counted)
    for bound in (2**20, 0):
        reads.clear()
        monkeypatch.setattr(Kept.__init__, "__defaults__", (bound,))
        run = Runs(tmp_path / str(bound), {
            "method": "glm", "partitioner": "natural", "num-clients": 0, "rounds": 20, "evaluate-every": 0,
        })  # fmt: skip
        path = run("fit", dataset=data)
        found[bound] = json.loads((path / "summary.json").read_text())["glm"]
        assert (reads.count("train") == 3) is (bound > 0)
    assert found[2**20] == found[0]
