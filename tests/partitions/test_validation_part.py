"""A validation part is used as one: by clients' names, or in their class proportions; nothing is held out then."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from florilegium.common.errors import DataError
from florilegium.common.memo import forget
from florilegium.common.seeds import torch_generator
from florilegium.partitions.clientdata import ClientData, simulated
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.device_data import read_device
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.remarks import remarks
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Federation
from florilegium.strategies.folder.metrics_file import read_metrics
from tests.grid import run_app
from tests.support import config, settings


def _write(path: Path, first: int, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{number},{number % 7},{number % 2}\n" for number in range(first, first + count))
    path.write_text("x,z,label\n" + rows)


def _table(tmp_path: Path, **keys: Any) -> FederationSettings:
    for part, first, count in (("train", 0, 80), ("test", 1000, 20), ("val", 2000, 40)):
        _write(tmp_path / "own" / f"{part}.csv", first, count)
    return settings(
        dataset=str(tmp_path / "own"), cache_dir=str(tmp_path / "cache"), model="linear", standardise="none",
        **{"partitioner": "iid", "num_clients": 4, **keys},
    )  # fmt: skip


def _sites(tmp_path: Path, **keys: Any) -> FederationSettings:
    for number, site in enumerate("abc"):
        parts = ("train", "test") if site == "c" else ("train", "test", "validation")
        for place, part in enumerate(parts):
            _write(tmp_path / "own" / site / f"{part}.csv", 1000 * place + 100 * number, 20)
    return settings(
        dataset=str(tmp_path / "own"), cache_dir=str(tmp_path / "cache"), model="linear", standardise="none",
        partitioner="natural", num_clients=0, **keys,
    )  # fmt: skip


def _client(keys: FederationSettings, client: int) -> ClientData:
    federation, dataset = federate(keys)
    data = simulated(federation, dataset, client)
    return data.hold_back(0.25, torch_generator(1, "validation", str(client)), dataset.spec.learned)


def _xs(examples: Any) -> set[int]:
    return {int(x) for x in examples.x[:, 0].tolist()}


def test_rows_are_drawn_in_each_clients_class_proportions_and_belong_to_one_client(tmp_path: Path) -> None:
    keys = _table(tmp_path)
    clients = [_client(keys, number) for number in range(4)]
    held = [_xs(client.validation) for client in clients]
    assert all(part and part <= {*range(2000, 2040)} for part in held)
    assert sum(map(len, held)) == len(set.union(*held))
    for client in clients:
        assert len(client.train) == 20  # nothing is held out
        for kind in range(2):
            expected = 0.5 * int((client.train.y == kind).sum())
            assert abs(int((client.validation.y == kind).sum()) - expected) <= 1


def test_natural_clients_have_their_own_and_others_hold_training_rows_out(tmp_path: Path) -> None:
    clients = [_client(_sites(tmp_path), number) for number in range(3)]
    assert [len(client.train) for client in clients] == [20, 20, 15]
    assert _xs(clients[0].validation) == {*range(2000, 2020)}
    assert _xs(clients[1].validation) == {*range(2100, 2120)}
    assert _xs(clients[2].validation) < {*range(200, 220)}


def test_without_the_key_the_part_is_left_out_and_said(tmp_path: Path) -> None:
    keys = _table(tmp_path)
    said = "dataset: left out: part 'validation', 40 rows, since validation-fraction is 0 or clients are of domains"
    assert said in remarks(keys).warnings
    federation, dataset = federate(keys)
    assert not len(simulated(federation, dataset, 0).validation)


@pytest.mark.parametrize("client", ["federation", "client"])
def test_clients_that_standardise_themselves_scale_their_validation_rows_too(tmp_path: Path, client: str) -> None:
    keys = _sites(tmp_path).model_copy(update={"standardise": client})
    data = _client(keys, 1)
    mean, std = (np.arange(100, 120), 1) if client == "client" else (np.r_[0:20, 100:120, 200:220], 1)
    expected = (np.arange(2100, 2120) - mean.mean()) / (mean.std() * std)
    np.testing.assert_allclose(data.validation.x[:, 0], expected, rtol=1e-4)


def test_a_federation_with_validation_rows_is_kept_in_the_cache(tmp_path: Path) -> None:
    federation, _ = federate(_table(tmp_path))
    assert federation.validation is not None
    federation.save(tmp_path / "f.npz")
    again = Federation.load(tmp_path / "f.npz")
    assert again.validation is not None
    assert again.validation.sizes.tolist() == federation.validation.sizes.tolist()


def test_a_run_measures_it_and_counts_all_training_rows(tmp_path: Path) -> None:
    own = _sites(tmp_path)
    keys: dict[str, Any] = {
        "dataset": own.dataset, "cache-dir": own.cache_dir, "partitioner": "natural", "num-clients": 0,
        "model": "linear", "rounds": 2, "participation": 1.0, "evaluate-every": 1, "validation-fraction": 0.25,
        "runs-dir": str(tmp_path / "runs"), "run-name": "r", "keep": "best",
    }  # fmt: skip
    run_app(config(**keys))
    path = tmp_path / "runs" / "r"
    with (path / "clients.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert {name: row["train_examples"] for name, row in rows.items()} == {"a": "20", "b": "20", "c": "15"}
    assert all(float(row["validation_loss"]) > 0 for row in rows.values())
    assert "validation_loss_median" in read_metrics(path)[-1]["seen"]
    assert "part 'validation', 40 rows" not in (path / "summary.json").read_text()  # it is used


@pytest.mark.parametrize("equal", [0, 1, 12, 40])
def test_validation_rows_that_are_training_rows_are_counted(tmp_path: Path, equal: int) -> None:
    keys = _table(tmp_path).model_copy(update={"validation_fraction": 0.25})
    lines = (tmp_path / "own" / "train.csv").read_text().splitlines()
    own = (tmp_path / "own" / "val.csv").read_text().splitlines()
    (tmp_path / "own" / "val.csv").write_text("\n".join([*lines[: equal + 1], *own[equal + 1 :]]) + "\n")
    forget()
    counted = (remarks(keys).duplicates or {}).get("validation_in_training", 0)
    assert counted == equal
    said = [one for one in remarks(keys).warnings if "of 40 validation rows" in one]
    assert [one.partition(" of 40")[0] for one in said] == [str(equal)] * bool(equal)
    if 0 < equal < 40:
        distinct = keys.model_copy(update={"duplicates": "drop"})
        _, dataset = federate(distinct)
        assert dataset.validation is not None
        assert len(dataset.validation) == 40 - equal


def test_a_devices_validation_rows_are_compared_too(tmp_path: Path) -> None:
    spec, folder = dataset_of(_sites(tmp_path)), _device(tmp_path / "d", train=20, test=6, val=5)
    _write(folder / "val.csv", 17, 5)
    assert "3 of 5 validation examples equal training examples" in read_device(folder, spec).notes
    assert read_device(folder, spec, duplicates="drop").own_validation == 2
    with pytest.raises(DataError, match="3 of 5 validation examples equal training examples"):
        read_device(folder, spec, duplicates="refuse")


# ---------------------------------------------------------------------------------------------- devices


def _device(folder: Path, **parts: int) -> Path:
    """Write a device's parts, each with so many rows."""
    for place, (part, count) in enumerate(parts.items()):
        _write(folder / f"{part}.csv", 1000 * place, count)
    return folder


@pytest.mark.parametrize("name", ["val", "validation", "dev", "valid"])
def test_a_devices_validation_rows_are_used_in_place_of_training_rows(tmp_path: Path, name: str) -> None:
    spec = dataset_of(_sites(tmp_path))
    data = read_device(_device(tmp_path / "d", train=20, test=6, **{name: 5}), spec)
    assert (len(data.train), len(data.test), data.own_validation, len(data.validation)) == (20, 6, 5, 0)
    held = data.hold_back(0.3, torch_generator(1), spec.learned)
    assert _xs(held.validation) == {2000, 2001, 2002, 2003, 2004}
    assert len(held.train) == 20
    assert [line for line in data.notes if line.startswith("part 'validation': 5 rows")]


def test_with_its_own_scales_a_device_scales_its_validation_rows_too(tmp_path: Path) -> None:
    keys = _sites(tmp_path).model_copy(update={"standardise": "client"})
    data = read_device(_device(tmp_path / "d", train=20, test=6, val=5), dataset_of(keys))
    assert data.own_validation == 5
    held = data.hold_back(0.3, torch_generator(1), dataset_of(keys).learned)
    train = np.arange(20)
    np.testing.assert_allclose(held.validation.x[:, 0], (np.arange(2000, 2005) - train.mean()) / train.std(), rtol=1e-5)


def test_shards_of_a_devices_validation_rows_are_one_part(tmp_path: Path) -> None:
    _device(tmp_path / "d", train=20, test=6)
    for shard in range(2):
        rows = pyarrow.table({"x": [float(shard)] * 3, "z": [1.0] * 3, "label": [0, 1, 0]})
        pyarrow.parquet.write_table(rows, tmp_path / "d" / f"validation-0000{shard}-of-00002.parquet")
    assert read_device(tmp_path / "d", dataset_of(_sites(tmp_path))).own_validation == 6


def test_without_test_rows_a_devices_validation_rows_are_its_test_rows(tmp_path: Path) -> None:
    spec = dataset_of(_sites(tmp_path))
    data = read_device(_device(tmp_path / "d", train=20, val=5), spec)
    assert (len(data.train), len(data.test), data.own_validation) == (20, 5, 0)
    assert len(data.hold_back(0.3, torch_generator(1), spec.learned).train) == 14


def test_a_device_without_labels_leaves_them_out_and_says_so(tmp_path: Path) -> None:
    folder = _device(tmp_path / "d", train=20, test=6, val=5)
    data = read_device(folder, dataset_of(_sites(tmp_path)), labeled=False)
    assert data.own_validation == 0
    assert [line for line in data.notes if "left out: part 'validation'" in line]


def test_pictures_of_a_device_may_have_a_validation_folder(tmp_path: Path) -> None:
    for number, part in enumerate(("train", "test", "val")):
        for label in range(2):
            (tmp_path / part / str(label)).mkdir(parents=True)
            for i in range(3):
                pixels = np.full((28, 28), 50 * number + 10 * label + i, np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / str(label) / f"{i}.png")
    data = read_device(tmp_path, DATASETS["mnist"])
    assert (len(data.train), len(data.test), data.own_validation) == (6, 6, 6)


def test_devices_validate_with_their_own_rows_and_train_on_all_others(tmp_path: Path) -> None:
    own = _sites(tmp_path)
    parts = {"a": {"train": 20, "test": 6, "val": 5}, "b": {"train": 20, "test": 6}}
    nodes = [
        {"client-id": name, "data-path": str(_device(tmp_path / "d" / name, **counts))}
        for name, counts in parts.items()
    ]
    keys: dict[str, Any] = {
        "dataset": own.dataset, "cache-dir": own.cache_dir, "model": "linear", "num-clients": 2, "rounds": 1,
        "participation": 1.0, "evaluate-every": 1, "validation-fraction": 0.25, "runs-dir": str(tmp_path / "runs"),
        "run-name": "r",
    }  # fmt: skip
    run_app(config(**keys), nodes)
    path = tmp_path / "runs" / "r"
    assert read_metrics(path)[-1]["training"]["clients"] == 2
    with (path / "clients.csv").open() as file:
        found = {row["client"]: row["train_examples"] for row in csv.DictReader(file)}
    assert found == {"a": "20", "b": "15"}
