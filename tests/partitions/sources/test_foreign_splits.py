"""Splits of PFLlib and FL-bench, from folders written here in their formats; and that no pickle can run anything."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.apps.cli.app import cli
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.clientdata import decoded
from florilegium.partitions.federation import federate
from florilegium.partitions.sources.foreign_splits import read_foreign
from florilegium.partitions.sources.restricted_pickle import read_object, read_pickle
from florilegium.partitions.sources.torchvision_files import read_torchvision
from florilegium.partitions.spec import Dataset
from tests.partitions.made import write
from tests.support import CACHE, load, settings

TOTAL = 1797
TRAIN = 1437


def _digits() -> Dataset:
    return load("digits", "", str(CACHE))


def _pooled(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.concatenate([getattr(s, n) for s in (dataset.train, dataset.test)]) for n in ("x", "y"))


def _parts(total: int, clients: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return training and test rows of each client, three quarters and one quarter of its pooled rows."""
    rows = np.array_split(np.random.default_rng(seed).permutation(total), clients)
    return [{"train": own[len(own) // 4 :], "val": own[:0], "test": own[: len(own) // 4]} for own in rows]


def _write_pfllib(folder: Path, parts: list[dict[str, np.ndarray]], x: np.ndarray, y: np.ndarray) -> None:
    """Write examples as PFLlib does: ToTensor, Normalize(0.5, 0.5), savez_compressed of a dict."""
    # In single precision, as torchvision computes.
    tensors = ((x.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)).transpose(0, 3, 1, 2)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for client, rows in enumerate(parts):
            with (folder / part / f"{client}.npz").open("wb") as file:
                np.savez_compressed(file, data={"x": tensors[rows[part]], "y": y[rows[part]]})
    (folder / "config.json").write_text(json.dumps({"num_clients": len(parts), "non_iid": True}))


def _write_fl_bench(folder: Path, parts: list[dict[str, np.ndarray]], y: np.ndarray, protocol: int = 4) -> None:
    folder.mkdir(exist_ok=True)
    ids = list(range(len(parts)))
    separation = {"train": ids, "val": ids, "test": ids, "total": len(parts)}
    (folder / "partition.pkl").write_bytes(pickle.dumps({"separation": separation, "data_indices": parts}, protocol))
    stats: dict[str, Any] = {}
    for client, rows in enumerate(parts):
        labels = y[np.concatenate(list(rows.values()))]
        stats[str(client)] = {"x": len(labels), "y": {str(c): int((labels == c).sum()) for c in np.unique(labels)}}
    (folder / "all_stats.json").write_text(json.dumps({**stats, "sample per client": {"std": 1.0}}))
    (folder / "args.json").write_text(json.dumps({"dataset": "mnist"}))


class TestPFLlib:
    def test_every_client_gets_its_examples(self, tmp_path):
        """Digits has no two equal images, so that the very rows are found."""
        x, y = _pooled(_digits())
        parts = _parts(TOTAL, 5)
        _write_pfllib(tmp_path / "digits", parts, x, y)
        table = read_foreign("pfllib", tmp_path / "digits", _digits(), "refuse")
        for client, rows in enumerate(parts):
            np.testing.assert_array_equal(table.train[client], rows["train"])
            np.testing.assert_array_equal(table.test[client], rows["test"])
        assert (table.pooled, table.dataset, table.examples) == (True, "digits", (TRAIN, TOTAL - TRAIN))

    def test_equal_images_are_given_once_each(self, tmp_path):
        write(tmp_path, "mnist", train=8, test=4)
        dataset = load("mnist", str(tmp_path), str(tmp_path))
        x, y = (part.copy() for part in _pooled(dataset))
        x[[2, 9]], y[[2, 9, 5]] = x[5], y[5]  # rows 2, 5 and 9 are the same
        same = dataclasses.replace(
            dataset, train=dataclasses.replace(dataset.train, x=x[:8], y=y[:8]),
            test=dataclasses.replace(dataset.test, x=x[8:], y=y[8:]),
        )  # fmt: skip
        parts = [{"train": np.array([9, 0]), "test": np.array([2])}, {"train": np.array([5]), "test": np.array([11])}]
        _write_pfllib(tmp_path / "split", parts, x, y)
        table = read_foreign("pfllib", tmp_path / "split", same, "refuse")
        found = np.concatenate([*table.train, *table.test])
        assert sorted(found) == [0, 2, 5, 9, 11]
        parts[1]["train"] = np.array([5, 5])
        _write_pfllib(tmp_path / "more", parts, x, y)
        with pytest.raises(DataError, match="1 of 6 examples are not among the rows of 'mnist', or occur more often"):
            read_foreign("pfllib", tmp_path / "more", same, "refuse")

    @pytest.mark.parametrize("kind", ["pixels", "labels"])
    def test_examples_of_another_dataset_are_counted(self, tmp_path, kind):
        x, y = (part.copy() for part in _pooled(_digits()))
        if kind == "pixels":
            x[:3] += 1
        else:
            y[:3] = (y[:3] + 1) % 10
        _write_pfllib(tmp_path / "digits", _parts(TOTAL, 5), x, y)
        with pytest.raises(DataError, match="3 of 1797 examples are not among the rows of 'digits'"):
            read_foreign("pfllib", tmp_path / "digits", _digits(), "refuse")

    def test_what_is_malformed_names_the_file(self, tmp_path):
        x, y = _pooled(_digits())
        folder = tmp_path / "digits"
        _write_pfllib(folder, _parts(TOTAL, 2), x, y)
        path = folder / "train" / "1.npz"
        for data, message in (
            ({"x": x[:2]}, "a dict with 'x' and 'y'"),
            ({"x": np.zeros((2, 1, 8, 9), np.float32), "y": y[:2]}, "images of 1 × 8 × 8 numbers"),
            ({"x": np.full((2, 1, 8, 8), 0.3, np.float32), "y": y[:2]}, "normalised with mean 0.5"),
            ({"x": np.full((2, 1, 8, 8), np.nan, np.float32), "y": y[:2]}, "normalised with mean 0.5"),
            ({"x": np.full((2, 1, 8, 8), 3.0, np.float32), "y": y[:2]}, "normalised with mean 0.5"),
            ({"x": np.zeros((2, 1, 8, 8), np.float32), "y": y[:3]}, "as many whole numbers in 'y'"),
        ):
            np.savez_compressed(path, data=data)
            with pytest.raises(DataError, match=rf"1\.npz: .*{message}"):
                read_foreign("pfllib", folder, _digits(), "refuse")
        np.savez(path, data=np.zeros(3))
        with pytest.raises(DataError, match=r"1\.npz: array 'data' is no pickled object"):
            read_foreign("pfllib", folder, _digits(), "refuse")
        path.unlink()
        with pytest.raises(DataError, match=r"1\.npz cannot be read"):
            read_foreign("pfllib", folder, _digits(), "refuse")
        (folder / "config.json").write_text("{}")
        with pytest.raises(DataError, match=r"config\.json: num_clients: None"):
            read_foreign("pfllib", folder, _digits(), "refuse")


class TestFLBench:
    @pytest.mark.parametrize("protocol", [3, 4, 5])
    def test_rows_are_taken_as_they_are(self, tmp_path, protocol):
        parts = _parts(TOTAL, 4)
        _write_fl_bench(tmp_path / "digits", parts, _pooled(_digits())[1], protocol)
        table = read_foreign("fl-bench", tmp_path / "digits", _digits(), "refuse")
        for client, rows in enumerate(parts):
            np.testing.assert_array_equal(table.train[client], rows["train"])
            np.testing.assert_array_equal(table.test[client], rows["test"])

    def test_another_row_order_is_noticed(self, tmp_path):
        parts = _parts(TOTAL, 4)
        _write_fl_bench(tmp_path / "digits", parts, np.random.default_rng(1).permutation(_pooled(_digits())[1]))
        with pytest.raises(DataError, match="another row order than torchvision"):
            read_foreign("fl-bench", tmp_path / "digits", _digits(), "refuse")
        (tmp_path / "digits" / "all_stats.json").unlink()
        with pytest.raises(DataError, match=r"all_stats\.json cannot be read"):
            read_foreign("fl-bench", tmp_path / "digits", _digits(), "refuse")

    @pytest.mark.parametrize("name", ["mnist", "cifar10"])
    def test_with_torchvisions_files_another_order_does_no_harm(self, tmp_path, name):
        """The suite's copy has the rows in another order than torchvision, training and test rows mixed."""
        write(tmp_path, name, train=40, test=10)
        dataset = load(name, str(tmp_path), str(tmp_path))
        order = np.random.default_rng(3).permutation(50)  # torchvision's row i is our pooled row order[i]
        x, y = (part[order] for part in _pooled(dataset))
        folder = tmp_path / "fl-bench"
        parts = _parts(50, 3)
        _write_fl_bench(folder, parts, y)
        if name == "mnist":
            raw = folder / "MNIST" / "raw"
            raw.mkdir(parents=True)
            for part, rows in (("train", slice(0, 40)), ("t10k", slice(40, 50))):
                for kind, array in (("images-idx3", x[rows, :, :, 0]), ("labels-idx1", y[rows].astype(np.uint8))):
                    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
                    (raw / f"{part}-{kind}-ubyte").write_bytes(head + array.tobytes())
        else:
            raw = folder / "cifar-10-batches-py"
            raw.mkdir()
            names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
            for batch, rows in zip(names, [*np.array_split(np.arange(40), 5), np.arange(40, 50)], strict=True):
                content = {"data": x[rows].transpose(0, 3, 1, 2).reshape(len(rows), -1), "labels": y[rows].tolist()}
                (raw / batch).write_bytes(pickle.dumps(content, 4))
        table = read_foreign("fl-bench", folder, dataset, "refuse")
        for client, rows in enumerate(parts):
            np.testing.assert_array_equal(table.train[client], order[rows["train"]])
            np.testing.assert_array_equal(table.test[client], order[rows["test"]])

    def test_validation_rows_need_a_decision(self, tmp_path):
        parts = _parts(TOTAL, 4)
        for rows in parts:
            rows["val"], rows["train"] = rows["train"][:10], rows["train"][10:]
        _write_fl_bench(tmp_path / "digits", parts, _pooled(_digits())[1])
        with pytest.raises(DataError, match=r"client 0 has 10 validation rows; .*--validation train, or drop"):
            read_foreign("fl-bench", tmp_path / "digits", _digits(), "refuse")
        for validation, wanted in (("drop", ["train"]), ("train", ["train", "val"])):
            table = read_foreign("fl-bench", tmp_path / "digits", _digits(), validation)
            np.testing.assert_array_equal(table.train[2], np.concatenate([parts[2][part] for part in wanted]))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"separation": {}}, "expected 'data_indices'"),
            ({"data_indices": [[1, 2]]}, "expected 'data_indices'"),
            ({"data_indices": [{"train": [1.5]}]}, "client 0, part 'train': expected a list of row numbers"),
            ({"data_indices": [{"train": np.array([1797])}]}, "client 0, part 'train': rows 1797..1797, but .* 1797"),
            ({"data_indices": [{"train": np.array([-1])}]}, "rows -1..-1"),
            (
                {"data_indices": [{"train": [], "test": [3]}]},
                "client 0 has no training rows, as FL-bench's --split user",
            ),
        ],
    )
    def test_what_is_malformed_is_refused(self, tmp_path, content, message):
        (tmp_path / "partition.pkl").write_bytes(pickle.dumps(content))
        with pytest.raises(DataError, match=rf"partition\.pkl.*{message}"):
            read_foreign("fl-bench", tmp_path, _digits(), "refuse")


def test_the_command_writes_a_split_that_a_run_can_use(tmp_path, capsys) -> None:
    x, y = _pooled(_digits())
    parts = _parts(TOTAL, 3)
    _write_pfllib(tmp_path / "digits", parts, x, y)
    output = tmp_path / "split.json"
    cli(["split", "pfllib", str(tmp_path / "digits"), str(output), "--dataset", "digits", "--set",
         f"cache-dir={CACHE}"], standalone_mode=False)  # fmt: skip
    assert capsys.readouterr().out.split() == [str(output)]
    chosen = settings(partitioner="file", num_clients=0, **{"file.path": str(output)})
    federation, dataset = federate(chosen)
    for client, rows in enumerate(parts):
        for part in ("train", "test"):
            found = decoded(federation, dataset, client, part)
            np.testing.assert_array_equal(found[0], x[rows[part]])
            np.testing.assert_array_equal(found[1], y[rows[part]])


class TestPickles:
    def test_plain_data_are_read(self, tmp_path):
        path = tmp_path / "p.pkl"
        content = {"a": [1, 2.5, True, None, "x", b"y", (3,)], 4: np.arange(3), "o": np.array([{"k": 1}], object)}
        for protocol in (2, 3, 4, 5):
            wanted = dict(content) if protocol > 2 else {"a": [1, 2.5], "s": np.float64}  # bytes need a function there
            if protocol == 2:
                wanted = {"a": [1, 2.5, "x"]}
            path.write_bytes(pickle.dumps(wanted, protocol))
            found = read_pickle(path)
            assert repr(found) == repr(wanted)

    @pytest.mark.parametrize("where", ["pickle", "npz"])
    def test_a_malicious_pickle_runs_nothing(self, tmp_path, where):
        mark = tmp_path / "mark"

        class Malicious:
            def __reduce__(self):
                return (Path.touch, (mark,))

        class Shell:
            def __reduce__(self):
                import os

                return (os.system, (f"touch {mark}",))

        class Code:
            def __reduce__(self):
                return (eval, (f"open({str(mark)!r}, 'w')",))

        for evil, named in ((Malicious(), "pathlib"), (Shell(), r"posix\.system"), (Code(), r"builtins\.eval")):
            path = tmp_path / where
            if where == "pickle":
                path.write_bytes(pickle.dumps({"data_indices": [evil]}))
            else:
                with path.open("wb") as file:
                    np.savez(file, data={"x": evil})
            with pytest.raises(DataError, match=rf"it names .*{named}.*, which is not read"):
                read_pickle(path) if where == "pickle" else read_object(path, "data")
            assert not mark.exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"cnumpy.core.multiarray\nfromfile\n.",  # another function of the same module
            b"cnumpy\nload\n.",
            b"cbuiltins\ngetattr\n.",
            # An attribute of something that is allowed.
            b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
        ],
    )
    def test_other_names_are_refused(self, tmp_path, content):
        path = tmp_path / "p.pkl"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"p\.pkl: it names .*, which is not read"):
            read_pickle(path)

    def test_damaged_files_are_refused(self, tmp_path):
        path = tmp_path / "p.pkl"
        for content in (b"", b"garbage", pickle.dumps([1, 2, 3])[:-3]):
            path.write_bytes(content)
            with pytest.raises(DataError, match=r"p\.pkl: it is no readable pickle"):
                read_pickle(path)
        with pytest.raises(DataError, match="cannot be read"):
            read_pickle(tmp_path / "none.pkl")


def test_torchvision_files_are_checked(tmp_path) -> None:
    assert read_torchvision(tmp_path, "mnist") is None
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    with pytest.raises(DataError, match="train-images-idx3-ubyte cannot be read"):
        read_torchvision(tmp_path, "mnist")
    for content, message in (
        (b"\x00\x00\x0d\x01", "is no IDX file"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x02a", "1 bytes"),
    ):
        (raw / "train-images-idx3-ubyte").write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_torchvision(tmp_path, "mnist")


def test_what_is_asked_must_exist(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="'leaf' is not a suite"):
        read_foreign("leaf", tmp_path, _digits(), "refuse")
    with pytest.raises(ConfigurationError, match="--validation: 'keep' is unknown"):
        read_foreign("fl-bench", tmp_path, _digits(), "keep")
    with pytest.raises(DataError, match="is no folder"):
        read_foreign("fl-bench", tmp_path / "none", _digits(), "drop")
