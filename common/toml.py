"""Configuration as TOML: nested tables in files, flat dotted keys in Flower's run configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested TOML tables as flat keys joined by dots, as Flower's run configuration has them."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat keys as nested tables, plain keys first: the opposite of :func:`flatten`."""
    tables: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        table = tables
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = value
    return dict(sorted(tables.items(), key=lambda item: isinstance(item[1], dict)))
