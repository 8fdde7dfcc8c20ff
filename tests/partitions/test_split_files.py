"""Splits of one's own: three formats, what is refused, pooled rows, and the way back from a federation to a file."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.apps.cli.app import cli
from florilegium.apps.runs.experiment import resolve
from florilegium.common.errors import ConfigurationError, DataError, FlorilegiumError
from florilegium.partitions.clientdata import decoded
from florilegium.partitions.federation import build, federate
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.partitioners.keys import FileKeys
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.split_files import file_hash, of_federation, read_split, write_split
from tests.partitions.made import write
from tests.support import CACHE, settings

DIGITS = (1437, 360)
SPLIT = {"alice": {"train": [5, 0], "test": [3]}, "bob": {"train": [7], "test": [8, 1]}}


def _write(path: Path, content: Any) -> Path:
    """Write a split in the format of the path's suffix; ``content`` is a text, a JSON value, or arrays by name."""
    if path.suffix == ".npz":
        np.savez(path, **content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def _settings(path: Path, **keys: Any) -> FederationSettings:
    own = FileKeys(path=str(path), hash=keys.pop("hash", ""))
    return FederationSettings(partitioner="file", own=own, **{"num_clients": 0, "cache_dir": str(CACHE)} | keys)


def _build(path: Path, **keys: Any):
    chosen = _settings(path, **keys)
    return build(chosen, load_dataset(chosen))


def _lists(federation) -> dict[str, tuple[list[int], list[int]]]:
    return {
        str(name): (federation.train[client].tolist(), federation.test[client].tolist())
        for client, name in enumerate(federation.names)
    }


EXPECTED = {"alice": ([5, 0], [3]), "bob": ([7], [8, 1])}
TRIPLES = [("alice", "train", 5), ("bob", "test", 8), ("alice", "train", 0), ("bob", "train", 7), ("alice", "test", 3),
           ("bob", "test", 1)]  # fmt: skip
FORMS: dict[str, tuple[str, Any]] = {
    "object": ("s.json", SPLIT),
    "facts": ("s.json", {"rows": "split", "dataset": "digits", "examples": list(DIGITS), "clients": SPLIT}),
    "list": ("s.json", [{"name": name, **parts} for name, parts in SPLIT.items()]),
    "csv": ("s.csv", "client,part,row\n" + "".join(f"{c},{p},{r}\n" for c, p, r in TRIPLES)),
    "csv facts": (
        "s.csv",
        "# dataset: digits\n# examples: 1437, 360\nclient, part, row\n"
        + "".join(f"{c}, {p}, {r}\n\n" for c, p, r in TRIPLES),
    ),
    "npz triples": (
        "s.npz", {name: np.array(values) for name, values in zip(("client", "part", "row"), zip(*TRIPLES, strict=True),
                                                                  strict=True)},
    ),
    "npz lists": (
        "s.npz",
        {"train_rows": np.array([5, 0, 7], np.uint16), "train_offsets": np.array([0, 2, 3]),
         "test_rows": np.array([3, 8, 1]), "test_offsets": np.array([0, 1, 3]), "names": np.array(["alice", "bob"]),
         "dataset": np.array("digits"), "examples": np.array(DIGITS)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), FORMS.values(), ids=FORMS)
def test_every_format_gives_the_rows_in_their_order(tmp_path, name: str, content: Any) -> None:
    federation = _build(_write(tmp_path / name, content))
    assert _lists(federation) == EXPECTED
    assert not federation.test_from_train


def test_clients_without_names_are_counted(tmp_path) -> None:
    path = _write(tmp_path / "s.json", [{"train": [4]}, {"train": [2, 9]}])
    federation = _build(path, num_clients=2)
    assert federation.names.tolist() == ["", ""]
    assert [federation.train[client].tolist() for client in range(2)] == [[4], [2, 9]]


class TestTestRows:
    def test_without_test_rows_they_follow_the_clients_classes(self, tmp_path) -> None:
        dataset = load_dataset(settings())
        rows = [np.flatnonzero(dataset.train.y == c)[:20].tolist() for c in (3, 7)]
        federation = _build(_write(tmp_path / "s.json", [{"train": part} for part in rows]))
        assert federation.class_counts(dataset, "test").tolist() == federation.class_counts(dataset).tolist()

    def test_pooled_without_test_rows_a_fifth_is_held_out(self, tmp_path) -> None:
        path = _write(tmp_path / "s.json", {"rows": "pooled", "clients": [{"train": list(range(1430, 1440))}]})
        federation = _build(path)
        assert federation.test_from_train
        assert (federation.train.sizes, federation.test.sizes) == ([8], [2])
        assert sorted([*federation.train.rows, *federation.test.rows]) == list(range(1430, 1440))

    def test_a_client_may_lack_them(self, tmp_path) -> None:
        federation = _build(_write(tmp_path / "s.json", {"a": {"train": [0], "test": [5]}, "b": {"train": [1]}}))
        assert federation.test.sizes.tolist() == [1, 0]


class TestPooled:
    @pytest.mark.parametrize("suffix", [".json", ".csv", ".npz"])
    def test_rows_come_from_both_splits(self, tmp_path, suffix: str) -> None:
        """Row 1437 + k is test row k, whatever the row is used for."""
        train, test = [3, 1437, 1796], [0, 1500]
        content = {
            ".json": {"rows": "pooled", "clients": {"a": {"train": train, "test": test}}},
            ".csv": "# rows: pooled\nclient,part,row\n" + "".join(f"a,train,{r}\n" for r in train)
            + "".join(f"a,test,{r}\n" for r in test),
            ".npz": {"rows": np.array("pooled"), "client": np.array(["a"] * 5), "row": np.array(train + test),
                     "part": np.array(["train"] * 3 + ["test"] * 2)},
        }[suffix]  # fmt: skip
        federation, dataset = federate(_settings(_write(tmp_path / f"s{suffix}", content), cache_dir=str(tmp_path)))
        whole = load_dataset(settings())
        x, y = decoded(federation, dataset, 0, "train")
        np.testing.assert_array_equal(x, np.stack([whole.train.x[3], whole.test.x[0], whole.test.x[359]]))
        assert y.tolist() == [whole.train.y[3], whole.test.y[0], whole.test.y[359]]
        x, y = decoded(federation, dataset, 0, "test")
        np.testing.assert_array_equal(x, np.stack([whole.train.x[0], whole.test.x[63]]))
        assert isinstance(dataset.train.x, np.memmap)
        assert len(dataset.train) == 1797

    def test_names_of_natural_clients_are_pooled_where_both_splits_have_them(self, tmp_path) -> None:
        write(tmp_path, "mnist", train=12, test=5)
        keys = {"dataset": "mnist", "data_dir": str(tmp_path), "cache_dir": str(tmp_path)}
        path = _write(tmp_path / "s.json", {"rows": "pooled", "clients": [{"train": [16]}]})
        _, dataset = federate(_settings(path, **keys))
        assert len(dataset.train) == 17
        assert dataset.test is None


class TestIdentity:
    def test_a_changed_file_is_another_federation(self, tmp_path) -> None:
        path, found = tmp_path / "s.json", []
        for row in (1, 2):
            _write(path, [{"train": [row], "test": [0]}])
            os.utime(path, (1, 1))  # the same size and time
            found.append(federate(_settings(path, cache_dir=str(tmp_path)))[0].train.rows.tolist())
        assert found == [[1], [2]]

    def test_the_command_line_notes_the_hash_and_a_change_is_refused(self, tmp_path, monkeypatch) -> None:
        path = _write(tmp_path / "s.json", [{"train": [1]}])
        monkeypatch.chdir(tmp_path)
        keys = resolve(None, ["partitioner=file", "file.path=s.json", "num-clients=0"], {})
        assert keys["file.path"] == str(path)
        assert keys["file.hash"] == file_hash(path)
        given = settings(**keys)
        _write(path, [{"train": [2]}])
        with pytest.raises(ConfigurationError, match=r"file.path: .*s.json has changed"):
            federate(given)

    def test_a_missing_file_names_the_key(self, tmp_path) -> None:
        for path, message in (
            (tmp_path / "no.json", "file.path: .*no.json cannot be read"),
            ("", "file.path: partitioner"),
        ):
            chosen = FederationSettings(partitioner="file", num_clients=0, own=FileKeys(path=str(path)))
            with pytest.raises(ConfigurationError, match=message):
                federate(chosen)


JSON_ERRORS: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "is not valid JSON"),
    "nothing": ([], "no clients"),
    "no object": (5, "expected clients"),
    "a client twice": ('{"a": {"train": [1]}, "a": {"train": [2]}}', "'a' occurs twice"),
    "client is a list": ({"a": [1]}, "client 'a': expected an object with the lists 'train' and 'test'"),
    "header outside": ({"rows": "pooled", "a": {"train": [1]}}, "client 'rows': expected an object.*beside"),
    "unknown part": ({"a": {"train": [1], "valid": [2]}}, "client 'a': there is no part 'valid'"),
    "rows no list": ({"a": {"train": 3}}, "client 'a', part 'train': expected a list"),
    "twice": ({"a": {"train": [4, 2, 4]}}, "client 'a', part 'train': row 4 is listed twice"),
    "test twice": ({"a": {"train": [4], "test": [2, 2]}}, "client 'a', part 'test': row 2 is listed twice"),
    "two owners": ({"a": {"train": [4]}, "b": {"train": [4]}}, "row 4 is listed for client 'a' and for client 'b'"),
    "negative": ({"a": {"train": [-1]}}, "client 'a', part 'train': row -1 is negative"),
    "fraction": ({"a": {"train": [1.5]}}, "client 'a', part 'train': 1.5 is no row number"),
    "whole fraction": ({"a": {"train": [1.0]}}, "1.0 is no row number"),
    "truth": ({"a": {"train": [True]}}, "True is no row number"),
    "text": ({"a": {"train": ["1"]}}, "'1' is no row number"),
    "nan": ('{"a": {"train": [NaN]}}', "nan is no row number"),
    "huge": ({"a": {"train": [2**64]}}, "client 'a', part 'train': row 18446744073709551616 does not exist"),
    "thousands of digits": ('{"a": {"train": [' + "9" * 5000 + "]}}", "a number is far too large"),
    "beyond": ({"a": {"train": [1437]}}, "client 'a', part 'train': row 1437 does not exist.* 1437 train rows"),
    "beyond test": ({"a": {"train": [0], "test": [360]}}, "part 'test': row 360 does not exist.* 360 test rows"),
    "beyond pooled": ({"rows": "pooled", "clients": {"a": {"train": [1797]}}}, "row 1797 does not exist.* 1797 rows"),
    "no training rows": ({"a": {"train": [1]}, "b": {"test": [1]}}, "client 'b' has no training rows"),
    "own test": ({"rows": "pooled", "clients": {"a": {"train": [1], "test": [1]}}}, "lists row 1 for training and"),
    "other's test": (
        {"rows": "pooled", "clients": [{"train": [1]}, {"train": [2], "test": [1]}]}, "row 1 is listed for client 0"
    ),
    "unknown fact": ({"row": "pooled", "clients": SPLIT}, "there is no entry 'row'"),
    "unknown count": ({"rows": "both", "clients": SPLIT}, "rows: 'both' is neither 'split' nor 'pooled'"),
    "shared": ({"shared": "yes", "clients": SPLIT}, "shared: 'yes' is neither true nor false"),
    "other dataset": ({"dataset": "mnist", "clients": SPLIT}, "the split is of dataset 'mnist', not of 'digits'"),
    "other size": ({"examples": [60000, 10000], "clients": SPLIT}, "of 60000 training and 10000 test rows.*1437"),
    "wrong size": ({"examples": [60000], "clients": SPLIT}, r"examples: \[60000\] are not the numbers"),
    "name": ([{"name": 5, "train": [1]}], "client 0: name: 5 is no text"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), JSON_ERRORS.values(), ids=JSON_ERRORS)
def test_wrong_json_is_refused(tmp_path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        _build(_write(tmp_path / "s.json", content))
    assert "s.json" in str(caught.value)


OTHER_ERRORS: dict[str, tuple[str, Any, str]] = {
    "empty csv": ("s.csv", "", "line 1: expected the header 'client,part,row'"),
    "header only": ("s.csv", "client,part,row\n", "no clients"),
    "other header": ("s.csv", "who,part,row\n", "line 1: expected the header"),
    "cells": ("s.csv", "# rows: split\nclient,part,row\na,train\n", "line 3: 2 cells"),
    "csv row": ("s.csv", "client,part,row\na,train,x\n", "line 2, client 'a': 'x' is no row number"),
    "csv fraction": ("s.csv", "client,part,row\na,train,1.0\n", "'1.0' is no row number"),
    "csv part": ("s.csv", "client,part,row\na,valid,1\n", "client 'a', row 1: there is no part 'valid'"),
    "csv twice": ("s.csv", "client,part,row\na,train,1\na,train,1\n", "part 'train': row 1 is listed twice"),
    "csv fact": ("s.csv", "# examples: many\nclient,part,row\na,train,1\n", "examples: "),
    "no zip": ("s.npz", None, "is no .npz file"),
    "pickle": ("s.npz", {"client": np.array(["a"], object), "part": np.array(["train"]), "row": np.array([1])},
               "pickled objects are not read"),
    "npz array": ("s.npz", {"who": np.array([1])}, "there is no array 'who'"),
    "npz lengths": ("s.npz", {"client": np.array(["a"]), "part": np.array(["train"]), "row": np.array([1, 2])},
                    "equally long"),
    "npz scalars": ("s.npz", {"client": np.array("a"), "part": np.array("train"), "row": np.array(1)}, "equally long"),
    "npz float": ("s.npz", {"client": np.array(["a"]), "part": np.array(["train"]), "row": np.array([1.0])},
                  "array 'row' must be one-dimensional and hold whole numbers"),
    "npz huge": ("s.npz", {"client": np.array(["a"]), "part": np.array(["train"]), "row": np.array([2**63], np.uint64)},
                 "row 9223372036854775808 does not exist"),
    "npz alone": ("s.npz", {"train_rows": np.array([1])}, "'train_rows' stands alone"),
    "npz offsets": ("s.npz", {"train_rows": np.array([1]), "train_offsets": np.array([0, 2])}, "offsets must rise"),
    "npz names": ("s.npz", {"train_rows": np.array([1]), "train_offsets": np.array([0, 1]), "names": np.array("a")},
                  "equally many clients"),
    "npz tests only": ("s.npz", {"test_rows": np.array([1]), "test_offsets": np.array([0, 1])}, "there are no arrays"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), OTHER_ERRORS.values(), ids=OTHER_ERRORS)
def test_wrong_csv_and_npz_are_refused(tmp_path, name: str, content: Any, message: str) -> None:
    path = tmp_path / name
    if content is None:
        path.write_bytes(b"no archive")
    else:
        _write(path, content)
    with pytest.raises(DataError, match=message) as caught:
        _build(path)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_clients": 3}, "num-clients: .* has 2 clients, not 3; set it to 2, or to 0 for all"),
        ({"samples_per_client": 5}, "samples-per-client: the split of partitioner 'file' decides"),
        ({"client_rows": "label=1"}, "client-rows: "),
        ({"server_examples": 5}, "server-examples: "),
        ({"domain_column": "kind"}, "domain-column: "),
        ({"min_test_examples": 1}, "min-test-examples: "),
    ],
)
def test_keys_that_would_divide_otherwise_are_refused(tmp_path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(FlorilegiumError, match=message):
        _build(_write(tmp_path / "s.json", SPLIT), **keys)


def test_another_suffix_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigurationError, match=r"must end in .json, .csv or .npz"):
        _build(_write(tmp_path / "s.txt", "a"))


def test_rows_may_be_shared_where_the_file_says_so(tmp_path) -> None:
    shared = {"shared": True, "clients": [{"train": [1, 2], "test": [3]}, {"train": [2], "test": [3]}]}
    assert _build(_write(tmp_path / "s.json", shared)).train.rows.tolist() == [1, 2, 2]


class TestRoundTrip:
    @pytest.mark.parametrize(
        "keys",
        [
            {"partitioner": "dirichlet", "num_clients": 6},
            {"partitioner": "classes", "num_clients": 30, "samples_per_client": 100},  # clients share rows
            {"partitioner": "natural", "num_clients": 0, "dataset": "femnist"},  # test rows of the training split
            {"partitioner": "iid", "num_clients": 3, "dataset": "femnist"},
        ],
    )
    def test_a_saved_federation_comes_back(self, tmp_path, keys: dict[str, Any]) -> None:
        write(tmp_path, "femnist", train=40)
        folders = {"cache_dir": str(tmp_path)} | ({"data_dir": str(tmp_path)} if keys.get("dataset") else {})
        before, dataset = federate(settings(**keys, **folders))
        path = tmp_path / "split.json"
        sizes = DIGITS if "dataset" not in keys else (40, 0)
        write_split(of_federation(before, dataset, sizes), path)
        own = {"partitioner": "file", "file.path": str(path), "num_clients": 0}
        after, again = federate(settings(**{**keys, **folders, "samples_per_client": 0, **own}))
        for name in ("rows", "offsets"):
            for part in ("train", "test"):
                first, second = (getattr(getattr(f, part), name) for f in (before, after))
                np.testing.assert_array_equal(first, second)
        assert before.names.tolist() == after.names.tolist()
        assert before.test_from_train == after.test_from_train
        for part in ("train", "test"):
            for client in range(len(before)):
                np.testing.assert_array_equal(
                    decoded(before, dataset, client, part)[0], decoded(after, again, client, part)[0]
                )

    def test_the_command_saves_the_federation_that_it_shows(self, tmp_path, capsys) -> None:
        path, keys = tmp_path / "split.json", {"num-clients": 5, "cache-dir": str(CACHE), "seed": 3}
        sets = [word for name, value in keys.items() for word in ("--set", f"{name}={value}")]
        cli(["partition", *sets, "--save", str(path)], standalone_mode=False)
        assert capsys.readouterr().out.split()[-1] == str(path)
        table = read_split(path)
        before, _ = federate(settings(num_clients=5, seed=3))
        assert (table.dataset, table.examples, table.pooled) == ("digits", DIGITS, False)
        for client in range(5):
            np.testing.assert_array_equal(table.train[client], before.train[client])
            np.testing.assert_array_equal(table.test[client], before.test[client])

    def test_what_a_split_does_not_hold_is_refused(self, tmp_path) -> None:
        for keys, message in (
            ({"partitioner": "rotation"}, "--save: the federation has rotated images"),
            ({"canaries": 3}, "--save: the federation has canaries"),
            ({"server_examples": 9}, "--save: the federation has examples of the server"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                of_federation(*federate(settings(num_clients=4, **keys)), DIGITS)
        table = of_federation(*federate(settings(num_clients=4)), DIGITS)
        with pytest.raises(ConfigurationError, match=r"must end in .json"):
            write_split(table, tmp_path / "split.csv")
        with pytest.raises(DataError, match="no training rows"):
            write_split(dataclasses.replace(table, train=(np.zeros(0, np.int64),) * 4), tmp_path / "split.json")

    def test_what_is_written_is_read(self, tmp_path) -> None:
        table = read_split(_write(tmp_path / "s.json", [{"name": 'é"', "train": [1]}, {"train": [3, 2]}]))
        write_split(table, tmp_path / "t.json")
        again = read_split(tmp_path / "t.json")
        assert again.names == ('é"', "")
        assert again.test is None
        assert [rows.tolist() for rows in again.train] == [[1], [3, 2]]
