"""Folders with a file or folder for each client, and folders of one dataset without a schema."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.describing import decisions
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of, load_dataset
from florilegium.partitions.settings import SourceSettings
from tests.support import settings

ROWS = "size,town,label\n1,a,x\n2,b,y\n3,a,x\n4,b,y\n5,a,x\n"


def _keys(tmp_path: Path, **keys: object) -> SourceSettings:
    return SourceSettings.model_validate(
        {"dataset": str(tmp_path / "own"), "cache_dir": str(tmp_path / "cache"), **keys}
    )


def _put(tmp_path: Path, **files: str) -> Path:
    """Write text files; ``__`` in a name stands for a slash, and the suffix is .csv."""
    for name, text in files.items():
        path = tmp_path / "own" / f"{name.replace('__', '/')}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "own"


def _paint(folder: Path, shade: int, count: int, size: tuple[int, int] = (6, 6)) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", size, (shade, number, 0)).save(folder / f"{number}.png")


class TestClients:
    def test_names_stay_as_written_and_each_keeps_its_rows(self, tmp_path: Path) -> None:
        folder = _put(tmp_path, alice__train=ROWS, alice__test="size,town,label\n9,b,x\n", **{"007": ROWS})
        table = {"town": ["a", "b"], "label": ["y", "y"], "size": [10, 20]}
        pq.write_table(pa.table(table), folder / "bob.parquet")
        keys = _keys(tmp_path)
        dataset = load_dataset(keys)
        names, counts = np.unique(dataset.train.clients["client"], return_counts=True)
        assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {"007": 4, "alice": 5, "bob": 2}
        tested = dataset.test.clients["client"].tolist()  # type: ignore[union-attr]
        assert sorted(tested) == ["007", "alice"]  # a fifth of 007's; of bob's two rows none
        assert any("1 of 3 clients have files" in line for line in decisions(dataset.spec, keys.cache_dir))
        options = settings(dataset=str(folder), partitioner="natural", num_clients=0, model="linear")
        federation, found = federate(options)
        held = {name: found.train.y[federation.train[i]] for i, name in enumerate(federation.names)}
        assert {name: len(rows) for name, rows in held.items()} == {"007": 4, "alice": 5, "bob": 2}
        assert held["bob"].tolist() == [1, 1]
        test = federation.test[federation.names.tolist().index("alice")]
        mean = np.mean([1, 2, 3, 4, 5] * 2 + [10, 20])
        assert found.test is not None
        assert len(test) == 1
        assert abs(found.test.x[test[0], 0] - (9 - mean) / np.std([1, 2, 3, 4, 5] * 2 + [10, 20])) < 0.2

    def test_without_test_files_there_is_no_test_split(self, tmp_path: Path) -> None:
        _put(tmp_path, a=ROWS, b=ROWS)
        assert load_dataset(_keys(tmp_path)).test is None

    def test_pictures(self, tmp_path: Path) -> None:
        own = tmp_path / "own"
        for path, shade in (("carol/train/cat", 0), ("carol/test/dog", 50), ("dave/cat", 100), ("dave/dog", 200)):
            _paint(own / path, shade, 2)
        (own / ".DS_Store").write_text("")
        dataset = load_dataset(_keys(tmp_path))
        assert (dataset.spec.kind, dataset.spec.shape, dataset.spec.labels) == ("image", (3, 6, 6), ("cat", "dog"))
        train = zip(dataset.train.clients["client"], dataset.train.x[:, 0, 0, 0], dataset.train.y, strict=True)
        assert {(str(a), int(b), int(c)) for a, b, c in train} <= {("carol", 0, 0), ("dave", 100, 0), ("dave", 200, 1)}
        assert dataset.test is not None
        assert dataset.test.y[dataset.test.clients["client"] == "carol"].tolist() == [1, 1]

    def test_a_schema_beside_the_clients_is_used(self, tmp_path: Path) -> None:
        folder = _put(tmp_path, a=ROWS, b=ROWS)
        (folder / "schema.toml").write_text('label = "label"\nlabels = ["y", "x"]\n[numbers]\nsize = [1.0, 2.0]\n')
        dataset = load_dataset(_keys(tmp_path))
        assert dataset.spec.client_columns == ("client",)
        np.testing.assert_array_equal(dataset.train.x[:, 0], np.tile([0, 0.5, 1, 1.5, 2], 2))
        assert dataset.train.y.tolist() == [1, 0, 1, 0, 1] * 2
        with pytest.raises(ConfigurationError, match=r"label-column: the columns of .* are described already"):
            dataset_of(_keys(tmp_path, label_column="town"))

    def test_a_folder_of_one_dataset_has_no_clients(self, tmp_path: Path) -> None:
        _put(tmp_path, train=ROWS, test=ROWS)
        dataset = load_dataset(_keys(tmp_path))
        assert dataset.spec.client_columns == ()
        assert (len(dataset.train), len(dataset.test or [])) == (5, 5)

    def test_numbers_of_names_stay_text(self, tmp_path: Path) -> None:
        _put(tmp_path, a="zip,label\n007,x\n010,y\n007,x\n010,y\n", b="zip,label\n007,x\n010,y\n")
        assert dataset_of(_keys(tmp_path, input_column="zip")).kind == "characters"

    def test_what_a_missing_number_is_called_may_be_a_category(self, tmp_path: Path) -> None:
        _put(tmp_path, a=ROWS.replace(",a,", ",NA,"))
        assert dataset_of(_keys(tmp_path)).table.categories == {"town": ("NA", "b")}  # type: ignore[union-attr]

    def test_numbers_too_long_for_integers_are_numbers(self, tmp_path: Path) -> None:
        _put(tmp_path, a="size,label\n" + "".join(f"{10**20 * n},{'xy'[n % 2]}\n" for n in range(1, 7)))
        np.testing.assert_allclose(load_dataset(_keys(tmp_path)).train.x.std(), 1, rtol=1e-5)

    def test_a_dataset_called_digits_is_not_the_suites(self, tmp_path: Path) -> None:
        folder = _put(tmp_path, train=ROWS)
        (folder / "schema.toml").write_text(
            'name = "digits"\nlabel = "label"\nlabels = ["x", "y"]\n[numbers]\nsize = [1.0, 2.0]\n'
        )
        np.testing.assert_array_equal(load_dataset(_keys(tmp_path)).train.x[:, 0], [0, 0.5, 1, 1.5, 2])


class TestRefused:
    @pytest.mark.parametrize(
        ("files", "said"),
        [
            ({"a": ROWS, "b": "size,label\n1,x\n"}, r"b\.csv has no column 'town', which .*a\.csv has"),
            ({"a": ROWS, "b": ROWS.replace("town", "TOWN")}, r"b\.csv has no column 'town'"),
            ({"a": ROWS, "b": ""}, r"b\.csv is empty"),
            ({"a": ROWS, "b": "size,town,label\n"}, "client 'b' has no training rows"),
            ({"a": ROWS, "b__test": ROWS}, "client 'b' has no training rows"),
            ({"a": ROWS, "a__train": ROWS}, r"client 'a' has a/ and a\.csv; keep one"),
            ({"a": ROWS.replace("town", "client"), "b": ROWS.replace("town", "client")}, "a column 'client'"),
            ({"a": ROWS, "b__train": ROWS, "b__test": "size,town,label\n1,a,z\n"}, "no training row has: z"),
            ({"a": ROWS + "6,a,\n"}, "column 'label' has no label in row 5, 1 rows in all"),
            ({"a": ROWS + ",a,x\n"}, "column 'size' has no number in row 5"),
            ({"a": ROWS + "NA,a,x\n"}, "column 'size' has no number in row 5"),
            ({"a": ROWS, "b": ROWS + "?,a,x\nnan,a,y\n"}, "column 'size' has no number in row 10, 2 rows in all"),
        ],
    )
    def test_files(self, tmp_path: Path, files: dict[str, str], said: str) -> None:
        _put(tmp_path, **files)
        with pytest.raises(DataError, match=said):
            dataset_of(_keys(tmp_path))

    def test_folders_that_are_no_datasets(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"there is no folder .*own"):
            dataset_of(_keys(tmp_path))
        (tmp_path / "own" / "notes").mkdir(parents=True)
        (tmp_path / "own" / "readme.txt").write_text("")
        with pytest.raises(
            ConfigurationError, match=r"\(found: notes, readme.txt\). Possible are: \(1\).*\(2\).*\(3\)"
        ):
            dataset_of(_keys(tmp_path))

    def test_types_that_differ(self, tmp_path: Path) -> None:
        folder = _put(tmp_path)
        folder.mkdir()
        pq.write_table(pa.table({"size": [1, 2], "label": ["x", "y"]}), folder / "a.parquet")
        pq.write_table(pa.table({"size": ["1", "2"], "label": ["x", "y"]}), folder / "b.parquet")
        with pytest.raises(DataError, match=r"column 'size' has several types: int64 in .*a\.parquet; string in"):
            dataset_of(_keys(tmp_path))
