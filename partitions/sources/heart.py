"""Fed-Heart-Disease: the four hospitals of UCI's Heart Disease data, divided and encoded as by FLamby (2022).

The columns slope, ca and thal are dropped, then rows with a missing value. The target is whether there is any disease
(1 to 4). cp and restecg become 0/1 columns of their values, without the first; they follow the other eight columns.
A third of each hospital's rows, always the same, is its test part. Janosi et al. 1988, CC BY 4.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.sources.raw import need_columns, raw_files, read_csv
from florilegium.partitions.sources.source import Source, Tables, Unread
from florilegium.partitions.spec import DatasetSpec

if TYPE_CHECKING:
    import pandas

FOLDER = "fed_heart_disease"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
CODES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}
"""Columns of codes, with all their values."""
FEATURES = (*NUMBERS, *(f"{name}_{code}" for name, codes in CODES.items() for code in codes[1:]))
"""The 13 inputs, in order."""
TARGET, HOSPITAL = "disease", "hospital"
_COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "target",
)  # fmt: skip
_TEST, _SEED = 0.34, 43
_WHERE = (
    "They are at https://archive.ics.uci.edu/dataset/45/heart+disease (licence CC BY 4.0); copy the four files there, "
    "as they are"
)


def by_hospital(spec: DatasetSpec, source: Source) -> Unread:
    """Return the rows, not read yet, standardised by the training rows of each hospital."""
    return _unread(spec, source, "hospital")


def together(spec: DatasetSpec, source: Source) -> Unread:
    """Return the rows, not read yet, standardised by the training rows of all hospitals together."""
    return _unread(spec, source, "all")


def unscaled(spec: DatasetSpec, source: Source) -> Unread:
    """Return the rows, not read yet, in the files' units."""
    return _unread(spec, source, "")


def _unread(spec: DatasetSpec, source: Source, scaled_by: str) -> Unread:
    files = raw_files(spec, source, [f"processed.{hospital}.data" for hospital in HOSPITALS], _WHERE)
    return Unread(spec.name, str(files[0].parent), files, lambda: _read(files, scaled_by))


def _read(files: Sequence[Path], scaled_by: str) -> Tables:
    tables = [_whole_rows(path) for path in files]
    x = np.concatenate([_features(path, table) for path, table in zip(files, tables, strict=True)])
    y = np.concatenate([table["target"].to_numpy() > 0 for table in tables]).astype(np.int64)
    owners = np.repeat(np.arange(len(tables)), [*map(len, tables)])
    test = np.concatenate([_is_test(y[owners == hospital]) for hospital in range(len(tables))])
    if scaled_by:
        groups = owners if scaled_by == "hospital" else np.zeros_like(owners)
        for group in np.unique(groups):
            x[groups == group] = _standardised(x[groups == group], x[(groups == group) & ~test])
    return {
        part: pa.table(
            {name: x[rows, place] for place, name in enumerate(FEATURES)}
            | {TARGET: y[rows], HOSPITAL: np.array(HOSPITALS)[owners[rows]]}
        )
        for part, rows in (("train", ~test), ("test", test))
    }, []


def _whole_rows(path: Path) -> pandas.DataFrame:
    """Return the rows of a file that lack none of the columns used; UCI's files have no line of names, others do."""
    table = read_csv(path, header=None, names=_COLUMNS, na_values=["?", "", " "], skipinitialspace=True, dtype=str)
    if len(table) and table.iloc[0].tolist() == list(_COLUMNS):
        table = table.iloc[1:]
    need_columns(path, table, _COLUMNS)
    whole = table.drop(columns=["slope", "ca", "thal"]).dropna()
    if len(whole) < 4:
        raise DataError(f"{path} has {len(whole)} rows without a missing value; a third is for testing, 4 are needed")
    try:
        return whole.astype(float)
    except ValueError as error:
        raise DataError(f"{path} holds something that is no number: {error}") from error


def _features(path: Path, table: pandas.DataFrame) -> NDArray[np.float32]:
    parts = [table[[*NUMBERS]].to_numpy(np.float32)]
    for name, codes in CODES.items():
        cells = table[name].to_numpy()
        if not np.isin(cells, codes).all():
            raise DataError(f"{path}: column '{name}' has {cells[~np.isin(cells, codes)][0]:g}; its codes are {codes}")
        parts.append((cells[:, None] == np.array(codes[1:])).astype(np.float32))
    return np.concatenate(parts, axis=1)


def _is_test(y: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows of a hospital are for testing, stratified by target if both have more than two rows."""
    from sklearn.model_selection import train_test_split

    counts = np.bincount(y, minlength=2)
    strata = y if counts.min() > 2 else None
    rows = train_test_split(
        np.arange(len(y)), train_size=1 - _TEST, test_size=_TEST, random_state=_SEED, stratify=strata
    )[1]
    return np.isin(np.arange(len(y)), rows)


def _standardised(x: NDArray[np.float32], train: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (x − mean)/(std + 1e-9) by column, with the training rows' mean and deviation (with n − 1)."""
    scaled = (x - train.mean(axis=0, dtype=np.float64)) / (train.std(axis=0, ddof=1, dtype=np.float64) + 1e-9)
    return scaled.astype(np.float32)
