"""The columns of a device's tables that runs may read: a copy without the others, which their processes see instead."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from florilegium.common.errors import ConfigurationError
from florilegium.common.files import make_once
from florilegium.common.places import read_utf8

_TEXTS, _PARQUET = (".csv", ".data", ".txt"), ".parquet"


@dataclass(frozen=True)
class View:
    """A copy of tables with some columns.

    Attributes:
        source: a file, or a folder with train and test files.
        columns: names of the columns, as in the files.
        names: the names of all columns, for files without a line of names; () if they have one.
        folder: where the copies lie.
    """

    source: Path
    columns: tuple[str, ...]
    names: tuple[str, ...]
    folder: Path

    def made(self) -> Path:
        """Return the copy of the tables as they are now; it is made if it is not there.

        Raises:
            ConfigurationError: if they are no tables, or lack one of the columns.
        """
        files = self._files()
        told = [[str(file), file.stat().st_mtime_ns, file.stat().st_size] for file in files]
        digest = hashlib.sha256(json.dumps([told, self.columns, self.names]).encode()).hexdigest()[:16]
        target = self.folder / digest
        make_once(target, lambda: files, self._write)
        for old in self.folder.iterdir():
            if old != target and old.is_dir():
                shutil.rmtree(old)
        return target if self.source.is_dir() else target / self.source.name

    def _files(self) -> list[Path]:
        found = (
            [self.source] if self.source.is_file() else sorted(self.source.iterdir()) if self.source.is_dir() else []
        )
        files = [one for one in found if one.is_file() and one.suffix in (*_TEXTS, _PARQUET)]
        if not files or any(one.is_dir() for one in found):
            raise ConfigurationError(
                f'data.columns: {self.source} is no table; write columns = ["any"] if runs may read all of it'
            )
        return files

    def _write(self, files: Sequence[Path], target: Path) -> None:
        target.mkdir()
        for file in files:
            if file.suffix == _PARQUET:
                self._write_parquet(file, target / file.name)
            else:
                self._write_text(file, target / file.name)

    def _write_parquet(self, file: Path, target: Path) -> None:
        from pyarrow import parquet

        known = parquet.read_schema(file).names
        parquet.write_table(parquet.read_table(file, columns=self._known(known, file)), target)

    def _write_text(self, file: Path, target: Path) -> None:
        with (
            file.open(encoding="utf-8-sig", newline="") as source,
            target.open("w", encoding="utf-8", newline="") as copy,
        ):
            rows, writer = csv.reader(source), csv.writer(copy)
            header = list(self.names) or [name.strip() for name in next(rows, [])]
            chosen = {*self._known(header, file)}
            places = [place for place, name in enumerate(header) if name in chosen]
            if self.names:  # the schema names all columns by their places: others stay as empty cells
                writer.writerows(_emptied(rows, places))
            else:
                writer.writerow([header[place] for place in places])
                writer.writerows([row[place] for place in places if place < len(row)] for row in rows)

    def _known(self, names: Sequence[str], file: Path) -> list[str]:
        if lacking := [name for name in self.columns if name not in names]:
            raise ConfigurationError(f"data.columns: {file} has no column '{lacking[0]}'; it has: {', '.join(names)}")
        return [name for name in names if name in self.columns]


def _emptied(rows: Iterator[list[str]], places: Sequence[int]) -> Iterator[list[str]]:
    kept = {*places}
    for row in rows:
        yield [cell if place in kept else "" for place, cell in enumerate(row)]


def names_in(schema: str) -> tuple[str, ...]:
    """Return the names that a device's schema file gives to the columns of files without a line of names."""
    if not schema:
        return ()
    found = tomllib.loads(read_utf8(Path(schema).expanduser())).get("names", [])
    return tuple(map(str, found))
