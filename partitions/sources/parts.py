"""What the names of files and folders mean in a data folder: parts of a dataset, shards, copies, files of others.

One table for local folders, a device's folder, and datasets of the hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.sources.columns import listed
from florilegium.partitions.sources.names import name_of
from florilegium.partitions.sources.places import LEFT_OUT
from florilegium.partitions.sources.schema import FILE

T = TypeVar("T")

TABLES = (".csv", ".parquet")
"""What names of files of rows end in."""
HIDDEN = "."
"""Names that begin so are no classes and no pictures: macOS writes ``._x.png``, notebooks ``.ipynb_checkpoints``."""
VALIDATION = "validation"
RESERVED: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("test", "tests", "testing", "eval", "evaluation", "holdout", "hold-out", "held-out", "heldout"),
    VALIDATION: (VALIDATION, "valid", "val", "dev"),
}
"""The parts of a dataset, and the names by which files, folders and splits of the hub are known as such."""
EVERYBODY = ("all",)
"""Names that are no client's beside others: the file holds the rows of all of them."""
_NUMBERED = ("train", "test", VALIDATION, "val")
"""Words that are a part with a number behind them, too, as in ``train_1.csv`` and ``val2017/``."""
_SHARD = re.compile(r"(?P<name>.+?)[-_.]\d+[-_]of[-_]\d+", re.IGNORECASE)
_NUMBER = re.compile(r"(?P<base>.*?)[-_. ]?(?P<number>\d+)?([-_]of[-_](?P<count>\d+))?", re.IGNORECASE | re.DOTALL)
_COPY = re.compile(
    r"(?P<a>.+?)( ?\(\d+\)| - copy( ?\(\d+\))?| copy( \d+)?|[._ -](bak|backup|old|orig|copy)\d*)|copy of (?P<b>.+)",
    re.IGNORECASE,
)


def part_of(name: str) -> str:
    """Return the part of a dataset that a name means: "train", "test" or "validation"; "" if it means none."""
    word = name.strip().casefold().replace("_", "-")
    for part, words in RESERVED.items():
        if word in words or (re.sub(r"[-. ]?\d+$", "", word) in {*_NUMBERED} & {*words}):
            return part
    return ""


@dataclass(frozen=True)
class Contents:
    """What a folder holds, by the names in it.

    Attributes:
        parts: the files of each part of a dataset that the folder has, in order, or its only folder.
        others: other files of rows, and folders, by the name that they would have as a client.
        unread: names of all other files, with the reason.
    """

    parts: Mapping[str, tuple[Path, ...]]
    others: Mapping[str, tuple[Path, ...]]
    unread: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether the folder is one dataset."""
        return "train" in self.parts

    def notes(self, *, whole: bool) -> list[str]:
        """Return a line that says what is not read, if there is anything; ``whole``: nor are the other files."""
        names = [*self.unread, *(path.name for paths in self.others.values() for path in paths if whole)]
        return [f"{LEFT_OUT}{len(names)} files and folders, not read: {listed(sorted(names))}"] if names else []


def contents(folder: Path, suffixes: Sequence[str] = TABLES) -> Contents:
    """Return what ``folder`` holds; files without one of ``suffixes`` are not read. Nothing if there is no such folder.

    Raises:
        DataError: if a shard is missing, or a part or a client has several files that are no shards of one.
    """
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    shown = [entry for entry in entries if not entry.name.startswith(HIDDEN) and entry.name != FILE]
    tables = [entry for entry in shown if entry.is_file() and entry.suffix.lower() in suffixes]
    unread = [entry.name for entry in shown if entry.is_file() and entry not in tables]
    stems = {entry.stem.casefold(): entry.name for entry in tables}
    found: dict[str, dict[str, list[Path]]] = {"": {}, **{part: {} for part in RESERVED}}
    for entry in shown:
        if entry.is_dir():
            part = part_of(entry.name)
            if part and (entry.name in RESERVED["train"] + RESERVED["test"][:1] or _divided(entry)):
                found[part].setdefault("", []).append(entry)
            else:
                found[""].setdefault(name_of(entry.name), []).append(entry)
        elif entry in tables:
            if original := stems.get(_original(entry.stem)):
                unread.append(f"{entry.name} (a copy of {original})")
                continue
            shard = _SHARD.fullmatch(entry.stem)
            name = shard["name"] if shard else entry.stem
            part = part_of(name)
            found[part].setdefault("" if part else name_of(name), []).append(entry)
    parts = {part: _in_order(str(folder), groups[""]) for part, groups in found.items() if part and groups}
    others = {name: _in_order(f"{folder}: client '{name}'", paths) for name, paths in found[""].items()}
    return Contents(parts, others, tuple(unread))


def _divided(folder: Path) -> bool:
    """Return whether a folder holds folders of classes, or files of rows, as a part does and a class does not."""
    return any(entry.is_dir() or entry.suffix.lower() in TABLES for entry in folder.iterdir())


def _original(stem: str) -> str:
    """Return the name of the file of which one called ``stem`` is a copy, in lower case; "" if it is none."""
    match = _COPY.fullmatch(stem)
    return (match["a"] or match["b"]).casefold() if match else ""


def _in_order(where: str, paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the shards of one part, or of one client, by number.

    Raises:
        DataError: if one is missing, or they are no shards of one table.
    """
    read = [_NUMBER.fullmatch(path.stem) for path in paths]
    shards = {path: int(found["number"]) for path, found in zip(paths, read, strict=True) if found and found["number"]}
    alike = {(path.suffix, found["base"], found["count"]) for path, found in zip(paths, read, strict=True) if found}
    names = f"{where} has {' and '.join(path.name + '/' * path.is_dir() for path in paths)}"
    if len(paths) > 1 and (
        len(alike) > 1 or len({*shards.values()}) < len(paths) or any(path.is_dir() for path in paths)
    ):
        raise DataError(f"{names}; keep one of them")
    count = int(next(iter(alike))[2] or 0)
    if count and sorted(shards.values()) not in ([*range(count)], [*range(1, count + 1)]):
        raise DataError(f"{names}: {len(paths)} of {count} shards; add the others, or rename the files")
    return tuple(sorted(paths, key=lambda path: shards.get(path, 0)))


def _of_client(name: str) -> tuple[str, str]:
    """Return the client and the part that a name seems to be of, as ``site-a_test`` is; ("", "") if of none."""
    for pattern in (r"(?P<client>.+)[-_. ](?P<word>[a-z]+)", r"(?P<word>[a-z]+)[-_. ](?P<client>.+)"):
        match = re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL)
        if match and (part := part_of(match["word"])):
            return match["client"].casefold(), part
    return "", ""


def _refuse_parts_of_clients(folder: Path, names: Iterable[str]) -> None:
    """Raise :class:`ConfigurationError` if files or folders seem to be the parts of clients, not clients."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        client, part = _of_client(name)
        found.setdefault(client, {})[part] = name
    for client, parts in found.items():
        if client and len(parts) > 1:
            there = " and ".join(f"'{name}'" for name in sorted(parts.values()))
            raise ConfigurationError(
                f"dataset: {folder}: {there} seem to be parts of the data of one client, '{client}', and would be a "
                f"client each. Give it a folder of its own, with {' and '.join(sorted(parts))} files in it; or rename "
                "the files"
            )


def refuse_reserved(folder: Path, found: Contents) -> None:
    """Raise :class:`ConfigurationError` if names beside those of clients are reserved, or those of clients' parts."""
    _refuse_parts_of_clients(folder, found.others)
    names = {path.name: part for part, paths in found.parts.items() for path in paths}
    if len(found.others) > 1:
        names |= {p.name: "" for name, paths in found.others.items() if name.casefold() in EVERYBODY for p in paths}
    if names and found.others:
        name, part = next(iter(names.items()))
        what = f"means the {part} part of a dataset" if part else "means the rows of all clients"
        raise ConfigurationError(
            f"dataset: {folder}: '{name}' beside the files of clients ({listed(found.others)}) {what}, and is no "
            f"client. Give each client a folder of its own with train and {part or 'test'} files; or make one table "
            "with a column that names the clients, train.csv and test.csv; or rename the file, or move it away"
        )


def chosen(found: Mapping[str, T]) -> tuple[dict[str, T], list[str]]:
    """Return the parts by the suite's names; a validation part stands in for a missing test part.

    Returns:
        "train", "test" and perhaps "validation", and a line for a decision.
    """
    if VALIDATION not in found or "test" in found:
        return dict(found), []
    rest = {part: value for part, value in found.items() if part != VALIDATION}
    return {**rest, "test": found[VALIDATION]}, ["test rows: part 'validation', as there is no part 'test'"]


def splits_of(names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the split of the hub that is each part, and the others; the word that stands first in the table counts."""
    names, found = [*names], dict[str, str]()
    for part, words in RESERVED.items():
        known = [name for word in words for name in names if name.casefold().replace("_", "-") == word]
        if known:
            found[part] = known[0]
    return found, [name for name in names if name not in found.values()]
