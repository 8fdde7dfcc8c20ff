"""US census data as a custom dataset: people of 51 states, from folktables (Ding et al. 2021; Scott, thesis, D.7.1).

The features are one-hot categories of seven columns of folktables' task ACSIncome. Column ``ST``, the state, names
clients. Column ``COW``, the class of worker, can select the rows that clients and server hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
import tomli_w

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.files import write_atomically, write_text

if TYPE_CHECKING:
    import pandas

FEATURES = ("SCHL", "MAR", "OCCP", "POBP", "RELP", "SEX", "RAC1P")
CLIENTS = ("ST", "COW")
INCOME = 50_000
"""Threshold of the label: whether ``PINCP``, the yearly income in dollars, is above it."""


def download(year: int, states: list[str] | None, cache: Path) -> pandas.DataFrame:
    """Return the people of ``states`` (None: all 51) that task ACSIncome includes, downloading them if necessary.

    Raises:
        ConfigurationError: if folktables is not installed.
        DataError: if the data can neither be read from ``cache`` nor downloaded.
    """
    try:
        from folktables import ACSDataSource, adult_filter
    except ImportError as error:
        raise ConfigurationError("the US census needs folktables: pip install folktables") from error
    try:
        source = ACSDataSource(survey_year=str(year), horizon="1-Year", survey="person", root_dir=str(cache))
        return adult_filter(source.get_data(states=states, download=True))
    except Exception as error:
        raise DataError(f"the census of {year} could not be loaded: {type(error).__name__}: {error}") from error


def write_census(people: pandas.DataFrame, target: Path) -> None:
    """Write ``people`` as a custom dataset: ``train.parquet`` and ``schema.toml`` in folder ``target``.

    Args:
        people: one row per person, with the census columns ``FEATURES``, ``CLIENTS`` and ``PINCP``.
        target: the folder, which key ``dataset`` can then name.

    Raises:
        DataError: if a column is missing.
    """
    missing = [column for column in (*FEATURES, *CLIENTS, "PINCP") if column not in people.columns]
    if missing:
        raise DataError(f"the census has no column '{missing[0]}'; it has {', '.join(map(str, people.columns))}")
    whole = people.dropna(subset=[*FEATURES, *CLIENTS, "PINCP"])
    codes = {column: whole[column].astype(float).astype(int).astype(str) for column in (*FEATURES, *CLIENTS)}
    table = pyarrow.table({**codes, "income": ["high" if income > INCOME else "low" for income in whole["PINCP"]]})
    schema = {
        "label": "income",
        "labels": ["low", "high"],
        "clients": list(CLIENTS),
        "categories": {column: sorted(codes[column].unique(), key=int) for column in FEATURES},
    }
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / "train.parquet", lambda path: pyarrow.parquet.write_table(table, path))
    write_text(target / "schema.toml", tomli_w.dumps(schema))
