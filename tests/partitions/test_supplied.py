"""A client's data are the same, made of its own rows alone, on a machine that has none of the data."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from florilegium.apps.assembly.node_clients import SimulatedClients, SuppliedClients, Supply
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.memo import forget
from florilegium.common.seeds import torch_generator
from florilegium.partitions.clientdata import CPU, ClientRows, Examples
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of, task_of, tell
from tests.support import settings


@pytest.fixture(autouse=True)
def _forgetting() -> Iterator[None]:
    yield
    forget()


def _table(folder: Path) -> str:
    rng = np.random.default_rng(1)
    for part, count in (("train", 80), ("test", 20), ("val", 40)):
        rows = [f"{x:.4f},{z:.4f},{w:.4f},{i % 2}\n" for i, (x, z, w) in enumerate(rng.uniform(0, 9, (count, 3)))]
        folder.mkdir(exist_ok=True)
        (folder / f"{part}.csv").write_text("x,z,w,label\n" + "".join(rows))
    return str(folder)


def _read_only(rows: ClientRows) -> ClientRows:
    """Return rows as a worker maps them from the store."""
    found: ClientRows = pickle.loads(pickle.dumps(rows))
    for part in found.parts.values():
        for array in part:
            if array is not None:
                array.flags.writeable = False
    return found


def _equal(one: Examples, other: Examples) -> None:
    for name in ("x", "y", "weights"):
        first, second = getattr(one, name), getattr(other, name)
        assert (first is None) == (second is None)
        if first is not None:
            assert (first.dtype, first.stride()) == (second.dtype, second.stride())
            assert torch.equal(first, second)


@pytest.mark.parametrize(
    "keys",
    [
        {"canaries": 60, "labeled_fraction": 0.5},
        {"partitioner": "rotation", "angles": "0,90"},
        {"partitioner": "noise"},
        {"dataset": "table", "weight_column": "w", "standardise": "client", "validation_fraction": 0.25},
        {"dataset": "table", "standardise": "client", "class_weights": "balanced-federation"},
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_the_same_data(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {"num_clients": 4, "partitioner": "iid", **keys}
    if keys.get("dataset") == "table":
        keys |= {"dataset": _table(tmp_path / "own"), "model": "linear"}
    s = settings(**keys)
    here, federation, dataset = SimulatedClients(s, CPU), *federate(s)
    supply: Supply = pickle.loads(pickle.dumps(Supply.of(s)))
    there = SuppliedClients(supply, CPU)
    assert supply.described == dataset_of(s)
    assert supply.fingerprint == dataset.fingerprint
    if "class_weights" in keys:
        np.testing.assert_array_equal(there.class_counts(), here.class_counts())
    for client in range(4):
        rows = ClientRows.of(federation, dataset, client)
        assert rows.nbytes == sum(a.nbytes for part in rows.parts.values() for a in part if a is not None)
        there.give({str(client): _read_only(rows)})
        assert there.clients() == [str(client)]
        one, other = here.data(str(client)), there.data(str(client))
        assert len(rows) == len(one.train) + len(one.test) + one.own_validation
        assert (one.labeled, one.own_validation) == (other.labeled, other.own_validation)
        assert torch.equal(one.labels, other.labels)
        assert (one.train.weights is not None) == ("weight_column" in keys)
        _equal(one.train, other.train)
        _equal(one.test, other.test)
        held, kept = (
            data.hold_back(0.25, torch_generator(1, "validation", str(client)), task_of(s)) for data in (one, other)
        )
        _equal(held.validation, kept.validation)
        _equal(held.train, kept.train)


def test_rows_that_were_not_given() -> None:
    there = SuppliedClients(Supply.of(settings()), CPU)
    with pytest.raises(DataError, match="the rows of client '3' were not given to this node"):
        there.data("3")


def test_a_process_without_files_is_told_what_the_dataset_is(tmp_path: Path) -> None:
    spec = dataset_of(settings(dataset=_table(tmp_path / "own"), model="linear"))
    tell(spec)
    elsewhere = settings(dataset=str(tmp_path / "nowhere"), model="linear")
    assert dataset_of(elsewhere) == spec
    forget()
    with pytest.raises(ConfigurationError, match="nowhere"):
        dataset_of(elsewhere)
