"""Pictures in folders: what is read, resized, held back; leaving one domain out, whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from florilegium.apps.runs.transfer import transfer_once
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import Value
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.federation import federate
from florilegium.partitions.sources.picture_folders import write_picture_folders
from tests.runs import Runs
from tests.support import CACHE, load, settings

COLOURS = {"red": (200, 10, 10), "green": (10, 200, 10)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make three domains of red and green pictures, ten of each, of different sizes; return the dataset."""
    source, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(1)
    for domain, side in (("photo", 20), ("sketch", 24), ("paint", 33)):
        for name, colour in COLOURS.items():
            (source / domain / name).mkdir(parents=True)
            for i in range(10):
                pixels = np.clip(np.array(colour) + rng.integers(-9, 10, size=(side, side + 3, 3)), 0, 255)
                suffix = "png" if i % 2 else "jpg"
                Image.fromarray(pixels.astype(np.uint8)).save(source / domain / name / f"{i}.{suffix}")
    target = tmp_path_factory.mktemp("dataset")
    write_picture_folders(source, target, 16)
    return target


def test_pictures_labels_and_scales(folder: Path) -> None:
    dataset = load(str(folder), "", str(CACHE))
    assert dataset.spec.shape == (3, 16, 16)
    assert dataset.test is not None
    assert (len(dataset.train), len(dataset.test)) == (48, 12)
    assert dataset.spec.labels == ("green", "red")
    for split in (dataset.train, dataset.test):
        means = np.asarray(split.x).reshape(len(split), -1, 3).mean(axis=1)
        assert (means[:, 0] > means[:, 1]).tolist() == (split.y == 1).tolist()  # the red ones are labeled red
    pixels = np.asarray(dataset.train.x, np.float64).reshape(-1, 3) / 255
    assert dataset.spec.mean == pytest.approx(pixels.mean(axis=0), abs=1e-3)
    assert dataset.spec.std == pytest.approx(pixels.std(axis=0), abs=1e-3)


def test_domains_are_clients_and_one_may_be_left_out(folder: Path) -> None:
    keys: dict[str, Value] = {
        "dataset": str(folder), "model": "lenet", "partitioner": "natural", "client-column": "domain", "num-clients": 0,
        "client-rows": "domain=photo|paint",
    }  # fmt: skip
    federation, _ = federate(settings(**keys))
    assert sorted(federation.names) == ["paint", "photo"]
    assert federation.train.sizes.tolist() == [16, 16]
    assert federation.test.sizes.tolist() == [4, 4]


def test_leaving_one_domain_out(folder: Path, tmp_path: Path) -> None:
    run = Runs(
        tmp_path,
        {
            "method": "fedgtst", "model": "lenet", "dataset": str(folder), "partitioner": "natural", "num-clients": 0,
            "client-column": "domain", "client-rows": "domain=photo|paint", "participation": 1.0, "rounds": 3,
            "transfer-target": str(folder), "transfer-rows": "domain=sketch", "transfer-learning-rate": 0.01,
        },
    )  # fmt: skip
    path = run("run")
    transfer_once(path)
    final = json.loads((path / "summary.json").read_text())["final"]
    assert final["target"]["accuracy"] == 1.0  # red or green
    other = run("other", **{"transfer-rows": "domain=clip"})
    with pytest.raises(ConfigurationError, match="no value 'clip'"):
        transfer_once(other)


def test_folders_without_pictures(tmp_path: Path) -> None:
    for source in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match="<domain>/<class>"):
            write_picture_folders(source, tmp_path / "out", 16)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.png").write_text("no picture")
    with pytest.raises(DataError, match=r"c\.png is not a readable picture"):
        write_picture_folders(tmp_path, tmp_path / "out", 16)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("shape = [2, 16, 16]", "1 channel or 3"),
        ("mean = [0.5]", "a number for each"),
        ("std = [0.0, 1.0, 1.0]", "greater than 0"),
    ],
)
def test_schema_of_pictures(tmp_path: Path, change: str, said: str) -> None:
    key = change.partition(" =")[0]
    text = (
        'label = "label"\nlabels = ["a", "b"]\n[pictures]\ncolumn = "image"\n'
        + "".join(f"{k} = {v}\n" for k, v in {
            "shape": "[3, 16, 16]", "mean": "[0.5, 0.5, 0.5]", "std": "[0.2, 0.2, 0.2]",
        }.items() if k != key)
        + change
    )  # fmt: skip
    (tmp_path / "schema.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        find_spec(str(tmp_path))
