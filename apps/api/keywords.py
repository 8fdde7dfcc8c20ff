"""Configuration keys from Python: keywords, nested tables, and your own classes, functions and arrays as values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from florilegium.apps.origins.packages import KINDS, NOTEBOOK
from florilegium.apps.settings.configuration import defaults
from florilegium.common.errors import ConfigurationError
from florilegium.common.memo import forget
from florilegium.common.model_folders import named_folder
from florilegium.common.references import name_of, resolve
from florilegium.common.settings import Value
from florilegium.partitions.sources.source import AUTO


def read_keywords(keywords: Mapping[str, Any]) -> dict[str, Value]:
    """Return keywords as flat configuration keys.

    ``learning_rate=0.1`` sets ``learning-rate``; ``fedprox={"mu": 0.1}`` sets ``fedprox.mu``. A method, model, task,
    dataset, partitioner or tracker may be your own class, function or object, defined at the top level of a module or
    notebook; a dataset may also be arrays (:func:`florilegium.partitions.sources.arrays.array_dataset`).

    Raises:
        ConfigurationError: if a value is of no suitable type.
    """
    forget()  # files and functions may have changed since the last run of this process
    flat = _flat(keywords)
    if (value := flat.get("dataset")) is not None and _is_arrays(value):
        flat = flat | {"dataset": _arrays(value, flat)}
    return {key: _value(key, value) for key, value in flat.items()}


def _flat(keywords: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in keywords.items():
        key = f"{prefix}{name.replace('_', '-')}"
        # A dict is a table of keys; as a dataset it is the arrays.
        flat |= _flat(value, f"{key}.") if isinstance(value, Mapping) and key != "dataset" else {key: value}
    return flat


def _value(key: str, value: Any) -> Value:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, bool | int | float | str):
        return value
    if key in (*KINDS, "tracker") and value is not None:
        return _reference(key, value)
    raise ConfigurationError(
        f"{key}: {type(value).__name__} {value!r:.60} is not a valid value; give a number, a string or a bool"
    )


def _is_arrays(value: Any) -> bool:
    return (
        not isinstance(value, bool | int | float | str | Path | np.generic)
        and not callable(value)
        and not _is_spec(value)
    )


def _arrays(value: Any, keys: Mapping[str, Any]) -> str:
    """Write arrays, or {"train": arrays, "test": arrays}, as a dataset for a run with ``keys``; return its folder."""
    from florilegium.partitions.sources.arrays import array_dataset

    parts = dict(value) if isinstance(value, Mapping) else {"train": value}
    if "train" not in parts or parts.keys() - {"train", "test"}:
        raise ConfigurationError(f"dataset: arrays are given as {{'train': …, 'test': …}} (found: {', '.join(parts)})")
    given = {key: str(keys.get(key, defaults()[key])) for key in ("cache-dir", "tokenizer", "model")}
    tokenizer = named_folder(given["model"]) if given["tokenizer"] == AUTO else given["tokenizer"]
    length = int(keys.get("text-length", 0)) if tokenizer else 0
    return array_dataset(
        parts["train"], parts.get("test"), cache_dir=given["cache-dir"], tokenizer=tokenizer, text_length=length
    )


def _is_spec(value: Any) -> bool:
    from florilegium.partitions.spec import DatasetSpec

    return isinstance(value, DatasetSpec)


def _reference(key: str, thing: Any) -> str:
    """Return the reference to an object of your own, by its name or by the variable that holds it.

    Raises:
        ConfigurationError: if it has no name that can be imported.
    """
    if hasattr(thing, "__qualname__"):
        reference = name_of(thing)
        if resolve(reference) is not thing:
            raise ConfigurationError(
                f"{key}: '{reference}' now means another object than the one given, which was defined earlier, "
                "decorated or reloaded; give the present one"
            )
        return reference
    here = sys.modules[NOTEBOOK]
    importable = [name for name, module in sys.modules.items() if module is not here]
    for module in (*importable, NOTEBOOK):
        for name, value in list(vars(sys.modules[module]).items()):
            if value is thing:
                return f"{module}:{name}"
    raise ConfigurationError(
        f"{key}: this {type(thing).__name__} has no name; assign it to a variable at the top level of your module or "
        "notebook, or name it 'package.module:attribute'"
    )
