"""Read and write files with a split of one's own: JSON, CSV and NumPy's npz.

The formats are described in docs/partitions.md, "A split of your own".
"""

from __future__ import annotations

import csv
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.files import write_text
from florilegium.common.memo import remembered
from florilegium.common.settings import folder
from florilegium.partitions.partitioners.keys import FileKeys
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Federation, Rows
from florilegium.partitions.spec import PARTS, Dataset
from florilegium.partitions.split_table import SplitTable

COUNTS = ("split", "pooled")
_FACTS = ("rows", "shared", "dataset", "examples")
_LARGEST = 2**63 - 1
_COLUMNS = ("client", "part", "row")


@dataclass
class _Client:
    """Rows of one client as the file lists them; a part that the file does not mention is None."""

    name: str
    train: Rows | None = None
    test: Rows | None = None


@dataclass
class _Content:
    """What a file holds: clients in its order, and what it says about the split."""

    clients: list[_Client]
    facts: dict[str, Any] = field(default_factory=dict)


def read(settings: FederationSettings) -> SplitTable:
    """Return the split in the file ``file.path``.

    Raises:
        ConfigurationError: if the key is empty, the file cannot be read, has another suffix than .json, .csv and .npz,
            or another hash than ``file.hash``.
        DataError: if the file is malformed.
    """
    own = settings.own_keys(FileKeys)
    if not own.path:
        raise ConfigurationError('file.path: partitioner = "file" needs the file of a split, .json, .csv or .npz')
    path = folder(own.path)
    found = file_hash(path)
    if own.hash and found != own.hash:
        raise ConfigurationError(
            f"file.path: {path} has changed: its hash is {found}, not file.hash = {own.hash}. Restore the file, or "
            "start a new run with file.hash = ''"
        )
    return _cached(path, found)


def file_hash(path: Path) -> str:
    """Return the first 16 hexadecimal digits of a file's SHA-256, as key ``file.hash`` has them.

    Raises:
        ConfigurationError: if the file cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ConfigurationError(f"file.path: {path} cannot be read ({error.strerror})") from error


@remembered(2)
def _cached(path: Path, content: str) -> SplitTable:
    """Read a file whose content has the hash ``content``."""
    return read_split(path)


def read_split(path: Path) -> SplitTable:
    """Read a split from a file and check all that can be checked without the dataset.

    Raises:
        ConfigurationError: if the file has another suffix than .json, .csv and .npz.
        DataError: if it is malformed, or :meth:`SplitTable.check` fails; the message names the file.
    """
    readers: Mapping[str, Callable[[Path], _Content]] = {".json": _read_json, ".csv": _read_csv, ".npz": _read_npz}
    if path.suffix not in readers:
        raise ConfigurationError(f"file.path: {path} must end in .json, .csv or .npz")
    try:
        content = readers[path.suffix](path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    table = _to_table(path, content)
    table.check()
    return table


def _to_table(path: Path, content: _Content) -> SplitTable:
    facts, clients = content.facts, content.clients
    if unknown := [name for name in facts if name not in _FACTS]:
        raise DataError(f"{path}: there is no entry '{unknown[0]}'. Known: {', '.join(_FACTS)}")
    rows, shared, dataset = facts.get("rows", "split"), facts.get("shared", False), facts.get("dataset", "")
    if rows not in COUNTS:
        raise DataError(f"{path}: rows: {rows!r} is neither 'split' nor 'pooled'")
    if not isinstance(shared, bool):
        raise DataError(f"{path}: shared: {shared!r} is neither true nor false")
    if not isinstance(dataset, str):
        raise DataError(f"{path}: dataset: {dataset!r} is no name of a dataset")
    examples = facts.get("examples")
    if examples is not None and not (isinstance(examples, list) and len(examples) == 2 and all(map(_whole, examples))):
        raise DataError(
            f"{path}: examples: {examples!r} are not the numbers of training and test rows, as [60000, 10000]"
        )
    empty = np.zeros(0, np.int64)
    tests = [client.test for client in clients]
    return SplitTable(
        str(path),
        tuple(client.name for client in clients),
        tuple(empty if client.train is None else client.train for client in clients),
        None if all(test is None for test in tests) else tuple(empty if test is None else test for test in tests),
        rows == "pooled",
        shared,
        dataset,
        (examples[0], examples[1]) if examples else None,
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _row(value: object, where: str) -> int:
    """Return ``value`` if it is a whole number that an index can have.

    Raises:
        DataError: otherwise; the message begins with ``where``.
    """
    if not _whole(value):
        raise DataError(f"{where}: {value!r} is no row number; expected a whole number ≥ 0")
    assert isinstance(value, int)
    if abs(value) > _LARGEST:
        raise DataError(f"{where}: row {value} does not exist; the number is far too large")
    return value


# ---------------------------------------------------------------------------------------------------- JSON


def _read_json(path: Path) -> _Content:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise DataError(f"{path}: '{twice[0]}' occurs twice")
        return dict(items)

    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=pairs)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    except ValueError as error:  # Python refuses to read whole numbers of thousands of digits
        raise DataError(f"{path}: a number is far too large for a row: {error}") from error
    facts = {}
    if isinstance(content, dict) and "clients" in content:
        facts = {name: value for name, value in content.items() if name != "clients"}
        content = content["clients"]
    if isinstance(content, dict):
        return _Content([_json_client(path, name, parts, str(name)) for name, parts in content.items()], facts)
    if not isinstance(content, list):
        raise DataError(
            f'{path}: expected clients: an object such as {{"alice": {{"train": [0, 5], "test": [3]}}}}, or a list '
            f"of such parts (found: {type(content).__name__})"
        )
    clients = []
    for index, parts in enumerate(content):
        name = parts.pop("name", "") if isinstance(parts, dict) else ""
        if not isinstance(name, str):
            raise DataError(f"{path}: client {index}: name: {name!r} is no text")
        clients.append(_json_client(path, name, parts, str(index)))
    return _Content(clients, facts)


def _json_client(path: Path, name: str, parts: object, shown: str) -> _Client:
    where = f"{path}: client '{shown}'"
    if not isinstance(parts, dict):
        raise DataError(
            f"{where}: expected an object with the lists 'train' and 'test' (found: {parts!r:.40}); facts about the "
            'split stand beside "clients": {"rows": "pooled", "clients": {…}}'
        )
    if unknown := [part for part in parts if part not in PARTS]:
        raise DataError(f"{where}: there is no part '{unknown[0]}'; expected 'train' and 'test'")
    found = {}
    for part, rows in parts.items():
        if not isinstance(rows, list):
            raise DataError(f"{where}, part '{part}': expected a list of row numbers (found: {rows!r:.40})")
        at = f"{where}, part '{part}'"
        found[part] = np.array([_row(value, at) for value in rows], dtype=np.int64)
    return _Client(name, **found)


# ----------------------------------------------------------------------------------------------------- CSV


def _read_csv(path: Path) -> _Content:
    facts: dict[str, Any] = {}
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    start = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    for line in lines[:start]:
        name, _, text = line.removeprefix("#").partition(":")
        facts[name.strip()] = _fact(name.strip(), text.strip())
    reader = csv.reader(lines[start:], strict=True)
    try:
        header = next(reader, None)
        if header is None or tuple(cell.strip() for cell in header) != _COLUMNS:
            raise DataError(f"{path}, line {start + 1}: expected the header '{','.join(_COLUMNS)}' (found: {header})")
        names: list[str] = []
        parts: list[str] = []
        rows: list[int] = []
        for cells in reader:
            if not cells:
                continue
            where = f"{path}, line {start + reader.line_num}"
            if len(cells) != len(_COLUMNS):
                raise DataError(f"{where}: {len(cells)} cells; expected {','.join(_COLUMNS)}")
            name, part, text = (cell.strip() for cell in cells)
            try:
                value: object = int(text)
            except ValueError:
                value = text
            names.append(name)
            parts.append(part)
            rows.append(_row(value, f"{where}, client '{name}'"))
    except csv.Error as error:
        raise DataError(f"{path}, line {start + reader.line_num}: no valid CSV: {error}") from error
    return _Content(_grouped(path, names, parts, np.array(rows, dtype=np.int64)), facts)


def _fact(name: str, text: str) -> object:
    """Return the value of a fact about the split that is written as text."""
    if name == "shared":
        return {"true": True, "false": False}.get(text, text)
    if name == "examples":
        cells = text.strip("[]").split(",")
        return [int(cell) if cell.strip().isdecimal() else cell for cell in cells]
    return text


def _grouped(path: Path, names: Sequence[str], parts: Sequence[str], rows: Rows) -> list[_Client]:
    """Return the clients of a list of (client, part, row), in the order in which their names first occur."""
    wanted: dict[str, dict[str, list[int]]] = {}
    for name, part, row in zip(names, parts, rows.tolist(), strict=True):
        if part not in PARTS:
            raise DataError(
                f"{path}: client '{name}', row {row}: there is no part '{part}'; expected 'train' or 'test'"
            )
        wanted.setdefault(name, {}).setdefault(part, []).append(row)
    return [
        _Client(name, **{part: np.array(found, dtype=np.int64) for part, found in lists.items()})
        for name, lists in wanted.items()
    ]


# ----------------------------------------------------------------------------------------------------- npz


def _read_npz(path: Path) -> _Content:
    arrays: dict[str, NDArray[Any]] = {}
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is no .npz file; write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                arrays[name] = file[name]
                if not isinstance(arrays[name], np.ndarray):
                    raise ValueError(f"'{name}' is no array")
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise DataError(
            f"{path} cannot be read: {error}. Expected an .npz of plain arrays; pickled objects are not read, since "
            "they can run any code"
        ) from error
    facts = {name: arrays.pop(name).tolist() for name in _FACTS if name in arrays}
    if set(arrays) == set(_COLUMNS):
        names, parts, rows = (arrays[name] for name in _COLUMNS)
        if {array.ndim for array in (names, parts, rows)} != {1} or not len(names) == len(parts) == len(rows):
            raise DataError(f"{path}: client, part and row must be one-dimensional and equally long")
        return _Content(
            _grouped(path, [str(name) for name in names], list(map(str, parts)), _rows(path, "row", rows)), facts
        )
    known = {"train_rows", "train_offsets", "test_rows", "test_offsets", "names"}
    if unknown := set(arrays) - known:
        raise DataError(
            f"{path}: there is no array '{min(unknown)}'; expected {', '.join(_COLUMNS)}, or {', '.join(sorted(known))}"
        )
    train = _lists(path, arrays, "train")
    if train is None:
        raise DataError(f"{path}: there are no arrays 'train_rows' and 'train_offsets', nor {', '.join(_COLUMNS)}")
    test = _lists(path, arrays, "test")
    names = arrays.get("names", np.array([""] * len(train)))
    if names.shape != (len(train),) or (test is not None and len(test) != len(train)):
        raise DataError(f"{path}: names, train_offsets and test_offsets must be of equally many clients")
    return _Content(
        [_Client(str(names[i]), train[i], None if test is None else test[i]) for i in range(len(train))], facts
    )


def _rows(path: Path, name: str, array: NDArray[Any]) -> Rows:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"{path}: array '{name}' must be one-dimensional and hold whole numbers (found: {array.dtype})")
    if array.dtype.kind == "u" and len(array) and array.max() > _LARGEST:
        raise DataError(f"{path}: array '{name}': row {array.max()} does not exist; the number is far too large")
    return array.astype(np.int64)


def _lists(path: Path, arrays: Mapping[str, NDArray[Any]], part: str) -> list[Rows] | None:
    """Return the rows of each client in ``part``, which are stored end to end; None if there are none."""
    found = [name for name in (f"{part}_rows", f"{part}_offsets") if name in arrays]
    if not found:
        return None
    if len(found) == 1:
        raise DataError(f"{path}: '{found[0]}' stands alone; expected {part}_rows and {part}_offsets")
    rows, offsets = (_rows(path, name, arrays[name]) for name in found)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(rows) or (np.diff(offsets) < 0).any():
        raise DataError(f"{path}: {part}_offsets must rise from 0 to the number of rows, {len(rows)}")
    return [rows[start:stop] for start, stop in pairwise(offsets)]


# ------------------------------------------------------------------------------------------------- writing


def of_federation(federation: Federation, dataset: Dataset, sizes: tuple[int, int]) -> SplitTable:
    """Return the split of a federation.

    Args:
        federation: the federation.
        dataset: its dataset.
        sizes: numbers of training and test rows of the dataset before pooling.

    Raises:
        ConfigurationError: if the federation has more than rows: rotations, noise, canaries, or examples of the server.
    """
    for what, there in (
        ("rotated images", federation.angles.any()), ("images with noise", federation.noise is not None),
        ("canaries", len(federation.canaries.rows)),
        ("examples of the server", len(federation.server)),
    ):  # fmt: skip
        if there:
            raise ConfigurationError(f"--save: the federation has {what}, which a split does not hold")
    clients = range(len(federation))
    train, test = federation.train.rows, federation.test.rows
    together = [np.concatenate([train, test])] if federation.test_from_train else [train, test]
    return SplitTable(
        "this federation",
        tuple(map(str, federation.names)),
        tuple(federation.train[client] for client in clients),
        tuple(federation.test[client] for client in clients),
        pooled=federation.test_from_train,
        shared=any(len(np.unique(rows)) < len(rows) for rows in together),
        dataset=dataset.spec.name,
        examples=sizes,
    )


def write_split(table: SplitTable, path: Path) -> None:
    """Write a split as JSON, a line for each client and part.

    Raises:
        ConfigurationError: if the file's name does not end in .json.
        DataError: if :meth:`SplitTable.check` fails.
    """
    if path.suffix != ".json":
        raise ConfigurationError(f"{path}: splits are written as JSON; the name must end in .json")
    table.check()
    facts: dict[str, object] = {"rows": COUNTS[table.pooled], "shared": table.shared}
    if table.dataset:
        facts["dataset"] = table.dataset
    if table.examples:
        facts["examples"] = list(table.examples)
    head = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in facts.items())
    clients = []
    for client, name in enumerate(table.names):
        parts = {"train": table.train} | ({"test": table.test} if table.test is not None else {})
        entries = ([f'"name": {json.dumps(name, ensure_ascii=False)}'] if name else []) + [
            f'"{part}": {json.dumps(rows_of[client].tolist())}' for part, rows_of in parts.items()
        ]
        clients.append("  {" + ",\n   ".join(entries) + "}")
    write_text(path, "{\n" + head + ' "clients": [\n' + ",\n".join(clients) + "\n ]\n}\n")
