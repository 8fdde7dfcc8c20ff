"""Read the ledger's records: the papers' tables and our values in their cells."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from florilegium.common.errors import ConfigurationError, nearest

RECORDS = Path(__file__).parent
PRINTED = re.compile(r"(\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")

Unit = Literal["%", "fraction", "count", "ε", "length"]


@dataclass(frozen=True)
class Published:
    """A number of a paper: its value, the ± printed beside it (None if there is none), and both as printed."""

    value: Decimal
    error: Decimal | None
    text: str


def _published(entry: Any) -> Published | None:
    """Return a table's entry, a number or a text such as "87.8 ± 0.5"; None for "", where the paper has none."""
    if entry == "" or isinstance(entry, Published):
        return entry or None
    match = PRINTED.fullmatch(str(entry))
    if match is None:
        raise ValueError(f"must be a number, a text such as '87.8 ± 0.5', or '' for none (found: {entry!r})")
    return Published(Decimal(match[1]), Decimal(match[2]) if match[2] else None, str(entry))


def _values(entry: Any) -> tuple[Decimal, ...]:
    """Return the values of a measured cell: a number, a list with one for each seed, or "" for none."""
    found = entry if isinstance(entry, list | tuple) else [] if entry == "" else [entry]
    if any(isinstance(value, bool) or not isinstance(value, Decimal | int) for value in found):
        raise ValueError(f"must be a number, a list with one for each seed, or '' for none (found: {entry!r})")
    return tuple(Decimal(value) for value in found)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"))


class PrintedTable(_Record):
    """A table of a paper, methods or settings in rows.

    ``ordered``: the paper claims an order of the rows. ``share``: the share of a published number that counts as no
    difference, where the unit's margin would not do, as for numbers that are differences themselves.
    """

    name: str
    about: str
    unit: Unit = "%"
    share: Decimal | None = None
    ordered: bool = False
    columns: list[str]
    rows: dict[str, list[Annotated[Published | None, BeforeValidator(_published)]]]


class PublishedPaper(_Record):
    """A paper's record.

    ``error`` says in words what its ± is, ``plus_minus`` whether it is the deviation of single runs, whose mean is
    printed, or that mean's standard error; ``runs`` of how many runs.
    """

    title: str
    source: str
    error: str
    plus_minus: Literal["none", "deviation", "standard error"]
    runs: int = Field(0, ge=0)
    tables: list[PrintedTable]


class Runs(_Record):
    """Runs that filled cells of a table: a list of cells for each row, in the order of ``columns``.

    ``section`` is the heading on the results page under which the values stand; ``budget`` the work relative to the
    paper's, such as "0.3×"; ``setting`` says in words what the runs were. ``same_draws``: they have the seeds, initial
    models and batches of the paper's runs, so that the two means differ by no draw.
    """

    table: str
    columns: list[str]
    section: str
    seeds: list[int] = Field(default=[1], min_length=1)
    budget: str
    setting: str
    same_draws: bool = False
    commands: list[str] = Field(min_length=1)
    values: dict[str, list[Annotated[tuple[Decimal, ...], BeforeValidator(_values)]]]


class NotRun(_Record):
    """Why cells have no value: those of the named rows and columns, or of all, that no runs filled.

    ``commands`` would fill them, in about ``hours`` of one core; both are missing where something else is, by ``why``.
    """

    tables: list[str]
    rows: list[str] = []
    columns: list[str] = []
    why: str
    commands: list[str] = []
    hours: Decimal | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _is_whole(self) -> NotRun:
        if bool(self.commands) != bool(self.hours):
            raise ValueError(f"give both commands and hours, or neither (why: {self.why!r})")
        return self

    @property
    def told(self) -> str:
        """The reason, with what would fill the cells and what it costs."""
        if not self.hours:
            return self.why
        of = " in all" if len(self.tables) > 1 else ""
        return f"{self.why}; about {self.hours:f} h of one core{of}: {'; '.join(f'`{one}`' for one in self.commands)}"


class MeasuredPaper(_Record):
    """Our record of a paper: the results page, why ours differ, and what was run and what not."""

    page: str
    why: str
    runs: list[Runs] = []
    not_run: list[NotRun] = []


@dataclass(frozen=True)
class Measured:
    """Our value in a cell: one number per seed, or the mean over the seeds alone, and the runs that it is of."""

    values: tuple[Decimal, ...]
    runs: Runs

    @property
    def mean(self) -> Decimal:
        """Mean over the seeds."""
        return sum(self.values, Decimal()) / len(self.values)

    @property
    def error(self) -> Decimal | None:
        """Standard error of the mean over seeds, of deviations with n − 1; None where it is not known."""
        n = len(self.values)
        if n == 1:
            return None
        return (sum(((value - self.mean) ** 2 for value in self.values), Decimal()) / (n * (n - 1))).sqrt()

    def over(self, seeds: Collection[int]) -> Decimal:
        """Return the mean over those of ``seeds`` that have a value; over all seeds, if only their mean is known."""
        by_seed = dict(zip(self.runs.seeds, self.values, strict=False)) if len(self.values) > 1 else {}
        chosen = [value for seed, value in by_seed.items() if seed in seeds]
        return sum(chosen, Decimal()) / len(chosen) if chosen else self.mean

    def rounded(self, number: Decimal) -> str:
        """Return ``number`` with as many decimals as the recorded values have."""
        digits = max(0, *(-int(value.as_tuple().exponent) for value in self.values))
        return f"{number:.{digits}f}"


@dataclass(frozen=True)
class Cell:
    """A published number, with our value or the reason why there is none.

    Attributes:
        error: standard error of the published mean; None where it is not known.
        runs: number of runs of which the published number is the mean; 0 where it is not known.
        share: see :class:`PrintedTable`.
    """

    row: str
    column: str
    unit: Unit
    published: Published
    measured: Measured | None
    why: str
    error: Decimal | None = None
    runs: int = 0
    share: Decimal | None = None


@dataclass(frozen=True)
class Table:
    """A table of a paper and its cells, column by column."""

    printed: PrintedTable
    cells: list[Cell]


@dataclass(frozen=True)
class Paper:
    """A paper, its tables, and our record."""

    published: PublishedPaper
    measured: MeasuredPaper
    tables: list[Table]

    @property
    def cells(self) -> list[Cell]:
        """All cells of all tables."""
        return [cell for table in self.tables for cell in table.cells]


R = TypeVar("R", bound=_Record)

ORDER = ("ppfe", "pefll", "flowdup", "fedgtst", "fedl2p", "feddp-kmeans", "mdm", "flamby")
"""The papers, in the order of the page."""


def papers(folder: Path = RECORDS) -> list[Paper]:
    """Return all papers of the ledger.

    Raises:
        ConfigurationError: if a record is malformed, names a cell that the paper does not have, fills a cell twice, or
            leaves a cell without value and reason; names the file.
    """
    return [read_paper(folder / "published" / f"{name}.toml", folder / "measured" / f"{name}.toml") for name in ORDER]


def read_paper(published: Path, measured: Path) -> Paper:
    """Return a paper from its two records; raises as :func:`papers` does."""
    printed, ours = read_published(published), _read(measured, MeasuredPaper)
    try:
        return Paper(printed, ours, _filled(printed, ours))
    except ConfigurationError as error:
        raise ConfigurationError(f"{measured}: {error}") from None


def read_published(path: Path) -> PublishedPaper:
    """Return the published numbers of a paper; raises as :func:`papers` does."""
    printed = _read(path, PublishedPaper)
    try:
        _check_tables(printed.tables)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return printed


def _read(path: Path, record: type[R]) -> R:
    try:
        return record.model_validate(tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal))
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors())
        raise ConfigurationError(f"{path}: {said}") from error
    except (OSError, ValueError) as error:  # not TOML, or a row or a key twice
        raise ConfigurationError(f"{path}: {error}") from error


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _check_tables(tables: list[PrintedTable]) -> None:
    if twice := _twice(table.name for table in tables):
        raise ConfigurationError(f"two tables are named '{twice[0]}'; give each number once")
    for table in tables:
        if twice := _twice(table.columns):
            raise ConfigurationError(f"{table.name} has column '{twice[0]}' twice")
        for row, entries in table.rows.items():
            if len(entries) != len(table.columns):
                raise ConfigurationError(
                    f"{table.name}, row '{row}': {len(entries)} numbers for {len(table.columns)} columns"
                )


def _filled(paper: PublishedPaper, ours: MeasuredPaper) -> list[Table]:
    """Return the papers' tables with our values and reasons in their cells."""
    tables = paper.tables
    known = {table.name: table for table in tables}
    values: dict[tuple[str, str, str], Measured] = {}
    for runs in ours.runs:
        table = known[_known(runs.table, known, "table")]
        for row, entries in runs.values.items():
            _known(row, table.rows, f"row of {table.name}")
            if len(entries) != len(runs.columns):
                raise ConfigurationError(
                    f"{table.name}, row '{row}': {len(entries)} values for {len(runs.columns)} columns"
                )
            for column, found in zip(runs.columns, entries, strict=True):
                place = table.columns.index(_known(column, table.columns, f"column of {table.name}"))
                where = f"{table.name}, row '{row}', column '{column}'"
                if not found:
                    continue
                if table.rows[row][place] is None:
                    raise ConfigurationError(f"{where}: the paper has no number there")
                if (table.name, row, column) in values:
                    raise ConfigurationError(f"{where} is filled twice; keep one of the values")
                if len(found) not in (1, len(runs.seeds)):
                    raise ConfigurationError(f"{where}: {len(found)} values for {len(runs.seeds)} seeds")
                values[table.name, row, column] = Measured(found, runs)
    for reason in ours.not_run:
        for name in reason.tables:
            table = known[_known(name, known, "table")]
            for row in reason.rows:
                _known(row, table.rows, f"row of {name}")
            for column in reason.columns:
                _known(column, table.columns, f"column of {name}")
    return [Table(table, _cells(paper, table, values, ours.not_run)) for table in tables]


def _known(name: str, names: Iterable[str], kind: str) -> str:
    """Return ``name`` if it is one of ``names``; raise otherwise."""
    if name not in names:
        raise ConfigurationError(f"'{name}' is no {kind}{nearest(name, names)}")
    return name


def _error(paper: PublishedPaper, published: Published) -> Decimal | None:
    """Return the standard error of a published mean; None where it is not known."""
    if published.error is None or paper.plus_minus == "none":
        return None
    return published.error / Decimal(paper.runs).sqrt() if paper.plus_minus == "deviation" else published.error


def _cells(
    paper: PublishedPaper, table: PrintedTable, values: dict[tuple[str, str, str], Measured], reasons: list[NotRun]
) -> list[Cell]:  # fmt: skip
    cells = []
    for place, column in enumerate(table.columns):
        for row, entries in table.rows.items():
            published, measured, why = entries[place], values.get((table.name, row, column)), ""
            if published is None:
                continue
            if measured is None:
                found = [
                    reason.told
                    for reason in reasons
                    if table.name in reason.tables
                    and row in (reason.rows or [row])
                    and column in (reason.columns or [column])
                ]
                if len(found) != 1:
                    raise ConfigurationError(
                        f"{table.name}, row '{row}', column '{column}' has no value and {len(found)} reasons; "
                        "fill it in [[runs]], or give it one reason in [[not-run]]"
                    )
                why = found[0]
            cells.append(
                Cell(
                    row, column, table.unit, published, measured, why, _error(paper, published), paper.runs, table.share
                )
            )
    return cells
