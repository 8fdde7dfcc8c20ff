"""Datasets of arrays: every accepted form, from Python and from a reference, and what is refused."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.text import encode
from florilegium.partitions.clientdata import to_inputs
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of, load_dataset
from florilegium.partitions.settings import SourceSettings
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.partitions.spec import Dataset, DatasetSpec
from tests.support import load, settings

N = 6
Y = np.array([0, 1, 2, 0, 1, 2])
RNG = np.random.default_rng(1)
PIXELS = RNG.integers(256, size=(N, 5, 4, 3), dtype=np.uint8)
FLOATS = RNG.normal(size=(N, 7))


def _load(tmp_path: Path, train: Any, test: Any = None) -> Dataset:
    return load(array_dataset(train, test, cache_dir=str(tmp_path)), "", str(tmp_path))


def _inputs(dataset: Dataset) -> np.ndarray:
    return to_inputs(dataset.spec, np.array(dataset.train.x)).numpy()


class TestForms:
    @pytest.mark.parametrize(
        "x",
        [PIXELS, PIXELS.transpose(0, 3, 1, 2), torch.from_numpy(PIXELS), list(PIXELS), list(torch.from_numpy(PIXELS))],
    )
    def test_images_of_bytes_are_standardised(self, tmp_path: Path, x: Any) -> None:
        dataset = _load(tmp_path, (x, Y))
        assert (dataset.spec.kind, dataset.spec.shape, dataset.spec.classes) == ("image", (3, 5, 4), 3)
        scaled = PIXELS / 255
        expected = (scaled - scaled.mean(axis=(0, 1, 2))) / scaled.std(axis=(0, 1, 2))
        np.testing.assert_allclose(_inputs(dataset), expected.transpose(0, 3, 1, 2), atol=1e-3)
        assert isinstance(dataset.train.x, np.memmap)

    def test_grey_images_need_no_channel(self, tmp_path: Path) -> None:
        assert _load(tmp_path, (PIXELS[..., 0], Y)).spec.shape == (1, 5, 4)

    @pytest.mark.parametrize(
        ("x", "expected"),
        [
            (FLOATS, FLOATS),
            (torch.from_numpy(FLOATS), FLOATS),
            (FLOATS.reshape(N, 1, 7, 1, 1), FLOATS.reshape(N, 1, 7, 1, 1)),
            (PIXELS / 255, (PIXELS / 255).transpose(0, 3, 1, 2)),
            ((PIXELS / 255).transpose(0, 3, 1, 2), (PIXELS / 255).transpose(0, 3, 1, 2)),
        ],
    )
    def test_floats_reach_the_network_as_they_are(self, tmp_path: Path, x: Any, expected: np.ndarray) -> None:
        dataset = _load(tmp_path, (x, Y))
        assert dataset.spec.kind == "numbers"
        np.testing.assert_array_equal(_inputs(dataset), expected.astype(np.float32))

    def test_tokens_and_texts(self, tmp_path: Path) -> None:
        tokens = np.arange(N * 3).reshape(N, 3)
        dataset = _load(tmp_path, (tokens, Y))
        assert (dataset.spec.kind, dataset.spec.shape, dataset.spec.tokens) == ("tokens", (3,), 18)
        np.testing.assert_array_equal(_inputs(dataset), tokens)
        texts = ["a", "bcd", "", "e", "f", "g"]
        dataset = _load(tmp_path, (texts, Y))
        assert (dataset.spec.kind, dataset.spec.shape) == ("characters", (3,))
        np.testing.assert_array_equal(dataset.train.x[1], encode("bcd", 3))

    @pytest.mark.parametrize(
        ("y", "labels", "codes"),
        [
            ([9, 4, 4, 9, 7, 4], (4, 7, 9), [2, 0, 0, 2, 1, 0]),
            (["b", "a", "c", "a", "b", "c"], ("a", "b", "c"), [1, 0, 2, 0, 1, 2]),
            ([True, False] * 3, ("False", "True"), [1, 0] * 3),
            (torch.tensor([1, 0] * 3), (0, 1), [1, 0] * 3),
        ],
    )
    def test_labels_are_sorted(self, tmp_path: Path, y: Any, labels: tuple[Any, ...], codes: list[int]) -> None:
        dataset = _load(tmp_path, (FLOATS, y))
        assert dataset.spec.labels == labels
        assert dataset.train.y.tolist() == codes

    def test_floats_of_floats_are_regression(self, tmp_path: Path) -> None:
        dataset = _load(tmp_path, (FLOATS, np.linspace(0, 1, N)))
        assert (dataset.spec.kind, dataset.spec.targets.numbers) == ("numbers", True)
        np.testing.assert_allclose(dataset.train.y, np.linspace(0, 1, N)[:, None])

    @pytest.mark.parametrize("x", [PIXELS, FLOATS])
    def test_several_numbers_are_predicted_from_any_inputs(self, tmp_path: Path, x: Any) -> None:
        y = np.arange(2.0 * N).reshape(N, 2)
        dataset = _load(tmp_path, (x, y))
        assert dataset.spec.targets.columns == ("y0", "y1")
        assert dataset.spec.learned.outputs == (2,)
        np.testing.assert_array_equal(dataset.train.y, y)

    def test_floats_that_may_be_classes_are_pointed_out(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        _load(tmp_path, (FLOATS, np.linspace(0, 1, N)))
        assert not caplog.text
        _load(tmp_path, (FLOATS, Y.astype(float)))
        assert "y holds floats, all of them whole numbers" in caplog.text

    def test_torch_datasets_and_clients(self, tmp_path: Path) -> None:
        class Named(torch.utils.data.Dataset[Any]):
            def __len__(self) -> int:
                return N

            def __getitem__(self, row: int) -> tuple[Any, int, str]:
                return torch.from_numpy(FLOATS[row]), int(Y[row]), "ab"[row % 2]

        plain = _load(tmp_path, TensorDataset(torch.from_numpy(FLOATS), torch.from_numpy(Y)))
        np.testing.assert_array_equal(plain.train.x, FLOATS.astype(np.float32))
        path = array_dataset(Named(), cache_dir=str(tmp_path))
        federation, dataset = federate(settings(dataset=path, partitioner="natural", num_clients=0, model="linear"))
        rows = {name: set(dataset.train.y[federation.train[i]]) for i, name in enumerate(federation.names)}
        assert rows.keys() == {"a", "b"}
        for name, held in rows.items():
            assert held <= set(Y["ab".index(name) :: 2])

    def test_equal_arrays_are_stored_once_and_writers_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(array_dataset, (FLOATS, Y), cache_dir=str(tmp_path)) for _ in range(8)]
        assert len({job.result() for job in jobs}) == 1
        assert len(list((tmp_path / "arrays").glob("[!.]*"))) == 1  # beside it lies a lock
        changed = FLOATS.copy()
        changed[3, 2] += 1
        assert array_dataset((changed, Y), cache_dir=str(tmp_path)) != jobs[0].result()


class TestReferences:
    @pytest.fixture
    def module(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        module = ModuleType("own_data_of_a_test")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    def _keys(self, tmp_path: Path, name: str) -> SourceSettings:
        return SourceSettings(dataset=f"own_data_of_a_test:{name}", cache_dir=str(tmp_path))

    @pytest.mark.parametrize("form", ["pair", "two", "yielded", "dataset"])
    def test_functions(self, tmp_path: Path, module: ModuleType, form: str) -> None:
        calls = []

        def yielded() -> Any:
            yield FLOATS, Y
            yield FLOATS[:3], Y[:3]

        def made() -> Any:
            calls.append(form)
            whole = TensorDataset(torch.from_numpy(FLOATS), torch.from_numpy(Y))
            return {
                "pair": (FLOATS, Y),
                "two": ((FLOATS, Y), (FLOATS[:3], Y[:3])),
                "yielded": yielded(),
                "dataset": whole,
            }[form]

        name = f"made_{form}"
        setattr(module, name, made)
        for _ in range(2):
            dataset = load_dataset(self._keys(tmp_path, name))
        assert len(calls) == 1
        np.testing.assert_array_equal(dataset.train.x, FLOATS.astype(np.float32))
        assert (len(dataset.test) if dataset.test else 0) == (3 if form in ("two", "yielded") else 0)
        assert dataset.spec.name == name

    def test_a_description(self, tmp_path: Path, module: ModuleType) -> None:
        module.SPEC = DatasetSpec("mine", "", "image", "img", "label", 2, (1, 4, 4), (0.5,), (0.5,))  # type: ignore[attr-defined]
        assert dataset_of(self._keys(tmp_path, "SPEC")) is module.SPEC

    def test_what_cannot_be_used_is_named(self, tmp_path: Path, module: ModuleType) -> None:
        def fails() -> None:
            raise OSError("the disk is gone")

        module.number, module.fails, module.three = 3, fails, lambda: [(FLOATS, Y)] * 3  # type: ignore[attr-defined]
        module.nothing = lambda: None  # type: ignore[attr-defined]
        for name, said in (
            ("missing", "has no 'missing'"),
            ("number", "expected a DatasetSpec, or a function without arguments.*found: int"),
            ("fails", "function 'fails' failed when it was called: OSError: the disk is gone"),
            ("three", "gave 3 parts"),
            ("nothing", "nothing, train: expected .x, y.*found: NoneType"),
        ):
            with pytest.raises((ConfigurationError, DataError), match=said):
                dataset_of(self._keys(tmp_path, name))
        with pytest.raises(ConfigurationError, match="there is no module 'no_such_module'"):
            dataset_of(SourceSettings(dataset="no_such_module:data"))


def _nan(row: int) -> np.ndarray:
    array = FLOATS.copy()
    array[row:, 1] = np.nan
    return array


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        ((FLOATS, Y[:4]), None, "x has 6 rows, y has 4 rows"),
        ((FLOATS, Y, ["a"]), None, "clients has 1 rows"),
        ((FLOATS[:0], Y[:0]), None, "there are no rows"),
        ((FLOATS, np.zeros(N, int)), None, "y has one class only, 0"),
        ((FLOATS, ["a", None, "b", "a", "b", None]), None, "y: row 1 is None, but other rows are texts; 2 rows"),
        ((FLOATS, [0, None, 1, 0, 1, 2]), None, "y: row 1 is None, 1 rows in all"),
        ((_nan(4), Y), None, "x: row 4 has a NaN or an infinite number, 2 rows in all"),
        ((FLOATS, np.where(Y == 1, np.nan, 0.5)), None, "y: row 1 has a NaN"),
        ((np.array([{}] * N), Y), None, "x is an array of type object"),
        (([[1.0], [1.0, 2.0]], [0, 1]), None, "x: the rows have several shapes"),
        ((np.zeros((N, 3, 8, 3), np.uint8), Y), None, r"\(6, 3, 8, 3\), which may be channels first or last"),
        ((np.zeros((N, 8, 8, 4), np.uint8), Y), None, "neither 1 nor 3 channels"),
        ((FLOATS[:, 0], Y), None, r"x is float64 \(6,\); expected"),
        ((np.full((N, 2), -1), Y), None, "tokens, integers of 0 or more .found: -1."),
        ((np.full((N, 2), 1e300), Y), None, "too large for 32-bit floats"),
        ((FLOATS, np.eye(N, dtype=int)[:, :2]), None, r"y has shape \(6, 2\)"),
        ((FLOATS, np.ones((N, 2, 2))), None, r"y has shape \(6, 2, 2\)"),
        ((FLOATS, np.ones((N, 2))), (FLOATS, np.ones((N, 3))), r"y has shape \(6, 3\)"),
        ((FLOATS, Y), (FLOATS, Y + 5), "classes that no training row has: 5, 6, 7"),
        ((FLOATS, Y), (FLOATS[:, :3], Y), r"inputs have shape \(3,\), but \(7,\) in training"),
        ((FLOATS, Y), (PIXELS, Y), "x holds bytes, but floats in training"),
        ((FLOATS, Y, ["a"] * N), (FLOATS, Y, ["b"] * N), "client 'b' has test rows, but no training rows"),
        ((FLOATS, Y, ["a"] * N), (FLOATS, Y), "either both training and test rows have clients' names"),
        (FLOATS, None, r"expected \(x, y\), \(x, y, clients\) or a torch Dataset .found: ndarray"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, train: Any, test: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        array_dataset(train, test, cache_dir=str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "array", "said"),
    [
        ("train-x.npy", FLOATS, "found float64"),
        ("train-x.npy", FLOATS.astype(np.float32)[:, :2], r"needs float32 \(n, 7\)"),
        ("train-y.npy", np.full(N, 9), "expected int64 classes 0 to 2"),
        ("train-y.npy", Y[:2], "beside 6 inputs"),
        ("train-y.npy", None, "holds no readable arrays"),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, file: str, array: np.ndarray | None, said: str) -> None:
    path = Path(array_dataset((FLOATS, Y), cache_dir=str(tmp_path)))
    if array is None:
        (path / file).unlink()
    else:
        np.save(path / file, array)
    with pytest.raises(DataError, match=said):
        load(str(path), "", str(tmp_path))
