"""Schemas that are inferred: the Hugging Face hub's datasets, local and loaded, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.clientdata import to_inputs
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.describing import decisions
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of, load_dataset
from florilegium.partitions.settings import SourceSettings
from tests.partitions.made import IMAGE, png
from tests.support import settings

NAME = "hub:org/own"


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLORILEGIUM_DATA", raising=False)


def _keys(tmp_path: Path, **keys: object) -> SourceSettings:
    options = {"dataset": NAME, "data_dir": str(tmp_path / "data"), "cache_dir": str(tmp_path / "cache"), **keys}
    return SourceSettings.model_validate(options)


def _write(tmp_path: Path, name: str = "org/own", **parts: dict[str, object] | pa.Table) -> None:
    folder = tmp_path / "data" / name
    folder.mkdir(parents=True, exist_ok=True)
    for part, columns in parts.items():
        pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), folder / f"{part}.parquet")


def _pictures(sizes: list[tuple[int, int]], seed: int = 0) -> tuple[list[np.ndarray], pa.Array]:
    rng = np.random.default_rng(seed)
    pixels = [rng.integers(256, size=(height, width), dtype=np.uint8) for height, width in sizes]
    return pixels, pa.array([png(image) for image in pixels], IMAGE)


TABLE: dict[str, object] = {
    "id": [1, 2, 3, 4],
    "age": [20, 40, 40, 60],
    "town": ["b", "a", "b", "a"],
    "old": [False, True, True, True],
    "flat": [3.0] * 4,
    "user": ["u", "v", "u", "v"],
    "label": ["no", "yes", "yes", "no"],
}


class TestHub:
    def test_class_labels_keep_their_names_and_order(self, tmp_path: Path) -> None:
        features = datasets.Features(
            {"image": datasets.Image(), "kind": datasets.ClassLabel(names=["z", "a", "never"])}
        )
        pixels, _ = _pictures([(4, 5)] * 4)
        rows = {"image": [Image.fromarray(image) for image in pixels], "kind": [0, 1, 1, 0]}
        (tmp_path / "data" / "org" / "own").mkdir(parents=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(
            tmp_path / "data" / "org" / "own" / "train.parquet"
        )
        dataset = load_dataset(_keys(tmp_path))
        assert (dataset.spec.kind, dataset.spec.shape, dataset.spec.labels) == ("image", (1, 4, 5), ("z", "a", "never"))
        assert dataset.train.y.tolist() == [0, 1, 1, 0]
        np.testing.assert_array_equal(dataset.train.x[..., 0], np.stack(pixels))
        inputs = to_inputs(dataset.spec, np.array(dataset.train.x))
        assert abs(inputs.mean().item()) < 1e-3
        assert abs(inputs.std(unbiased=False).item() - 1) < 1e-3
        assert isinstance(dataset.train.x, np.memmap)

    @pytest.mark.parametrize(("splits", "test"), [(("train", "test", "extra"), 3), (("train", "validation"), 2)])
    def test_the_hub_is_asked_and_its_splits_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...], test: int
    ) -> None:
        sizes = {"train": 4, "test": 3, "extra": 5, "validation": 2}
        asked: list[tuple[str, str | None, str]] = []

        def load(name: str, config: str | None, *, revision: str) -> dict[str, datasets.Dataset]:
            asked.append((name, config, revision))
            every = datasets.Dataset.from_dict(TABLE)
            return {split: every.select(range(sizes[split] % 4 or 4)) for split in splits}

        monkeypatch.setattr(datasets, "load_dataset", load)
        keys = _keys(tmp_path, data_dir="", dataset="hub:org/own/small", input_column="age")
        dataset = load_dataset(keys)
        assert asked == [("org/own", "small", "main")]
        assert (len(dataset.train), len(dataset.test or [])) == (4, test)
        said = " ".join(decisions(dataset.spec, keys.cache_dir))
        assert ("left out: 1 splits: extra" in said) == ("extra" in splits)
        assert ("part 'validation'" in said) == ("validation" in splits)

    def test_a_table(self, tmp_path: Path) -> None:
        _write(tmp_path, train=TABLE, test={name: cells[:2] for name, cells in TABLE.items()})  # type: ignore[index]
        keys = _keys(tmp_path)
        dataset = load_dataset(keys)
        z = (np.array([20, 40, 40, 60]) - 40) / np.sqrt(200)
        expected = np.array([[z[0], 0, 1, 1, 0], [z[1], 1, 0, 0, 1], [z[2], 0, 1, 0, 1], [z[3], 1, 0, 0, 1]])
        np.testing.assert_allclose(dataset.train.x, expected, atol=1e-5)  # age; town a, b; old False, True
        np.testing.assert_allclose(dataset.test.x, expected[:2], atol=1e-5)  # type: ignore[union-attr]
        assert dataset.spec.labels == ("no", "yes")
        assert dataset.spec.client_columns == ("user",)
        assert any("'flat', which is 3 in all" in line for line in decisions(dataset.spec, keys.cache_dir))
        assert any("not used: id" in line for line in decisions(dataset.spec, keys.cache_dir))

    def test_a_missing_category_is_a_category(self, tmp_path: Path) -> None:
        towns = ["b", None, "b", "  "]
        _write(tmp_path, train={**TABLE, "town": towns}, test={**TABLE, "town": [None] * 4})
        keys = _keys(tmp_path)
        dataset = load_dataset(keys)
        assert dataset.train.x[:, 1:3].tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]  # town: "", b
        assert dataset.test.x[:, 1:3].tolist() == [[1, 0]] * 4  # type: ignore[union-attr]
        assert any("'town': a missing value is a category" in line for line in decisions(dataset.spec, keys.cache_dir))

    def test_named_clients_and_other_columns_make_federations(self, tmp_path: Path) -> None:
        _write(tmp_path, train={name: list(cells) * 3 for name, cells in TABLE.items()})  # type: ignore[call-overload]
        keys = {"dataset": NAME, "data_dir": str(tmp_path / "data"), "num_clients": 0, "partitioner": "natural"}
        for column, names in (("", ["u", "v"]), ("town", ["a", "b"])):
            federation, _ = federate(settings(**keys, client_column=column, model="linear"))
            assert sorted(federation.names) == names

    def test_of_several_columns_of_names_one_must_be_chosen(self, tmp_path: Path) -> None:
        both = {**TABLE, "patient_id": [1, 1, 2, 2]}  # beside "user"
        _write(tmp_path, train={name: list(cells) * 3 for name, cells in both.items()})  # type: ignore[call-overload]
        keys = {"dataset": NAME, "data_dir": str(tmp_path / "data"), "num_clients": 0, "partitioner": "natural"}
        with pytest.raises(
            ConfigurationError, match=r"name one of 'hub:org/own' with client-column: .*patient_id.*user"
        ):
            federate(settings(**keys, model="linear"))
        federation, _ = federate(settings(**keys, client_column="patient_id", model="linear"))
        assert sorted(federation.names) == ["1", "2"]
        assert federate(settings(dataset=NAME, data_dir=str(tmp_path / "data"), num_clients=2, partitioner="iid"))

    def test_texts(self, tmp_path: Path) -> None:
        _write(tmp_path, train={"sentence": ["abc", "de", "fghij"], "idx": [0, 1, 2], "label": [7, 3, 7]})
        dataset = load_dataset(_keys(tmp_path))
        assert (dataset.spec.kind, dataset.spec.shape, dataset.spec.labels) == ("characters", (5,), (3, 7))
        assert dataset.train.y.tolist() == [1, 0, 1]
        assert load_dataset(_keys(tmp_path, text_length=2)).spec.shape == (2,)

    def test_targets_of_numbers(self, tmp_path: Path) -> None:
        _write(tmp_path, train={"a": [1.0, 2.0, 3.0], "v": [[1.0, 2.0]] * 3, "target": [0.5, 1.5, 2.0]})
        dataset = load_dataset(_keys(tmp_path))
        assert (dataset.spec.kind, dataset.spec.targets.numbers, dataset.spec.shape) == ("table", True, (3,))
        np.testing.assert_array_equal(dataset.train.y, np.float32([[0.5], [1.5], [2.0]]))
        np.testing.assert_allclose(dataset.train.x[0], [-np.sqrt(1.5), 1, 2], atol=1e-5)

    def test_images_of_several_sizes_are_refused_or_resized(self, tmp_path: Path) -> None:
        _, cells = _pictures([(4, 4), (4, 6), (4, 4)])
        _write(tmp_path, train={"image": cells, "label": ["a", "b", "a"]})
        with pytest.raises(DataError, match=r"2 sizes: 4×4 \(train, row 0\); 4×6 \(train, row 1\).*key image-size"):
            dataset_of(_keys(tmp_path))
        assert load_dataset(_keys(tmp_path, image_size=8)).train.x.shape == (3, 8, 8, 1)

    def test_a_schema_of_the_data_serves_without_them(self, tmp_path: Path) -> None:
        _write(tmp_path, train=TABLE)
        spec = dataset_of(_keys(tmp_path))
        copy = tmp_path / "device"
        copy.mkdir()
        (copy / "schema.toml").write_text((Path(spec.folder) / "schema.toml").read_text())
        found = find_spec(str(copy))
        assert (found.name, found.table, found.labels, found.shape) == (spec.name, spec.table, spec.labels, spec.shape)
        assert tomllib.loads((copy / "schema.toml").read_text())["name"] == "own"
        with pytest.raises(ConfigurationError, match="florilegium schema hub:org/own"):
            find_spec(NAME)

    def test_changed_data_are_imported_anew(self, tmp_path: Path) -> None:
        from florilegium.partitions.describing import _imported

        _write(tmp_path, train=TABLE)
        first = load_dataset(_keys(tmp_path))
        _write(tmp_path, train={**TABLE, "label": ["x", "y", "y", "x"]})
        _imported.cache_clear()  # as another process would find it
        second = load_dataset(_keys(tmp_path))
        assert second.spec.labels == ("x", "y")
        assert first.fingerprint != second.fingerprint


class TestRefused:
    @pytest.mark.parametrize(
        ("changed", "keys", "said"),
        [
            (
                {"y": [0, 1, 0, 1]},
                {},
                "several columns may be the label: label, y. Name the label with key label-column",
            ),
            ({"label": ["a", None, "b", None]}, {}, "column 'label' has no label in row 1, 2 rows in all"),
            ({"label": [0.0, 1.0, float("nan"), 1.0]}, {}, "column 'label' has no label in row 2, 1 rows in all"),
            ({"label": ["a"] * 4}, {}, "one class only, 'a'"),
            ({"b": ["u"] * 4}, {"label_column": "age+b"}, "'b' of .* holds string; several targets are numbers"),
            ({"age": [1.0, None, 2.0, None]}, {}, "column 'age' has no number in row 1, 2 rows in all"),
            ({"a": ["p", "q", "r", "s"], "b": ["p", "q", "r", "s"]}, {}, "several columns hold inputs .texts.: a, b"),
            ({}, {"label_column": "Label"}, "label-column: 'Label' is not a column.*did you mean 'label'"),
            ({}, {"input_column": "age+twn"}, "input-column: 'twn' is not a column.*did you mean 'town'"),
            ({}, {"input_column": "age+label"}, "input-column: 'label' is the label"),
            ({}, {"image_size": 8}, "image-size: hub:org/own has no images"),
            ({}, {"text_length": 8}, "text-length: hub:org/own has no texts"),
        ],
    )
    def test_columns(self, tmp_path: Path, changed: dict[str, object], keys: dict[str, object], said: str) -> None:
        _write(tmp_path, train={**TABLE, **changed})
        with pytest.raises((ConfigurationError, DataError), match=said):
            dataset_of(_keys(tmp_path, **keys))

    def test_without_a_label_the_columns_are_listed(self, tmp_path: Path) -> None:
        _write(tmp_path, train={"a": [1, 2], "b": [3, 4]})
        with pytest.raises(ConfigurationError, match=r"its columns are a, b\. Name the label with key label-column"):
            dataset_of(_keys(tmp_path))

    def test_rows_for_tests(self, tmp_path: Path) -> None:
        for column, cells, said in (
            ("label", ["no", "maybe", "no", "no"], "classes that no training row has: maybe"),
            ("age", [1, None, 2, 3], "test: column 'age' has no number in row 1"),
        ):
            _write(tmp_path, f"org/{column}", train=TABLE, test={**TABLE, column: cells})
            with pytest.raises(DataError, match=said):
                dataset_of(_keys(tmp_path, dataset=f"hub:org/{column}"))
        _write(tmp_path, "org/less", train=TABLE, test={"label": ["no"]})
        with pytest.raises(DataError, match="the test split has no column 'id'"):
            dataset_of(_keys(tmp_path, dataset="hub:org/less"))

    def test_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise ConnectionError("no network")

        monkeypatch.setattr(datasets, "load_dataset", refuse)
        with pytest.raises(ConfigurationError, match="'hub:own' is no dataset of the hub; expected 'hub:org/name'"):
            dataset_of(_keys(tmp_path, dataset="hub:own"))
        with pytest.raises(DataError, match=r"<data-dir>/org/own/train\.parquet.*ConnectionError: no network"):
            dataset_of(_keys(tmp_path, data_dir=""))
        with pytest.raises(ConfigurationError, match="label-column: the columns of 'digits' are described already"):
            dataset_of(_keys(tmp_path, dataset="digits", label_column="y"))
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"all": datasets.Dataset.from_dict(TABLE)})
        with pytest.raises(DataError, match=r"no split 'train' \(found: all\)"):
            dataset_of(_keys(tmp_path, data_dir="", dataset="hub:org/parts"))
