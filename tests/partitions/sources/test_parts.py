"""What names in a data folder mean: parts, shards, copies, and files that are not read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.describing import decisions
from florilegium.partitions.device_data import read_device
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.settings import SourceSettings
from florilegium.partitions.sources.folders import read_folder
from florilegium.partitions.sources.parts import contents, part_of
from florilegium.partitions.sources.schema import read_schema


def _rows(first: int, count: int = 5) -> str:
    return "x,label\n" + "".join(f"{number}.5,{number % 2}\n" for number in range(first, first + count))


def _put(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def _clients(folder: Path) -> dict[str, list[float]]:
    table = read_folder(folder)[0]["train"]
    found: dict[str, list[float]] = {}
    for name, x in zip(table.column("client").to_pylist(), table.column("x").to_pylist(), strict=True):
        found.setdefault(name, []).append(x)
    return found


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train", "train"), ("TRAINING", "train"), ("train_1", "train"), ("Hold_Out", "test"), ("evaluation", "test"),
        ("test2", "test"), ("val2017", "validation"), ("dev", "validation"), ("dev1", ""), ("trainee", ""),
        ("validate", ""), ("site-test", ""), ("alice", ""), ("7", ""),
    ],
)  # fmt: skip
def test_words_and_what_they_mean(name: str, part: str) -> None:
    assert part_of(name) == part


@pytest.mark.parametrize("other", ["test", "Validation", "holdout", "val2017", "all", "dev"])
def test_reserved_words_beside_clients_are_refused(tmp_path: Path, other: str) -> None:
    folder = _put(tmp_path, alice__csv=_rows(0), bob__csv=_rows(5), **{f"{other}.csv": _rows(10)})
    with pytest.raises(ConfigurationError, match=rf"'{other}\.csv' beside the files of clients \(.*alice"):
        read_folder(folder)


@pytest.mark.parametrize(
    "names",
    [
        ("a_train", "a_test"), ("site-1.train", "site-1.val"), ("Train A", "Test A"), ("train-a", "holdout-a"),
        ("berlin-training", "berlin-eval"),
    ],
)  # fmt: skip
def test_parts_of_a_client_in_files_of_their_own_are_no_clients(tmp_path: Path, names: tuple[str, str]) -> None:
    folder = _put(tmp_path, **{f"{name}.csv": _rows(5 * place) for place, name in enumerate((*names, "other"))})
    with pytest.raises(ConfigurationError, match="seem to be parts of the data of one client, '") as raised:
        read_folder(folder)
    assert all(f"'{name}'" in str(raised.value) for name in names)


@pytest.mark.parametrize("names", [("a_train", "b_train"), ("test-site", "site"), ("a_test", "b_val"), ("a-1", "a-2")])
def test_names_of_clients_may_have_such_words(tmp_path: Path, names: tuple[str, str]) -> None:
    folder = _put(tmp_path, **{f"{name}.csv": _rows(5 * place) for place, name in enumerate(names)})
    assert _clients(folder).keys() == {*names}


@pytest.mark.parametrize("suffix", ["csv", "CSV"])
def test_clients_below_a_part_are_refused_with_the_way_out(tmp_path: Path, suffix: str) -> None:
    for part in ("train", "test"):
        _put(tmp_path / part, **{f"{client}.{suffix}": _rows(0) for client in "ab"})
    with pytest.raises(DataError, match=r"train holds files of rows \(a.*, b.*\), which are no shards of one table"):
        read_folder(tmp_path)


def test_a_part_that_is_a_folder_beside_clients_is_refused(tmp_path: Path) -> None:
    for client in ("alice", "bob", "eval"):
        _put(tmp_path / client, train__csv=_rows(0))
    with pytest.raises(ConfigurationError, match="'eval' beside the files of clients"):
        read_folder(tmp_path)


@pytest.mark.parametrize("names", [("train-00000-of-00002", "train-00001-of-00002"), ("train_2", "train_10")])
def test_shards_of_a_part_are_one_table_in_the_order_of_their_numbers(tmp_path: Path, names: tuple[str, str]) -> None:
    _put(tmp_path, **{f"{name}.csv": _rows(10 * place) for place, name in enumerate(names)}, test__csv=_rows(50))
    tables, _ = read_folder(tmp_path)
    x = tables["train"].column("x").to_pylist()
    assert (x, tables["test"].num_rows) == ([n + 0.5 for n in [*range(5), *range(10, 15)]], 5)


def test_shards_of_a_client_are_one_client(tmp_path: Path) -> None:
    shards = {f"bob-0000{n}-of-00002.csv": _rows(10 * n) for n in range(2)}
    _put(tmp_path, alice__csv=_rows(50), **shards)
    assert _clients(tmp_path)["bob"] == [n + 0.5 for n in [*range(5), *range(10, 15)]]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    _put(tmp_path, **{f"train-0000{n}-of-00003.csv": _rows(n) for n in (0, 2)})
    with pytest.raises(DataError, match="2 of 3 shards"):
        read_folder(tmp_path)


def test_two_files_of_one_part_that_are_no_shards_are_refused(tmp_path: Path) -> None:
    _put(tmp_path, train__csv=_rows(0), test__csv=_rows(1), holdout__csv=_rows(2))
    with pytest.raises(DataError, match=r"holdout\.csv and test\.csv; keep one"):
        read_folder(tmp_path)


@pytest.mark.parametrize("copy", ["bob (1).csv", "bob - Copy.csv", "Copy of bob.csv", "bob.bak.csv", "bob_old.csv"])
def test_copies_beside_the_original_are_not_read_and_named(tmp_path: Path, copy: str) -> None:
    _put(tmp_path, alice__csv=_rows(0), bob__csv=_rows(5), **{copy: _rows(5)})
    tables, notes = read_folder(tmp_path)
    assert set(tables["train"].column("client").to_pylist()) == {"alice", "bob"}
    assert f"left out: 1 files and folders, not read: {copy} (a copy of bob.csv)" in notes


def test_a_name_like_a_copys_without_the_original_is_a_client(tmp_path: Path) -> None:
    _put(tmp_path, alice__csv=_rows(0), **{"ward (2).csv": _rows(5)})
    assert set(_clients(tmp_path)) == {"alice", "ward (2)"}


def test_what_is_not_read_is_named_with_its_number(tmp_path: Path) -> None:
    own = _put(tmp_path / "own", train__csv=_rows(0, 20), **{"more.zip": "", "a.csv.bak": "", "notes.txt": ""})
    (own / "raw").mkdir()
    keys = SourceSettings.model_validate({"dataset": str(own), "cache_dir": str(tmp_path / "cache")})
    dataset = load_dataset(keys)
    said = "left out: 4 files and folders, not read: a.csv.bak, more.zip, notes.txt, raw"
    assert said in decisions(dataset.spec, keys.cache_dir)


def test_a_validation_part_stands_in_for_tests_of_clients_and_of_a_table(tmp_path: Path) -> None:
    _put(tmp_path / "one", train__csv=_rows(0), val__csv=_rows(50))
    tables, notes = read_folder(tmp_path / "one")
    assert tables["test"].column("x").to_pylist() == [n + 0.5 for n in range(50, 55)]
    assert "test rows: part 'validation', as there is no part 'test'" in notes
    for client in ("a", "b"):
        _put(tmp_path / "two" / client, train__csv=_rows(0), valid__csv=_rows(50))
    tables, notes = read_folder(tmp_path / "two")
    assert tables["test"].num_rows == 10
    assert "test rows: part 'validation', as there is no part 'test' (clients: a, b)" in notes


def test_classes_may_have_names_of_parts(tmp_path: Path) -> None:
    for kind in ("valid", "invalid"):  # as of documents
        (tmp_path / "alice" / kind).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / "alice" / kind / f"{number}.png")
    table = read_folder(tmp_path)[0]["train"]
    assert sorted(table.column("label").to_pylist()) == ["invalid"] * 3 + ["valid"] * 3


def test_a_clone_of_the_hubs_repository_is_read(tmp_path: Path) -> None:
    data = tmp_path / "org" / "own" / "data"
    data.mkdir(parents=True)
    for name, first in (("train-00000-of-00002", 0), ("train-00001-of-00002", 8), ("validation-00000-of-00001", 40)):
        x = [float(n) for n in range(first, first + 8)]
        pq.write_table(pa.table({"x": x, "label": [n % 2 for n in range(8)]}), data / f"{name}.parquet")
    keys = {"dataset": "hub:org/own", "data_dir": str(tmp_path), "cache_dir": str(tmp_path / "cache")}
    dataset = load_dataset(SourceSettings.model_validate(keys))
    assert (len(dataset.train), len(dataset.test or [])) == (16, 8)


def test_a_device_reads_shards_and_takes_no_part_for_another(tmp_path: Path) -> None:
    schema = 'label = "label"\nlabels = ["0", "1"]\n[numbers]\nx = [0.0, 1.0]\n'
    _put(tmp_path / "schema", schema__toml=schema)
    site = _put(tmp_path / "site", **{f"train-{n}-of-2.csv": _rows(10 * n) for n in (1, 2)}, Holdout__csv=_rows(50))
    _put(site, **{"train (1).csv": _rows(90)})
    data = read_device(site, read_schema(tmp_path / "schema"))
    assert data.train.x[:, 0].tolist() == [n + 0.5 for n in [*range(10, 15), *range(20, 25)]]
    assert data.test.x[:, 0].tolist() == [n + 0.5 for n in range(50, 55)]
    assert "left out: 1 files and folders, not read: train (1).csv" in data.notes


def test_a_folder_without_anything_is_empty(tmp_path: Path) -> None:
    assert not contents(tmp_path / "nothing").parts
