"""Tests of partitions.datasets: every dataset's schema, where its files are looked for, and the decoded cache."""

from __future__ import annotations

import os
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet
import pytest
from sklearn.datasets import load_digits

from florilegium.common.errors import ConfigurationError, DataError, FlorilegiumError
from florilegium.partitions import encoding
from florilegium.partitions.clientdata import to_inputs
from florilegium.partitions.datasets import DATASETS, find_spec
from florilegium.partitions.sources.decode import decode
from florilegium.partitions.sources.source import DATA_VARIABLE
from florilegium.partitions.sources.table_files import read_parquet
from tests.partitions.made import SCHEMAS, make, write
from tests.support import load

REAL = Path(os.environ.get(DATA_VARIABLE, "/nowhere"))
REAL_NAMES = [name for name in SCHEMAS if (REAL / name / "train.parquet").is_file()]


def _assert_split(split, made):
    if made.x.dtype == np.float64:  # a table, in double precision here
        assert split.x.dtype == np.float32
        np.testing.assert_allclose(split.x, made.x, rtol=1e-3, atol=1e-4)  # the table's scales have three decimals
    else:
        assert split.x.dtype == np.uint8
        np.testing.assert_array_equal(split.x, made.x)
    assert split.y.dtype == np.int64
    np.testing.assert_array_equal(split.y, made.y)
    assert {column: names.tolist() for column, names in split.clients.items()} == made.clients


class _Hub:
    """Stands in for ``datasets.load_dataset``: serves made rows in two splits, and notes what it was asked for."""

    def __init__(self, name: str) -> None:
        self.name, self.asked = name, []

    def __call__(self, dataset, subset, *, revision):
        self.asked.append((dataset, subset, revision))
        return {split: datasets.Dataset(make(self.name, 4, seed=len(split)).table) for split in ("train", "test")}


class TestSchemas:
    def test_every_dataset_is_made_here(self):
        made = {name for name, spec in DATASETS.items() if spec.made or spec.raw}
        assert SCHEMAS.keys() == DATASETS.keys() - made - {"sent140_words", "mnist_rgb", "cifar10_c"}

    def test_a_derived_dataset_is_made_of_its_source(self, tmp_path):
        made = write(tmp_path, "cifar10", train=3, test=10)["test"]
        dataset = load("cifar10_c", str(tmp_path), str(tmp_path / "cache"))
        assert dataset.spec is DATASETS["cifar10_c"]
        assert (len(dataset.train), len(dataset.test)) == (80, 20)
        assert len(np.unique(dataset.train.clients["corruption"])) == 10
        plain = dataset.train.clients["corruption"] == "pixelate"
        found = np.concatenate([dataset.train.y[plain], dataset.test.y[dataset.test.clients["corruption"] == "fog"]])
        assert sorted(found) == sorted(made.y)

    def test_grey_digits_in_three_equal_channels(self):
        grey, colour, written = DATASETS["mnist"], DATASETS["mnist_rgb"], make("mnist", 4)
        decoded = decode(colour, written.table, "mnist").x
        assert np.array_equal(decoded, np.repeat(np.asarray(written.x), 3, axis=3))
        assert (colour.shape, colour.source) == ((3, *grey.shape[1:]), "mnist")
        assert (colour.mean, colour.std) == (grey.mean * 3, grey.std * 3)

    @pytest.mark.parametrize("name", SCHEMAS)
    def test_local_files_decode_to_what_was_written(self, name, tmp_path):
        made = write(tmp_path, name, train=6, test=4)
        dataset = load(name, str(tmp_path), str(tmp_path / "cache"))
        assert dataset.spec is DATASETS[name]
        _assert_split(dataset.train, made["train"])
        _assert_split(dataset.test, made["test"])

    @pytest.mark.parametrize("name", SCHEMAS)
    def test_network_inputs_have_the_shape_the_networks_are_built_for(self, name):
        spec, made = DATASETS[name], make(name, 3)
        inputs = to_inputs(spec, decode(spec, made.table, name).x)
        assert inputs.shape == (3, *spec.shape)
        assert spec.classes > made.y.max()

    @pytest.mark.parametrize("name", SCHEMAS)
    def test_the_hub_is_asked_for_its_own_names_and_splits(self, name, tmp_path, monkeypatch):
        monkeypatch.setattr(datasets, "load_dataset", hub := _Hub(name))
        monkeypatch.delenv(DATA_VARIABLE, raising=False)
        dataset = load(name, "", str(tmp_path))
        _assert_split(dataset.train, make(name, 4, seed=len("train")))
        subset = "cropped_digits" if name == "svhn" else None
        assert hub.asked == [(DATASETS[name].hub, subset, DATASETS[name].revision or "main")]
        if name in ("femnist", "shakespeare", "sent140", "adult"):  # the hub has one split of them
            assert dataset.test is None
        else:
            _assert_split(dataset.test, make(name, 4, seed=len("test")))

    def test_a_split_that_the_hub_has_lost_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setattr(
            datasets, "load_dataset", lambda *_, **__: {"train": datasets.Dataset(make("mnist", 4).table)}
        )
        monkeypatch.delenv(DATA_VARIABLE, raising=False)
        with pytest.raises(DataError, match=r"dataset 'mnist' .* KeyError: 'test'"):
            load("mnist", "", str(tmp_path))

    def test_a_shakespeare_of_the_hub_names_its_clients_in_another_column(self):
        table = make("shakespeare", 3).table.rename_columns(["character_id", "x", "y"])
        assert decode(DATASETS["shakespeare"], table, "hub").clients.keys() == {"character_id"}


class TestDigits:
    def test_are_scikit_learns_each_row_once(self, cache_dir):
        dataset, source = load("digits", "", cache_dir), load_digits()
        x = np.concatenate([dataset.train.x, dataset.test.x])
        y = np.concatenate([dataset.train.y, dataset.test.y])
        assert x.shape == (1797, 8, 8, 1)
        rows = np.concatenate([x.reshape(1797, 64), y[:, None]], axis=1)
        expected = np.concatenate([source.data, source.target[:, None]], axis=1)
        np.testing.assert_array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])

    def test_a_fifth_of_every_class_is_for_testing(self, cache_dir):
        dataset = load("digits", "", cache_dir)
        counts = np.bincount(load_digits().target)
        assert len(dataset.test) == round(1797 * 0.2 + 0.5)  # scikit-learn rounds up
        assert np.abs(np.bincount(dataset.test.y) - 0.2 * counts).max() < 1

    def test_their_normalisation_is_that_of_the_training_images(self, cache_dir):
        dataset = load("digits", "", cache_dir)
        inputs = to_inputs(dataset.spec, np.array(dataset.train.x))
        assert abs(inputs.mean().item()) < 0.01
        assert abs(inputs.std().item() - 1) < 0.01


class TestWhere:
    def test_data_dir_goes_before_the_environment(self, tmp_path, monkeypatch):
        one = write(tmp_path / "one", "mnist", train=3)
        write(tmp_path / "other", "mnist", train=5)
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "other"))
        _assert_split(load("mnist", str(tmp_path / "one"), str(tmp_path / "cache")).train, one["train"])

    def test_the_environment_goes_before_the_hub(self, tmp_path, monkeypatch):
        made = write(tmp_path, "mnist", train=3)
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
        _assert_split(load("mnist", "", str(tmp_path / "cache")).train, made["train"])

    def test_an_environment_without_the_dataset_leads_to_the_hub(self, tmp_path, monkeypatch):
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
        monkeypatch.setattr(datasets, "load_dataset", _Hub("mnist"))
        assert len(load("mnist", "", str(tmp_path / "cache")).train) == 4

    def test_without_a_test_file_there_is_no_test_split(self, tmp_path):
        write(tmp_path, "cifar10", train=3)
        assert load("cifar10", str(tmp_path), str(tmp_path / "cache")).test is None

    def test_home_is_understood(self, tmp_path, monkeypatch):
        made = write(tmp_path / "data", "mnist", train=3)
        monkeypatch.setenv("HOME", str(tmp_path))
        _assert_split(load("mnist", "~/data", "~/cache").train, made["train"])
        assert (tmp_path / "cache").is_dir()


class TestCache:
    def _load(self, tmp_path):
        return load("mnist", str(tmp_path), str(tmp_path / "cache"))

    def test_files_are_decoded_once(self, tmp_path, monkeypatch):
        made = write(tmp_path, "mnist", train=5, test=2)
        first = self._load(tmp_path)
        monkeypatch.setattr(encoding, "decode", None)
        again = self._load(tmp_path)
        _assert_split(again.train, made["train"])
        _assert_split(again.test, made["test"])
        assert again.fingerprint == first.fingerprint

    def test_changed_files_are_decoded_again(self, tmp_path):
        write(tmp_path, "mnist", train=5)
        first = self._load(tmp_path)
        made = write(tmp_path, "mnist", train=6, test=3)
        again = self._load(tmp_path)
        _assert_split(again.train, made["train"])
        _assert_split(again.test, made["test"])
        assert again.fingerprint != first.fingerprint

    @pytest.mark.parametrize("later", [0, 10**9])
    def test_files_of_the_same_size_and_perhaps_time_are_decoded_again(self, tmp_path, later):
        write(tmp_path, "mnist", train=5)
        self._load(tmp_path)
        file = tmp_path / "mnist" / "train.parquet"
        stat = file.stat()
        file.write_bytes(bytes(stat.st_size))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + later))
        with pytest.raises(DataError, match="not a readable parquet file"):
            self._load(tmp_path)

    def test_decoded_inputs_are_mapped_not_read(self, tmp_path):
        write(tmp_path, "mnist", train=5)
        assert isinstance(self._load(tmp_path).train.x, np.memmap)

    def test_a_failed_decoding_is_not_taken_for_a_finished_one(self, tmp_path):
        write(tmp_path, "mnist", train=5, test=2)
        (tmp_path / "mnist" / "test.parquet").write_bytes(b"broken")
        for _ in range(2):
            with pytest.raises(DataError, match=r"test\.parquet"):
                self._load(tmp_path)

    def test_cached_arrays_that_do_not_fit_the_dataset_are_named(self, tmp_path):
        write(tmp_path, "mnist", train=5)
        self._load(tmp_path)
        [file] = (tmp_path / "cache" / "datasets").glob("mnist-*/train-y.npy")
        np.save(file, np.full(5, 10))
        with pytest.raises(DataError, match=r"train-y\.npy: found int64; expected int64 classes 0 to 9"):
            self._load(tmp_path)

    def test_a_cache_that_cannot_be_made_names_the_key(self, tmp_path):
        write(tmp_path, "mnist", train=2)
        (tmp_path / "cache").write_text("a file where the folder should be")
        with pytest.raises(FlorilegiumError, match="cache-dir"):
            self._load(tmp_path)


class TestFailure:
    def test_an_unknown_dataset_names_the_nearest_and_all(self):
        with pytest.raises(ConfigurationError) as caught:
            find_spec("cifar-10")
        assert str(caught.value).startswith("dataset: 'cifar-10' is not a dataset; did you mean 'cifar10'?")
        assert all(name in str(caught.value) for name in DATASETS)

    @pytest.mark.parametrize("name", ["", "mnist"])
    def test_a_data_dir_without_the_dataset_names_the_file_and_the_layout(self, tmp_path, name):
        (tmp_path / name).mkdir(exist_ok=True)  # no folder for the dataset, or an empty one
        with pytest.raises(DataError) as caught:
            load("mnist", str(tmp_path), str(tmp_path / "cache"))
        message = str(caught.value)
        assert message.startswith(f"data-dir: there is no {tmp_path}/mnist/train.parquet")
        assert f"{tmp_path}/<dataset>/train.parquet and test.parquet" in message

    def test_a_hub_that_cannot_be_reached_names_both_places(self, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise ConnectionError("no network")

        monkeypatch.delenv(DATA_VARIABLE, raising=False)
        monkeypatch.setattr(datasets, "load_dataset", refuse)
        with pytest.raises(DataError) as caught:
            load("svhn", "", str(tmp_path))
        message = str(caught.value)
        assert "data-dir" in message
        assert f"${DATA_VARIABLE}" in message
        assert "'ufldl-stanford/svhn'" in message
        assert "no network" in message

    @pytest.mark.parametrize("part", ["train", "test"])
    def test_errors_name_the_file_they_are_in(self, tmp_path, part):
        write(tmp_path, "mnist", train=3, test=3)
        file = tmp_path / "mnist" / f"{part}.parquet"
        pyarrow.parquet.write_table(make("mnist", 3).table.drop_columns("label"), file)
        with pytest.raises(DataError, match="column 'label' is missing") as caught:
            load("mnist", str(tmp_path), str(tmp_path / "cache"))
        assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("name", REAL_NAMES)
class TestRealData:
    """The real files of $FLORILEGIUM_DATA, where it is set; only their first rows, to be quick."""

    def test_first_rows_fit_the_schema_and_the_normalisation(self, name):
        spec = DATASETS[name]
        for part in ("train", "test"):
            file = REAL / name / f"{part}.parquet"
            split = decode(spec, read_parquet(file).slice(0, 1500), str(file))
            inputs = to_inputs(spec, split.x)
            assert inputs.shape == (1500, *spec.shape)
            assert set(split.clients) <= set(spec.client_columns)
            if spec.kind == "image":
                # 1,500 images, whose own means deviate by about 0.5: the mean of all is known to 0.5/√1500 = 0.013.
                assert inputs.mean(dim=(0, 2, 3)).abs().max() < 0.08
                assert (inputs.std(dim=(0, 2, 3)) - 1).abs().max() < 0.08

    def test_every_class_occurs_and_no_other(self, name):
        spec = DATASETS[name]
        column = pyarrow.parquet.read_table(REAL / name / "train.parquet", columns=[spec.y]).column(0)
        found = set(column.unique().to_pylist())
        if spec.kind == "characters":
            assert found <= set(spec.labels or "".join(found))
            assert len(found) <= spec.classes
        else:
            assert found == set(spec.labels or range(spec.classes))
