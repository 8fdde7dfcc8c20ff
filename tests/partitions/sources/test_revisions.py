"""Revisions of the hub's datasets: which commit is read, what is recorded and warned of, what is refused."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import datasets
import pytest

from florilegium.apps.origins.hashes import origins_of
from florilegium.apps.settings.configuration import parse
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import Value
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.loading import check_local, load_dataset
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.sources.source import DATA_VARIABLE
from tests.partitions.made import make, write
from tests.support import config

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "hf://datasets/org/own@{}/data/train.parquet"


class Hub:
    """Stands in for ``datasets.load_dataset``: a repository with as many rows as its revision has letters.

    Attributes:
        asked: the revisions that it was asked for.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, name: str, subset: str | None, *, revision: str) -> dict[str, datasets.Dataset]:
        self.asked.append(revision)
        if revision == "gone":
            raise FileNotFoundError("no such revision")
        if name == "ylecun/mnist":
            table = make("mnist", 3 * len(revision)).table
            return {part: datasets.Dataset(table) for part in ("train", "test")}
        count = len(revision)
        split = datasets.Dataset.from_dict(
            {"a": [*range(count)], "b": [0.5] * (count - 1) + [1.5], "label": [0, 1] * (count // 2)}
        )
        at = revision if len(revision) == len(COMMIT) else COMMIT
        split.info.download_checksums = {REPOSITORY.format(at): {"num_bytes": 1, "checksum": None}}
        return {"train": split, "test": split}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, and no local copies."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(datasets, "load_dataset", found := Hub())
    return found


def _keys(tmp_path: Path, **keys: Value) -> dict[str, Value]:
    return config(
        cache_dir=str(tmp_path / "cache"), data_dir="", model="linear", num_clients=2, partitioner="iid", **keys
    )


def _rows(tmp_path: Path, **keys: Value) -> int:
    settings = FederationSettings.model_validate({"cache_dir": str(tmp_path / "cache"), "data_dir": "", **keys})
    return len(load_dataset(settings).train)


def test_revisions_of_the_suite_are_commits() -> None:
    named = {spec.hub: spec.revision for spec in DATASETS.own.values() if getattr(spec, "revision", "")}
    assert {"uoft-cs/cifar10", "uoft-cs/cifar100", "ylecun/mnist", "zalando-datasets/fashion_mnist"} <= named.keys()
    assert all(re.fullmatch("[0-9a-f]{40}", revision) for revision in named.values())
    assert all(DATASETS.own[name].revision == named["uoft-cs/cifar10"] for name in ("cifar10", "cifar10_c"))


@pytest.mark.parametrize(
    ("keys", "asked", "warned"),
    [
        ({"dataset": "mnist"}, DATASETS.own["mnist"].revision, ""),
        ({"dataset": "mnist", "dataset_revision": "v1.0"}, "v1.0", "'v1.0' may move;"),
        ({"dataset": "hub:org/own"}, "main", f"'main' may move, and is commit {COMMIT} now;"),
        ({"dataset": "hub:org/own", "dataset_revision": COMMIT}, COMMIT, ""),
    ],
)
def test_the_revision_that_is_read_is_recorded_and_a_branch_is_warned_of(
    keys: dict[str, Value], asked: str, warned: str, tmp_path: Path, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    whole = _keys(tmp_path, **keys)
    with caplog.at_level(logging.WARNING, "flwr"):
        origins = origins_of(whole, parse(whole)[0])
    assert hub.asked == [asked]
    assert origins["revision of the dataset"] == asked
    assert ("may move" in caplog.text) == bool(warned)
    assert warned in caplog.text


@pytest.mark.parametrize("dataset", ["mnist", "hub:org/own"])
def test_revisions_have_places_of_their_own_in_the_cache(dataset: str, tmp_path: Path, hub: Hub) -> None:
    sizes = {
        revision: _rows(tmp_path, dataset=dataset, dataset_revision=revision) for revision in ("v1", "main", "v2.0")
    }
    assert len({*sizes.values()}) == 2  # v2.0 and main have four letters
    assert _rows(tmp_path, dataset=dataset, dataset_revision="v1") == sizes["v1"]
    assert hub.asked == ["v1", "main", "v2.0"]


def test_a_revision_that_is_not_there_is_named_with_its_key(tmp_path: Path, hub: Hub) -> None:
    with pytest.raises(
        DataError, match=r"'ylecun/mnist' at revision 'gone' \(key dataset-revision\): FileNotFoundError"
    ):
        _rows(tmp_path, dataset="mnist", dataset_revision="gone")


@pytest.mark.parametrize("dataset", ["digits", "synthetic-linear", "mnist"])
def test_a_key_without_effect_is_refused(dataset: str, tmp_path: Path) -> None:
    write(tmp_path, "mnist", train=3, test=3)
    keys: dict[str, Value] = {"dataset": dataset, "cache_dir": str(tmp_path / "cache"), "data_dir": str(tmp_path)}
    check_local(FederationSettings.model_validate(keys))
    with pytest.raises(
        ConfigurationError, match=f"dataset-revision: the rows of '{dataset}' are not read from the hub"
    ):
        check_local(FederationSettings.model_validate({**keys, "dataset_revision": "v1"}))


def test_local_copies_have_no_revision(tmp_path: Path) -> None:
    write(tmp_path, "mnist", train=40, test=40)
    whole = {**_keys(tmp_path, dataset="mnist"), "data-dir": str(tmp_path)}
    assert "revision of the dataset" not in origins_of(whole, parse(whole)[0])
