"""Equal rows: counted within and across clients and for the server, by decoded content; dropped or refused if asked."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.device_data import read_device
from florilegium.partitions.duplicates import duplicates
from florilegium.partitions.federation import federate
from florilegium.partitions.partitioners.keys import FileKeys
from florilegium.partitions.remarks import remarks
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.partitions.sources.schema import read_schema
from tests.support import settings


def _keys(tmp_path: Path, *parts: Any, **keys: Any) -> FederationSettings:
    cache = str(tmp_path / "cache")
    folder = array_dataset(*parts, cache_dir=cache)
    return settings(dataset=str(folder), cache_dir=cache, partitioner="natural", num_clients=0, model="linear", **keys)


def _counts(keys: FederationSettings) -> dict[str, int]:
    return duplicates(keys, *federate(keys)).counts


def _rows(*kinds: str) -> tuple[Any, Any, Any]:
    """Return rows, each a letter that says its content and perhaps a label, behind its client's name: "a:K1"."""
    names = [kind.partition(":")[0] for kind in kinds]
    content = [kind.partition(":")[2] for kind in kinds]
    x = np.array([[ord(one[0]), 1.0] for one in content], np.float32)
    return x, np.array([int(one[1:] or 0) for one in content]), np.array(names)


def test_each_count_is_what_the_rows_say(tmp_path: Path) -> None:
    """a trains on K K L, b on L M1; tests: a has K (own), M1 (b's alone), N (new), b has M1 (own)."""
    train, test = _rows("a:K", "a:K", "a:L", "b:L", "b:M1"), _rows("a:K", "a:M1", "a:N", "b:M1")
    assert _counts(_keys(tmp_path, train, test)) == {
        "test_rows": 4, "in_own_training": 2, "in_other_training": 1, "repeated_training": 1, "shared_training": 2,
    }  # fmt: skip


def test_the_same_input_with_another_target_is_another_row(tmp_path: Path) -> None:
    train, test = _rows("a:K", "a:L1", "b:M", "b:N1"), _rows("a:K1", "b:N")
    assert not _counts(_keys(tmp_path, train, test))


def test_without_equal_rows_nothing_is_said(tmp_path: Path) -> None:
    keys = _keys(tmp_path, _rows("a:K", "a:L1", "b:M", "b:N1"), _rows("a:O1", "b:P"))
    assert not _counts(keys)
    assert not remarks(keys).warnings


def test_rows_that_repeat_before_the_split_are_found_in_the_held_out_fifth(tmp_path: Path) -> None:
    """Every content thrice: a held-out row is new only if all three are held out; of one client, none can be."""
    kinds = [f"a:{letter}{number % 2}" for number, letter in enumerate("KLMNO")]
    found = _counts(_keys(tmp_path, _rows(*(kinds * 3))))
    assert found["in_own_training"] == found["test_rows"] == 3
    assert found["repeated_training"] == 12 - 5


def test_a_warning_stands_in_the_summary_the_log_and_the_count(tmp_path: Path) -> None:
    keys = _keys(tmp_path, _rows("a:K", "a:L1", "b:M", "b:N1"), _rows("a:K", "b:O"))
    said = "1 of 2 test rows (50.0%) equal training rows (1 of the same client, 0 of other clients alone)"
    assert remarks(keys).warnings == (f"{said}, so that figures may be too good; see the key duplicates",)


def test_one_leak_among_many_is_a_line_of_the_log_alone(tmp_path: Path) -> None:
    x = np.arange(602, dtype=np.float32).reshape(301, 2)
    y, names = np.arange(301) % 2, np.array(["a"] * 301)
    keys = _keys(tmp_path, (x[:101], y[:101], names[:101]), (x[100:], y[100:], names[100:]))
    assert remarks(keys).warnings == ()
    assert "1 of 201 test rows (0.5%) equal training rows (1 of the same client, 0 of other" in remarks(keys).lines[-1]


def test_pictures_are_compared_by_pixels_whatever_their_files(tmp_path: Path) -> None:
    def cell(shade: int, kind: str, **options: Any) -> dict[str, Any]:
        file = io.BytesIO()
        Image.new("RGB", (4, 4), (shade, 2 * shade, 0)).save(file, kind, **options)
        return {"bytes": file.getvalue(), "path": None}

    own = tmp_path / "own"
    own.mkdir()
    train = [cell(shade, "PNG") for shade in (10, 20, 30, 40)]
    test = [cell(10, "BMP"), cell(20, "PNG", compress_level=0), cell(99, "PNG")]
    for part, cells in (("train", train), ("test", test)):
        labels = [number % 2 for number in range(len(cells))]
        pq.write_table(pa.table({"image": cells, "label": labels}), own / f"{part}.parquet")
    keys = settings(
        dataset=str(own), cache_dir=str(tmp_path / "cache"), partitioner="iid", num_clients=1, model="linear"
    )
    federation, dataset = federate(keys)
    held = dataset.test.x[federation.test[0]][:, 0, 0, 0]  # type: ignore[union-attr]
    assert duplicates(keys, federation, dataset).in_own_training == int(np.isin(held, [10, 20]).sum()) > 0


def test_the_servers_rows_are_compared_by_their_inputs(tmp_path: Path) -> None:
    x = np.repeat(np.arange(20, dtype=np.float32), 2).reshape(40, 1) * np.ones(2, np.float32)
    keys = _keys(tmp_path, (x, np.arange(40) % 2), server_examples=20).model_copy(
        update={"partitioner": "iid", "num_clients": 2}
    )
    federation, dataset = federate(keys)
    tests = np.concatenate([dataset.train.x[federation.test[i]] for i in range(2)])[:, 0]
    server = {*dataset.train.x[federation.server][:, 0].tolist()}
    expected = sum(value in server for value in tests.tolist())
    assert _counts(keys).get("in_server", 0) == expected > 0


def test_a_row_that_several_clients_are_given_on_purpose_is_no_copy(tmp_path: Path) -> None:
    split = tmp_path / "split.json"
    clients = [{"train": [0, 1], "test": []}, {"train": [0, 2], "test": []}]
    split.write_text(json.dumps({"shared": True, "clients": clients}))
    keys = _keys(tmp_path, _rows("a:K", "a:L1", "a:L1"), _rows("a:P", "a:Q1"))
    found = _counts(keys.model_copy(update={"partitioner": "file", "own": FileKeys(path=str(split))}))
    assert found["shared_training"] == 2  # rows 1 and 2, not row 0


def test_refuse_names_the_numbers_and_drop_uses_equal_rows_once(tmp_path: Path) -> None:
    parts = _rows("a:K", "a:K", "a:L1", "b:L1", "b:M", "b:M"), _rows("a:K", "a:P1", "a:P1", "b:Q")
    with pytest.raises(DataError, match=r"^duplicates: 1 of 4 test rows .*duplicates = 'drop'"):
        remarks(_keys(tmp_path, *parts, duplicates="refuse"))
    keys = _keys(tmp_path, *parts, duplicates="drop")
    federation, dataset = federate(keys)
    held = {
        str(name): (dataset.train.x[federation.train[i], 0].tolist(), dataset.test.x[federation.test[i], 0].tolist())  # type: ignore[union-attr]
        for i, name in enumerate(federation.names)
    }
    letters = {name: tuple("".join(chr(int(v)) for v in own) for own in parts) for name, parts in held.items()}
    assert letters == {"a": ("KL", "P"), "b": ("M", "Q")}
    assert not _counts(keys)


def test_drop_comes_before_the_split(tmp_path: Path) -> None:
    """Copies of 20 contents, five of each: of 20 rows a fifth is held out, and none is in training."""
    contents = [f"a:{chr(65 + number)}{number % 2}" for number in range(20)]
    keys = _keys(tmp_path, _rows(*(contents * 5)), duplicates="drop")
    federation, _ = federate(keys)
    assert (len(federation.train[0]), len(federation.test[0])) == (16, 4)
    assert not _counts(keys)


def test_drop_does_not_go_with_splits_that_count_rows(tmp_path: Path) -> None:
    split = tmp_path / "split.json"
    split.write_text('{"clients": [{"train": [0, 1], "test": [2]}]}')
    keys = _keys(tmp_path, _rows("a:K", "a:L1", "a:M"), duplicates="drop")
    with pytest.raises(ConfigurationError, match="duplicates: 'drop' leaves rows out"):
        federate(keys.model_copy(update={"partitioner": "file", "own": FileKeys(path=str(split))}))


def test_clients_that_are_skipped_are_counted_and_named(tmp_path: Path) -> None:
    """Of c's three rows one is held out, of d's two none; from "b" on each content is another."""
    kinds = [f"{name}:{chr(65 + number)}{number % 2}" for number, name in enumerate("aaaaabbbbbcccdd")]
    keys = _keys(tmp_path, _rows(*kinds), min_test_examples=1)
    assert remarks(keys).warnings == ("min-test-examples: 1 of 4 clients are skipped: d",)


class TestDevices:
    def _site(self, tmp_path: Path, test: str = "") -> tuple[Path, Any]:
        (tmp_path / "schema.toml").write_text('label = "y"\nlabels = ["0", "1"]\n[numbers]\nx = [0.0, 1.0]\n')
        site = tmp_path / "site"
        site.mkdir()
        (site / "train.csv").write_text("x,y\n" + "".join(f"{n % 40},{n % 2}\n" for n in range(80)))
        if test:
            (site / "test.csv").write_text(f"x,y\n{test}")
        return site, read_schema(tmp_path)

    def test_equal_rows_are_noted_for_the_device_alone(self, tmp_path: Path) -> None:
        data = read_device(*self._site(tmp_path, "1,1\n2,0\n99,1\n"))
        assert "2 of 3 test examples equal training examples, 40 training examples repeat others" in data.notes
        assert (len(data.train), len(data.test)) == (80, 3)

    def test_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="2 of 3 test examples equal training examples"):
            read_device(*self._site(tmp_path, "1,1\n2,0\n99,1\n"), duplicates="refuse")

    def test_dropped_from_both_parts(self, tmp_path: Path) -> None:
        data = read_device(*self._site(tmp_path, "1,1\n2,0\n99,1\n"), duplicates="drop")
        assert (len(data.train), data.test.x[:, 0].tolist()) == (40, [99])

    def test_dropped_before_rows_are_held_back(self, tmp_path: Path) -> None:
        data = read_device(*self._site(tmp_path), duplicates="drop")
        train, test = ({*part.x[:, 0].tolist()} for part in (data.train, data.test))
        assert len(data.train) + len(data.test) == 40 == len(train | test)
