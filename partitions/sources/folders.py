"""Read a folder without a parquet file of its own: rows of one dataset, or a file or folder for each client.

own/train.csv, test.csv                 one dataset: also .parquet, or pictures in train/<class>/
own/alice/train.csv, test.csv           a folder for each client: also .parquet
own/bob.parquet, own/dan.csv            a file for each client
own/carol/train/<class>/*.png           pictures of a client: also carol/<class>/*.png

:mod:`florilegium.partitions.sources.parts` says which names are parts, shards and copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.sources.columns import MISSING, listed
from florilegium.partitions.sources.parts import HIDDEN, TABLES, VALIDATION, chosen, contents, part_of, refuse_reserved
from florilegium.partitions.sources.picture_files import pictures_in, suffixes
from florilegium.partitions.sources.places import LEFT_OUT, noted
from florilegium.partitions.sources.schema import FILE
from florilegium.partitions.sources.source import CLIENT, Unread
from florilegium.partitions.sources.table_files import blank_lines, read_parquet, read_texts
from florilegium.partitions.spec import PARTS

EVERY = (*PARTS, VALIDATION)
_HELD_BACK = 0.2
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_NOTES = b"notes"
"""Key in a table's metadata: what is to be said of files that are skipped."""
_Rows = list[tuple[Path, pa.Table]]
LAYOUTS = (
    "Possible are: (1) schema.toml and train.parquet; (2) train.csv or train.parquet, with or without test.csv or "
    "test.parquet, or pictures in train/<class>/; (3) for each client a file <client>.csv or <client>.parquet, or a "
    "folder <client>/ with train.csv, train.parquet, or pictures in train/<class>/ or <class>/"
)


def plain_parquet(folder: Path) -> bool:
    """Return whether all parts of ``folder`` are parquet files, alone or in shards; False without training rows."""
    parts = contents(folder).parts
    return "train" in parts and all(path.suffix.lower() == ".parquet" for own in parts.values() for path in own)


def has_clients(folder: Path) -> bool:
    """Return whether ``folder`` holds a file or folder for each client."""
    found = contents(folder)
    return not found.whole and bool(found.others)


def found(folder: Path) -> Unread:
    """Return the rows of ``folder``, not read yet; their files are all data files in it, sorted.

    Raises:
        ConfigurationError: if the path is relative.
    """
    if not folder.is_absolute():
        raise ConfigurationError(f"dataset: '{folder}' is a relative path; give an absolute one")
    read = {*TABLES, *suffixes()}
    files = sorted(
        file for file in folder.glob("**/*")
        if (file.suffix.lower() in read or file == folder / FILE)
        and not any(part.startswith(HIDDEN) for part in file.relative_to(folder).parts)
    )  # fmt: skip
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in folder.name).strip("-_")
    return Unread(safe or "own", str(folder), files, partial(read_folder, folder))


def read_folder(folder: Path) -> tuple[dict[str, pa.Table], list[str]]:
    """Read the rows of ``folder``; with clients, a column ``client`` has their names, as the files are named.

    If some clients have test rows and others none, a fifth of the training rows of each of the others is held back,
    drawn with a fixed seed. If no client has any, there is no test split.

    Returns:
        The tables "train" and perhaps "test", and a line of text for each decision.

    Raises:
        ConfigurationError: if the folder has none of the possible layouts.
        DataError: if a file cannot be read, its columns differ, or a client has no training rows.
    """
    if folder.is_file():
        raise ConfigurationError(f"dataset: {folder} is a file, not a folder. {LAYOUTS}")
    if not folder.is_dir():
        raise ConfigurationError(f"dataset: there is no folder {folder}")
    found = contents(folder)
    if found.whole:
        parts, notes = _parts(folder)
        return _joined(parts), [*notes, *found.notes(whole=True), *_notes([parts])]
    refuse_reserved(folder, found)
    clients, told = dict[str, dict[str, _Rows]](), dict[str, list[str]]()
    for name, paths in found.others.items():
        if paths[0].is_dir():
            clients[name], said = _parts(paths[0])
            for line in said:
                told.setdefault(line, []).append(name)
        else:
            clients[name] = {"train": [(path, _table(path)) for path in paths], "test": []}
    if not any(parts["train"] for parts in clients.values()):
        there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing"
        raise ConfigurationError(f"dataset: {folder} is no dataset (found: {there}). {LAYOUTS}")
    for name, parts in clients.items():
        if not any(table.num_rows for _, table in parts["train"]):
            raise DataError(
                f"{found.others[name][0]}: client '{name}' has no training rows; give it some, or move it out of "
                f"{folder}"
            )
    tables, notes = _of_clients(folder, clients)
    notes += [*found.notes(whole=False), *(f"{line} (clients: {listed(names)})" for line, names in told.items())]
    return tables, [*notes, *_notes(clients.values())]


def _of_clients(folder: Path, clients: dict[str, dict[str, _Rows]]) -> tuple[dict[str, pa.Table], list[str]]:
    """Join the rows of all ``clients`` of ``folder``; see :func:`read_folder`."""
    tested = [name for name, parts in clients.items() if any(table.num_rows for _, table in parts["test"])]
    notes = [f"clients: {len(clients)}, named as their files: {', '.join([*clients][:10])}"]
    if tested and len(tested) < len(clients):
        notes.append(
            f"test rows: {len(tested)} of {len(clients)} clients have files; of each other client's rows a fifth is "
            "held back"
        )
    joined = _joined({part: [pair for parts in clients.values() for pair in parts.get(part, [])] for part in EVERY})
    if CLIENT in joined["train"].column_names:
        raise DataError(f"{folder}: the files have a column '{CLIENT}', but the clients are named by files; rename it")
    split: dict[str, list[pa.Table]] = {part: [] for part in EVERY}
    origins: dict[str, list[tuple[str, int]]] = {part: [] for part in EVERY}
    starts = dict.fromkeys(split, 0)
    for name, parts in clients.items():
        own = {}
        for part in split:
            count = sum(table.num_rows for _, table in parts.get(part, []))
            own[part] = joined[part].slice(starts[part], count) if count else joined["train"].slice(0, 0)
            starts[part] += count
        divided = bool(tested) and name not in tested
        if divided:
            own |= _held_back(name, own["train"])
        for part, table in own.items():
            split[part].append(table.append_column(CLIENT, pa.array([name] * table.num_rows, pa.string())))
            known = [(str(file), rows.num_rows) for file, rows in parts.get(part, [])]
            origins[part] += [("", table.num_rows)] if divided and part in PARTS else known
    tables = {part: noted(pa.concat_tables(tables), origins[part]) for part, tables in split.items()}
    used = {"train": True, "test": bool(tested), VALIDATION: tables[VALIDATION].num_rows > 0}
    return {part: table for part, table in tables.items() if used[part]}, notes


def _held_back(client: str, rows: pa.Table) -> dict[str, pa.Table]:
    """Divide a client's rows into training and test rows."""
    order = numpy_generator(0, "client folder", client).permutation(rows.num_rows)
    held = round(rows.num_rows * _HELD_BACK)
    return {"train": rows.take(pa.array(np.sort(order[held:]))), "test": rows.take(pa.array(np.sort(order[:held])))}


def _parts(folder: Path) -> tuple[dict[str, _Rows], list[str]]:
    """Return the tables of a folder, for "train" and "test", and a line for each decision; without rows, none."""
    found = contents(folder)
    paths, notes = chosen(found.parts)
    if not found.whole:
        return {"test": [], **_read(paths), "train": _pictures(folder)}, notes
    return {"test": [], **_read(paths)}, [*notes, *found.notes(whole=True)]


def _read(paths: Mapping[str, Sequence[Path]]) -> dict[str, _Rows]:
    return {
        part: _pictures(own[0]) if own[0].is_dir() else [(file, _table(file)) for file in own]
        for part, own in paths.items()
    }


def _table(file: Path) -> pa.Table:
    if file.suffix.lower() == ".parquet":
        return read_parquet(file, may_be_empty=True)
    # Types are decided over all clients' files, so that "007" stays what it is.
    table = read_texts(file)
    notes = f"{LEFT_OUT}{file}: {blank} blank lines" if (blank := blank_lines(table)) else ""
    return table.replace_schema_metadata({b"csv": b"yes", _NOTES: notes})


def _pictures(folder: Path) -> _Rows:
    """Return the pictures in ``<folder>/<class>/`` as a table."""
    apart = [path.name for paths in contents(folder).parts.values() for path in paths]
    found = pictures_in(folder, apart=apart)
    if not found.files:
        rows = [
            path.name for paths in contents(folder).others.values() for path in paths if path.suffix.lower() in TABLES
        ]
        if part_of(folder.name) and rows:
            raise DataError(
                f"{folder} holds files of rows ({listed(rows)}), which are no shards of one table. Give each client a "
                "folder of its own, with train and test files in it; or make one table, with a column that names the "
                "clients"
            )
        return []
    cells = [{"bytes": file.read_bytes(), "path": str(file.relative_to(folder))} for file in found.files]
    table = pa.table({"image": pa.array(cells, _IMAGE), "label": pa.array(found.labels)})
    notes = "\n".join(f"{LEFT_OUT}{folder}: {note}" for note in found.notes())
    return [(folder, table.replace_schema_metadata({_NOTES: notes} if notes else None))]


def _notes(clients: Iterable[dict[str, _Rows]]) -> list[str]:
    """Return what is to be said of files that are skipped, a line each."""
    tables = [table for parts in clients for rows in parts.values() for _, table in rows]
    noted = [(table.schema.metadata or {}).get(_NOTES, b"").decode() for table in tables]
    return [line for notes in noted for line in notes.splitlines()]


def _joined(parts: dict[str, _Rows]) -> dict[str, pa.Table]:
    """Join the tables of each part; columns and their types must agree over all files."""
    files = [pair for rows in parts.values() for pair in rows]
    first, names = files[0][0], files[0][1].column_names
    for file, table in files:
        if double := [name for name in table.column_names if table.column_names.count(name) > 1]:
            raise DataError(f"{file} has column '{double[0]}' twice")
        for name in [*names, *table.column_names]:
            if name not in table.column_names or name not in names:
                here, there = (file, first) if name not in table.column_names else (first, file)
                raise DataError(
                    f"{here} has no column '{name}', which {there} has; all files of a dataset have the same columns"
                )
    types = {name: _common_type(name, files) for name in names}
    joined = {}
    for part, rows in parts.items():
        tables = []
        for file, table in rows:
            columns = {name: _cast(table.column(name), kind, file, name) for name, kind in types.items()}
            tables.append(pa.table(columns))
        if tables:
            metadata = {k: v for k, v in (rows[0][1].schema.metadata or {}).items() if k == b"huggingface"}
            whole = pa.concat_tables(tables).replace_schema_metadata(metadata or None)
            joined[part] = noted(whole, [(str(file), table.num_rows) for file, table in rows])
    return joined


def _common_type(name: str, files: _Rows) -> pa.DataType:
    """Return the type of a column in all files: that of the parquet files; from CSV files, numbers or text."""
    typed = {table.schema.field(name).type for _, table in files if not _from_csv(table)}
    texts = [table.column(name) for _, table in files if _from_csv(table)]
    if len(typed) > 1:
        if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in typed):
            return pa.int64() if all(pa.types.is_integer(kind) for kind in typed) else pa.float64()
        kinds = {table.schema.field(name).type: file for file, table in files}
        raise DataError(
            f"column '{name}' has several types: " + "; ".join(f"{kind} in {file}" for kind, file in kinds.items())
        )
    if typed:
        return typed.pop()
    return _type_of_text(pa.chunked_array([chunk for column in texts for chunk in column.chunks], pa.string()))


def _type_of_text(column: pa.ChunkedArray) -> pa.DataType:
    """Return int64 or float64 if all cells of a CSV column that are not missing are numbers, else text.

    Whole numbers that do not fit into 64 bits are text, unless a float keeps all their digits: they are names.
    """
    given = present(column).drop_null()
    # 007 and 1_000 are names
    if not len(given) or pc.any(pc.match_substring_regex(given, "_|^[+-]*0[0-9]")).as_py():
        return pa.string()
    if not pc.all(pc.match_substring_regex(given, "^[+-]?[0-9]+$")).as_py():
        return pa.float64() if numbers_in(given, pa.float64()) is not None else pa.string()
    if numbers_in(given, pa.int64()) is not None:
        return pa.int64()
    whole = [int(cell) for cell in given.to_pylist()]
    kept = all(abs(number) < 2**1023 and int(float(number)) == number for number in whole)
    return pa.float64() if kept else pa.string()


def present(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the cells of a CSV column without outer blanks, null where a value is missing."""
    text = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(text, value_set=pa.array(["", *MISSING, None], pa.string())), None, text)


def numbers_in(text: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Return texts as numbers, null where one is; None if a text is no number of this kind, as Python reads it."""
    try:
        return text.cast(kind)
    except pa.ArrowException:  # Arrow reads neither "+5" nor "1e400"
        number = int if pa.types.is_integer(kind) else float
        try:
            cells = [None if cell is None else number(cell) for cell in text.to_pylist()]
            return pa.chunked_array([pa.array(cells, kind)])
        except (ValueError, OverflowError, pa.ArrowException):
            return None


def _cast(column: pa.ChunkedArray, kind: pa.DataType, file: Path, name: str) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    said = f"{file}: column '{name}' does not hold {kind}, as in other files"
    if pa.types.is_string(column.type):
        numbers = numbers_in(present(column), kind)
        if numbers is None:
            raise DataError(f"{said}: it holds texts")
        return numbers
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise DataError(f"{said}: {error}") from error


def _from_csv(table: pa.Table) -> bool:
    return b"csv" in (table.schema.metadata or {})
