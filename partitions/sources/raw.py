"""Raw files of the suite's own datasets that no package ships: where they must lie, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from florilegium.common.errors import DataError
from florilegium.partitions.sources.source import DATA_VARIABLE, Source
from florilegium.partitions.spec import DatasetSpec

if TYPE_CHECKING:
    import pandas


def raw_files(spec: DatasetSpec, source: Source, names: Sequence[str], where: str) -> list[Path]:
    """Return the raw files of a dataset, ``<data-dir>/<spec.source>/<name>``.

    Args:
        spec: the dataset's description.
        source: where local data are.
        names: names of the files.
        where: where to get them, for the error message.

    Raises:
        DataError: if there is no folder of local data, or a file is missing.
    """
    if source.data is None:
        raise DataError(
            f"dataset: '{spec.name}' is read from your copy of {', '.join(names)}; put them into a folder "
            f"{spec.source}, and name the folder above it in {DATA_VARIABLE} or data-dir. {where}"
        )
    folder = source.data / spec.source
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(f"dataset: '{spec.name}' is read from {folder}, where {', '.join(missing)} is missing. {where}")
    return [folder / name for name in names]


def read_csv(path: Path, **options: Any) -> pandas.DataFrame:
    """Return a comma-separated file as a table; options are those of :func:`pandas.read_csv`.

    Raises:
        DataError: if it cannot be read.
    """
    import pandas  # takes half a second

    try:
        return pandas.read_csv(path, **options)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a comma-separated table: {error}") from error


def need_columns(path: Path, table: pandas.DataFrame, columns: Sequence[str]) -> None:
    """Raise :class:`DataError` if a table lacks one of ``columns``."""
    if missing := [column for column in columns if column not in table.columns]:
        raise DataError(f"{path} has no column '{missing[0]}'; found: {', '.join(map(str, table.columns))}")
