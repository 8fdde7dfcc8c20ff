"""Datasets of arrays made in Python: check them, describe them by a schema, and write them to a folder of the cache.

    path = array_dataset((x, y), (x_test, y_test))              # a dataset of this path
    dataset = "package.module:function"                         # a function that returns or yields the same

Accepted as training or test rows: a tuple ``(x, y)``, ``(x, y, clients)`` with a client's name for each row, or a torch
``Dataset`` of such examples. See :func:`array_dataset` for x and y.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.files import make_once
from florilegium.common.memo import remembered
from florilegium.common.settings import NAME, folder
from florilegium.common.text import encode
from florilegium.partitions.sources.names import names_of
from florilegium.partitions.sources.numbers import LOST
from florilegium.partitions.sources.pieces import tokens_of
from florilegium.partitions.sources.schema import Schema
from florilegium.partitions.sources.source import CLIENT, LONGEST_TEXT
from florilegium.partitions.sources.store import Imported, scales, write_dataset
from florilegium.partitions.sources.targets import labels_of, numbers_to_predict
from florilegium.partitions.spec import PARTS, DatasetSpec, Split
from florilegium.tasks.losses import IGNORED

log = logging.getLogger("flwr")

_FORMAT = 1
_CHANNELS = (1, 3)
_FEW = 100
"""Targets with no more values than this may be meant as classes."""
CACHE = "~/.florilegium/cache"


@dataclass(frozen=True)
class ArrayFunction:
    """A function of another package that returns or yields a dataset's arrays.

    Attributes:
        name: the dataset's name in messages and file names.
        call: the function.
    """

    name: str
    call: Callable[[], Any]


def read_entry(found: Any, reference: str) -> DatasetSpec | ArrayFunction:
    """Return what another package provides as a dataset; raise ``TypeError`` if it is neither.

    Args:
        found: a :class:`DatasetSpec`, or a function without arguments (:class:`ArrayFunction`).
        reference: its reference ``package.module:attribute``.
    """
    if isinstance(found, DatasetSpec):
        if not re.fullmatch(NAME, found.name):
            raise TypeError(f"its name '{found.name}' cannot name a file; use letters, digits, '.', '_' and '-'")
        return found
    if not callable(found):
        raise TypeError(
            "expected a DatasetSpec, or a function without arguments that returns (x, y) for training and, if there "
            f"test rows, another pair (found: {type(found).__name__})"
        )
    return ArrayFunction(re.sub(r"[^A-Za-z0-9_-]", "-", reference.partition(":")[2]).strip("-") or "arrays", found)


@remembered(16)
def from_function(function: ArrayFunction, cache: Path, tokenizer: str = "", length: int = 0) -> Path:
    """Call a function, once per process, write what it returns to the cache, and return the folder.

    ``tokenizer`` and ``length`` say how texts become tokens (:meth:`DatasetSpec.read_by`).

    Raises:
        ConfigurationError: if it fails.
        DataError: if it returns something else than a dataset.
    """
    try:
        returned = function.call()
        # A generator runs while it is read.
        parts = list(returned) if _yields(returned) else _both(returned)
    except Exception as error:  # the owner's code may raise any exception
        raise ConfigurationError(
            f"dataset: function '{function.name}' failed when it was called: {type(error).__name__}: {error}"
        ) from error
    if not 1 <= len(parts) <= len(PARTS):
        raise DataError(
            f"dataset: function '{function.name}' gave {len(parts)} parts; expected (x, y) for training, and perhaps "
            "another for tests"
        )
    return _stored(function.name, cache, *parts, tokenizer=tokenizer, length=length)


def _yields(returned: Any) -> bool:
    return hasattr(returned, "__next__") or isinstance(returned, list)


def _both(returned: Any) -> list[Any]:
    """Return the training part, and the test part if there are two parts rather than x and y."""
    two = isinstance(returned, tuple) and len(returned) == len(PARTS)
    return list(returned) if two and all(isinstance(p, tuple) or _is_examples(p) for p in returned) else [returned]


def _is_examples(part: Any) -> bool:
    """Return whether ``part`` is a torch ``Dataset``: it has examples, and is none of the containers of x and y."""
    containers = (tuple, list, str, bytes, Mapping, np.ndarray)
    return hasattr(part, "__getitem__") and hasattr(part, "__len__") and not (
        isinstance(part, containers) or hasattr(part, "__array__")
    )  # fmt: skip


def array_dataset(
    train: Any,
    test: Any = None,
    *,
    name: str = "arrays",
    cache_dir: str = CACHE,
    tokenizer: str = "",
    text_length: int = 0,
) -> str:
    """Write arrays as a dataset; return the path of its folder, a value for the key ``dataset``.

    The folder is named by a hash of its content, so equal arrays are stored once.

    Args:
        train: the training rows, in one of the forms of this module. x may be uint8 images of 1 or 3 channels, (n,
            height, width, channels), (n, channels, height, width) or (n, height, width), which are standardised by the
            training rows' mean and deviation; floats (n, …), which a network receives as they are (images in the
            layout (n, channels, height, width)); integers (n, length), tokens of sequences; or n texts. y holds classes
            (integers, strings, bools); floats to predict, (n,) or (n, k); or integers (n, *positions), a class 0, 1, …
            for each position of a row, such as the pixels of an image, −100 where none counts.
        test: the test rows, in the same form; None: a fifth of each client's rows is held out for tests.
        name: the dataset's name in messages.
        cache_dir: the folder of the cache, as the key ``cache-dir``.
        tokenizer: folder of the pretrained model that is to read n texts; "": they are characters.
        text_length: as the key ``text-length``, with a ``tokenizer``.

    Raises:
        ConfigurationError: if ``name`` cannot name a file.
        DataError: if the arrays cannot be used, with the row at fault.
    """
    if not re.fullmatch(NAME, name):
        raise ConfigurationError(f"name: '{name}' cannot name a file; use letters, digits, '.', '_' and '-'")
    return str(_stored(name, folder(cache_dir), train, test, tokenizer=tokenizer, length=text_length))


def _stored(name: str, cache: Path, train: Any, test: Any = None, *, tokenizer: str, length: int) -> Path:
    given = {"train": train} | ({} if test is None else {"test": test})
    parts = {part: _read(value, f"{name}, {part}") for part, value in given.items()}
    schema, splits = _described(name, parts, tokenizer, length)
    target = cache.absolute() / "arrays" / _hash(schema, splits)
    return make_once(target, lambda: Imported(schema, splits), write_dataset)


def _hash(schema: Mapping[str, Any], splits: Mapping[str, Split]) -> str:
    digest = hashlib.sha256(json.dumps([_FORMAT, schema]).encode())
    for part, split in splits.items():
        for key, array in {"x": split.x, "y": split.y, **split.clients}.items():
            digest.update(json.dumps([part, key, str(array.dtype), array.shape]).encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()[:20]


# ------------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class _Part:
    """Rows in one array each: inputs (or texts), labels, and clients' names if given; ``where`` for messages."""

    where: str
    x: NDArray[Any] | list[str]
    y: NDArray[Any]
    clients: NDArray[np.str_] | None


def _read(value: Any, where: str) -> _Part:
    if _is_examples(value):
        value = _columns(value, where)
    if not isinstance(value, tuple) or len(value) not in (2, 3):
        found = f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
        raise DataError(f"{where}: expected (x, y), (x, y, clients) or a torch Dataset (found: {found})")
    x, y = _array(value[0], f"{where}: x"), _array(value[1], f"{where}: y")
    clients = None
    if len(value) == 3:
        clients = names_of(_plain(value[2]), f"{where}: clients")
    lengths = {"x": len(x), "y": len(y)} | ({} if clients is None else {"clients": len(clients)})
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{where}: {', '.join(f'{key} has {n} rows' for key, n in lengths.items())}; all must have as many"
        )
    if not len(x):
        raise DataError(f"{where}: there are no rows")
    return _Part(where, x, np.array(y) if isinstance(y, list) else y, clients)


def _columns(examples: Any, where: str) -> tuple[Any, ...]:
    """Return the examples of a torch ``Dataset`` as one tuple (x, y) or (x, y, clients)."""
    rows: list[tuple[Any, ...]] = []
    for row in range(len(examples)):
        try:
            example = examples[row]
        except Exception as error:  # the owner's code may raise any exception
            raise DataError(f"{where}: example {row} cannot be read: {type(error).__name__}: {error}") from error
        if not isinstance(example, tuple | list) or len(example) not in (2, 3):
            raise DataError(f"{where}: example {row} is no (x, y) or (x, y, client) (found: {type(example).__name__})")
        x = example[0] if isinstance(example[0], str) else _plain(example[0])
        if rows and not isinstance(x, str) and np.shape(x) != np.shape(rows[0][0]):
            raise DataError(
                f"{where}: example {row} has shape {np.shape(x)}, but example 0 has {np.shape(rows[0][0])}; all inputs "
                "need one shape"
            )
        rows.append((x, *(_scalar(entry) for entry in example[1:])))
    return tuple(list(column) for column in zip(*rows, strict=True)) if rows else ([], [])


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _plain(value: Any) -> Any:
    """Return a tensor, image or other container as a NumPy array; lists and texts as they are."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return value if isinstance(value, list | tuple | str) else np.asarray(value)


def _array(value: Any, where: str) -> NDArray[Any] | list[str]:
    """Return numbers as an array, and texts as a list."""
    value = _plain(value)
    if isinstance(value, str):
        raise DataError(f"{where} is a single text; give a list with a text for each row")
    cells = value if isinstance(value, list | tuple) else value.tolist() if value.dtype.kind in "OU" else []
    if len(cells) and any(isinstance(cell, str) for cell in cells):
        wrong = [row for row, cell in enumerate(cells) if not isinstance(cell, str)]
        if wrong:
            raise DataError(
                f"{where}: row {wrong[0]} is {cells[wrong[0]]!r}, but other rows are texts; {len(wrong)} rows"
            )
        return [str(cell) for cell in cells]
    if none := [row for row, cell in enumerate(cells) if cell is None]:
        raise DataError(f"{where}: row {none[0]} is None, {len(none)} rows in all; remove these rows")
    try:
        array = np.asarray([cell if np.isscalar(cell) else _plain(cell) for cell in value] if len(cells) else value)
    except ValueError as error:
        raise DataError(f"{where}: the rows have several shapes ({error}); all need one shape") from error
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise DataError(
            f"{where} is an array of type {array.dtype} and shape {array.shape}; expected numbers, or a list of texts"
        )
    if array.dtype.kind == "f":
        bad = ~np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
        if bad.any():
            raise DataError(
                f"{where}: row {int(np.argmax(bad))} has a NaN or an infinite number, {int(bad.sum())} rows in all; "
                "remove these rows or replace the values"
            )
    return array


# --------------------------------------------------------------------------------------------- describing


def _described(
    name: str, parts: Mapping[str, _Part], tokenizer: str, length: int
) -> tuple[dict[str, Any], dict[str, Split]]:
    """Return the schema of the parts, and their rows decoded as it says."""
    train, test = parts["train"], parts.get("test")
    schema: dict[str, Any] = {"name": name}
    if test is not None:
        _same_kind(train, test)
    schema |= _inputs(parts)
    for value in parts.values():
        several = value.y.ndim == 2 if value.y.dtype.kind == "f" else value.y.dtype.kind in "iub"
        if value.y.ndim != 1 and not (several and value.y.size and value.y.shape[1:] == train.y.shape[1:]):
            raise DataError(
                f"{value.where}: y has shape {value.y.shape}; expected an entry for each row, (n,), floats (n, k), or "
                "integers (n, *positions), a class for each position"
            )
    targets = train.y.dtype.kind == "f"
    if targets and len(np.unique(train.y)) <= _FEW and not (train.y % 1).any():
        log.warning(
            "%s: y holds floats, all of them whole numbers, and is taken as numbers to predict; for classes give "
            "integers, y.astype(int)", train.where,
        )  # fmt: skip
    if targets:
        schema["target"] = "y" if train.y.ndim == 1 else [f"y{n}" for n in range(train.y.shape[1])]
    elif train.y.ndim > 1:
        _check_positions(schema, train)
        schema |= {"label": "y", "positions": [*train.y.shape[1:]], "labels": _positions(parts)}
    else:
        schema |= {"label": "y", "labels": _labels(parts)}
    if train.clients is not None:
        schema["clients"] = [CLIENT]
    valid = Schema.model_validate(schema)
    assert not valid.problem(), valid.problem()
    spec, splits = valid.spec(Path(name)).read_by(tokenizer, length), {}
    for part, value in parts.items():
        if targets:
            y: NDArray[Any] = numbers_to_predict(spec, [*value.y.reshape(len(value.y), -1).T], value.where)
        elif spec.positions:
            y = value.y.astype(np.int64)
        else:
            y = labels_of(spec, _cells(value.y), value.where)
        clients = {} if value.clients is None else {CLIENT: value.clients}
        splits[part] = Split(_decoded_inputs(schema, spec, value.x), y, clients)
    return schema, splits


def _same_kind(train: _Part, test: _Part) -> None:
    for key, first, second in (("x", train.x, test.x), ("y", train.y, test.y)):
        one, two = (_kind(array) for array in (first, second))
        if one != two and not (key == "y" and {one, two} <= {"bytes", "integers"}):
            raise DataError(f"{test.where}: {key} holds {two}, but {one} in training")
    if isinstance(train.x, np.ndarray) and isinstance(test.x, np.ndarray) and train.x.shape[1:] != test.x.shape[1:]:
        raise DataError(f"{test.where}: inputs have shape {test.x.shape[1:]}, but {train.x.shape[1:]} in training")
    if (train.clients is None) != (test.clients is None):
        raise DataError(f"{test.where}: either both training and test rows have clients' names, or none has")
    trained, tested = (set() if part.clients is None else set(part.clients.tolist()) for part in (train, test))
    if unknown := sorted(tested - trained):
        raise DataError(f"{test.where}: client '{unknown[0]}' has test rows, but no training rows")


def _kind(array: NDArray[Any] | list[str]) -> str:
    if isinstance(array, list) or array.dtype.kind == "U":
        return "texts"
    if array.dtype.kind == "f":
        return "floats"
    return "bools" if array.dtype.kind == "b" else "bytes" if array.dtype == np.uint8 else "integers"


def _inputs(parts: Mapping[str, _Part]) -> dict[str, Any]:
    """Return the part of the schema that describes inputs."""
    where, x = parts["train"].where, parts["train"].x
    if isinstance(x, list):
        return {"texts": {"column": "text", "length": max(1, min(LONGEST_TEXT, max(map(len, x))))}}
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        pixels = _pixels(x, where)
        mean, std = scales(pixels)
        shape = [pixels.shape[3], pixels.shape[1], pixels.shape[2]]
        return {"pictures": {"column": "image", "shape": shape, "mean": mean, "std": std}}
    if x.dtype.kind == "f" and x.ndim > 1:
        shape = list(x.shape[1:]) if x.ndim != 4 else list(_channels_first(x[:1], where).shape[1:])
        return {"arrays": {"column": "x", "shape": shape}}
    if x.dtype.kind in "iu" and x.ndim == 2:
        tokens = [value.x for value in parts.values() if isinstance(value.x, np.ndarray)]
        if (lowest := min(int(array.min()) for array in tokens)) < 0:
            raise DataError(f"{where}: x holds tokens, integers of 0 or more (found: {lowest}); floats are features")
        return {
            "arrays": {"column": "x", "shape": [x.shape[1]], "tokens": max(int(array.max()) for array in tokens) + 1}
        }
    raise DataError(
        f"{where}: x is {x.dtype} {x.shape}; expected uint8 images (n, height, width, channels), (n, channels, height, "
        "width) or (n, height, width), floats (n, …), integers (n, length), or a list of texts"
    )


def _layout(shape: Sequence[int], where: str, *, required: bool) -> str:
    """Return "first" or "last", the place of 1 or 3 channels in a shape (n, …) of four; "" if neither fits."""
    first, last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
    if first == last and (required or first):
        why = "may be channels first or last" if first else "has neither 1 nor 3 channels, first or last"
        raise DataError(
            f"{where}: x has shape {tuple(shape)}, which {why}; transpose it to the other layout, or pad it"
        )
    return "first" if first else "last" if last else ""


def _pixels(x: NDArray[np.uint8], where: str) -> NDArray[np.uint8]:
    """Return uint8 images as (n, height, width, channels)."""
    if x.ndim == 3:
        return x[..., None]
    return x if _layout(x.shape, where, required=True) == "last" else x.transpose(0, 2, 3, 1)


def _channels_first(x: NDArray[np.floating[Any]], where: str) -> NDArray[np.floating[Any]]:
    """Return float images as (n, channels, height, width); other arrays as they are."""
    return x.transpose(0, 3, 1, 2) if _layout(x.shape, where, required=False) == "last" else x


def _decoded_inputs(schema: Mapping[str, Any], spec: DatasetSpec, x: NDArray[Any] | list[str]) -> NDArray[Any]:
    if isinstance(x, list) and spec.tokenizer:
        notes: list[str] = []
        tokens = tokens_of(x, Path(spec.tokenizer), spec.shape[0], spec.name, notes)
        for note in notes:
            log.warning("%s", note)
        return tokens
    if isinstance(x, list):
        return np.stack([encode(text, schema["texts"]["length"]) for text in x])
    if "pictures" in schema:
        return np.ascontiguousarray(_pixels(x, ""))
    if schema["arrays"].get("tokens"):
        return np.ascontiguousarray(x, dtype=np.int64)
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(_channels_first(x, "") if x.ndim == 4 else x, dtype=np.float32)
    if not np.isfinite(floats).all():
        raise DataError(f"{schema['name']}: x has numbers that are too large for 32-bit floats; scale them")
    if x.ndim == 2:
        _check_digits(schema["name"], x, floats)
    return floats


def _check_digits(name: str, x: NDArray[np.floating[Any]], floats: NDArray[np.float32]) -> None:
    """Refuse features (n, d) of which single precision would round away what tells the rows apart."""
    spread = np.ptp(x, axis=0)
    lost = (np.abs(floats - x).max(axis=0) > LOST * spread) & (spread > 0)
    if lost.any():
        column = int(np.argmax(lost))
        raise DataError(
            f"{name}: column {column} of x has numbers that differ too little, near {np.abs(x[:, column]).max():g}, "
            "for 32-bit floats; standardise the column"
        )


def _check_positions(schema: Mapping[str, Any], train: _Part) -> None:
    """Refuse integers (n, k) that are no classes of the positions of an input, such as classes in one-hot form."""
    shape = schema["pictures"]["shape"][1:] if "pictures" in schema else schema.get("arrays", {}).get("shape", [])
    length = [schema["texts"]["length"]] if "texts" in schema else []
    if [*train.y.shape[1:]] not in (shape, shape[-2:], length):
        raise DataError(
            f"{train.where}: y has shape {train.y.shape}, and integers are the classes of an input's positions, "
            f"{shape or length}; for classes in one-hot form give y.argmax(axis=1), for several labels floats"
        )


def _positions(parts: Mapping[str, _Part]) -> list[int]:
    """Return the classes 0, 1, … of all training positions, which those of the test rows must be among."""
    for value in parts.values():
        wrong = np.argwhere((value.y < 0) & (value.y != IGNORED))
        if len(wrong):
            raise DataError(
                f"{value.where}: y holds {value.y[tuple(wrong[0])]} in row {wrong[0][0]}; classes of positions are 0, "
                f"1, …, or {IGNORED} where none counts"
            )
    train, classes = parts["train"], int(parts["train"].y.max()) + 1
    if classes < 2:
        raise DataError(f"{train.where}: y has one class only; two are needed to learn")
    if (test := parts.get("test")) is not None and test.y.max() >= classes:
        raise DataError(f"{test.where}: y has class {test.y.max()}, which no training row has")
    return [*range(classes)]


def _cells(y: NDArray[Any]) -> list[Any]:
    """Return labels as a schema can write them: bools as text."""
    return [str(cell) if isinstance(cell, bool) else cell for cell in y.tolist()]


def _labels(parts: Mapping[str, _Part]) -> list[Any]:
    """Return the sorted labels of the training rows, which those of the test rows must be among."""
    found = {part: set(_cells(np.unique(y) if (y := value.y).dtype != object else y)) for part, value in parts.items()}
    known = sorted(found["train"])
    if len(known) < 2:
        raise DataError(f"{parts['train'].where}: y has one class only, {known[0]!r}; two are needed to learn")
    if unknown := sorted(found.get("test", set()) - found["train"]):
        raise DataError(
            f"{parts['test'].where}: y has classes that no training row has: {', '.join(map(repr, unknown[:10]))}; "
            "remove these rows, or add training rows"
        )
    return known
