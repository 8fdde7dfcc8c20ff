"""Banking77: questions of bank customers in 77 intents (Casanueva et al. 2020), from the authors' own files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from florilegium.common.errors import DataError
from florilegium.partitions.sources.raw import need_columns, raw_files, read_csv
from florilegium.partitions.sources.source import Source, Tables, Unread
from florilegium.partitions.spec import PARTS, DatasetSpec

INTENTS = 77
_WHERE = "They are files of github.com/PolyAI-LDN/task-specific-datasets, in banking_data, under the licence CC BY 4.0"


def questions(spec: DatasetSpec, source: Source) -> Unread:
    """Return the questions, not read yet; classes are numbered in the order of ``categories.json``."""
    names, *parts = files = raw_files(spec, source, ["categories.json", *(f"{part}.csv" for part in PARTS)], _WHERE)
    return Unread(spec.name, str(names.parent), files, lambda: _read(names, parts))


def _read(names: Path, parts: list[Path]) -> Tables:
    try:
        intents = json.loads(names.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{names} is no JSON: {error}") from error
    if not isinstance(intents, list) or len({*map(str, intents)}) != INTENTS:
        raise DataError(f"{names} must list {INTENTS} names of intents")
    found = {}
    for part, path in zip(PARTS, parts, strict=True):
        table = read_csv(path)
        need_columns(path, table, ["text", "category"])
        if unknown := {*table["category"]} - {*intents}:
            raise DataError(f"{path}: intent '{min(map(str, unknown))}' is not in {names}")
        classes = [intents.index(name) for name in table["category"]]
        found[part] = pa.table({"text": table["text"].astype(str).to_list(), "category": classes})
    return found, []
