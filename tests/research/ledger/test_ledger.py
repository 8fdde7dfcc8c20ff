"""The ledger: its rules on closed cases, its records against the results pages, and the page that is committed."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import combinations
from pathlib import Path

import pytest
from scipy.stats import kendalltau, sem
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.runs.experiment import read_recipe
from florilegium.apps.runs.recipes import table_names
from florilegium.common.errors import ConfigurationError
from florilegium.research.ledger.page import HEAD, anchor, page, summary
from florilegium.research.ledger.records import Cell, Measured, Paper, Published, Runs, Unit, papers, read_paper
from florilegium.research.ledger.verdicts import counts, orders, verdict
from tests.processes import ROOT

PUBLISHED = """
title = "Toy"
source = "nobody"
error = "standard deviation"

[[tables]]
name = "Table 1"
about = "four methods"
ordered = true
columns = ["a", "b"]
[tables.rows]
"w" = [80.0, "70.0 ± 1.0"]
"x" = [60.0, 71.0]
"y" = [40.0, ""]
"z" = [20.0, 10.0]

[[tables]]
name = "Table 2"
about = "not ordered"
columns = ["a"]
[tables.rows]
"w" = [1.0]
"x" = [2.0]
"y" = [3.0]
"""
MEASURED = """
page = "toy.md"
why = "it is a toy"

[[runs]]
table = "Table 1"
columns = ["a", "b"]
section = "Toy"
seeds = [1, 2, 3]
budget = "1×"
setting = "small"
commands = ["florilegium run toy"]
[runs.values]
"w" = [[80.0, 81.0, 82.0], 73.0]
"x" = [30.0, ""]
"y" = [50.0, ""]
"z" = [20.0, ""]

[[not-run]]
tables = ["Table 1"]
columns = ["b"]
why = "too dear"

[[not-run]]
tables = ["Table 2"]
why = "forgotten"
"""

X_OF_SEED_1 = """
[[runs]]
table = "Table 1"
columns = ["a"]
section = "Toy"
budget = "1×"
setting = "one seed"
commands = ["florilegium run toy"]
[runs.values]
"x" = [60.0]
"""
UNORDERED = """
[[runs]]
table = "Table 2"
columns = ["a"]
section = "Toy"
budget = "1×"
setting = "small"
commands = ["florilegium run toy"]
values = { w = [1.0], x = [2.0], y = [3.0] }
"""


@pytest.fixture(scope="module")
def ledger() -> list[Paper]:
    return papers()


def _toy(folder: Path, published: str = PUBLISHED, measured: str = MEASURED) -> Paper:
    (folder / "published.toml").write_text(published, encoding="utf-8")
    (folder / "measured.toml").write_text(measured, encoding="utf-8")
    return read_paper(folder / "published.toml", folder / "measured.toml")


def _cell(published: str, ours: str, unit: Unit = "%", error: str = "") -> Cell:
    runs = Runs.model_validate(
        {
            "table": "", "columns": [], "section": "", "budget": "", "setting": "", "commands": ["c"], "values": {},
            "seeds": [1, 2, 3],
        }
    )  # fmt: skip
    measured = Measured(tuple(map(Decimal, ours.split())), runs) if ours else None
    return Cell("", "", unit, Published(Decimal(published), Decimal(error) if error else None, ""), measured, "")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (_cell("88.4", "86.4"), "reproduced"),  # two points
        (_cell("88.4", "86.3"), "lower"),
        (_cell("88.4", "90.4"), "reproduced"),
        (_cell("88.4", "90.41"), "higher"),
        (_cell("52", "59", error="7"), "reproduced"),  # the paper's error alone
        (_cell("52", "59.1", error="7"), "higher"),
        (_cell("50", "59 60 61", error="9.5"), "reproduced"),  # 10 ≤ 9.5 + 1/√3
        (_cell("50", "59 60 61", error="9.4"), "higher"),  # 10 > 9.4 + 1/√3
        (_cell("0.43", "0.45", "fraction"), "reproduced"),  # where 0.45 − 0.43 > 0.02 in floating point
        (_cell("0.43", "0.46", "fraction"), "higher"),
        (_cell("3", "3", "count"), "reproduced"),
        (_cell("3", "2", "count"), "lower"),
        (_cell("3", ""), "not run"),
    ],
)
def test_verdicts(cell: Cell, expected: str) -> None:
    assert verdict(cell) == expected


def test_errors_are_standard_errors_of_the_mean() -> None:
    found = _cell("0", "86.4 86.2 87.7").measured
    assert found
    assert found.error
    assert float(found.error) == pytest.approx(sem([86.4, 86.2, 87.7]))
    assert float(found.mean) == pytest.approx((86.4 + 86.2 + 87.7) / 3)
    assert (found.rounded(found.mean), found.rounded(found.error)) == ("86.8", "0.5")
    alone = _cell("0", "86.4").measured
    assert alone
    assert alone.error is None


def test_rank_correlations(tmp_path: Path) -> None:
    (order,) = orders(_toy(tmp_path, measured=MEASURED + UNORDERED))  # column b has but one value
    theirs, ours = (80, 60, 40, 20), (81, 30, 50, 20)
    agreeing = [(a - b) * (c - d) > 0 for (a, c), (b, d) in combinations(zip(theirs, ours, strict=True), 2)]
    assert (order.table, order.column, order.n) == ("Table 1", "a", 4)
    assert order.kendall == pytest.approx((2 * sum(agreeing) - len(agreeing)) / len(agreeing))
    assert order.kendall == pytest.approx(2 / 3)
    assert order.seeds == [1, 2, 3]
    assert order.spearman == pytest.approx(1 - 6 * (1 + 1) / (4 * 15))  # ranks of two rows are exchanged


def test_orders_compare_methods_on_the_same_seeds(tmp_path: Path) -> None:
    """Row w is first by its mean and last with seed 1, the only one of row x; y and z have means alone."""
    measured = MEASURED.replace("[80.0, 81.0, 82.0]", "[10.0, 90.0, 95.0]").replace('"x" = [30.0, ""]\n', "")
    (order,) = orders(_toy(tmp_path, measured=measured + X_OF_SEED_1 + UNORDERED))
    assert order.seeds == [1]
    assert order.kendall == pytest.approx(kendalltau((80, 60, 40, 20), (10, 60, 50, 20)).statistic)


def test_orders_compare_means_where_no_seed_is_common(tmp_path: Path) -> None:
    other = X_OF_SEED_1.replace('budget = "1×"', 'seeds = [4]\nbudget = "1×"')
    toy = _toy(tmp_path, measured=MEASURED.replace('"x" = [30.0, ""]\n', "") + other + UNORDERED)
    (order,) = orders(toy)
    assert order.seeds == []
    assert order.kendall == pytest.approx(kendalltau((80, 60, 40, 20), (81, 60, 50, 20)).statistic)
    assert "| Toy | Table 1 | a | 4 | each its own | 1.00 | 1.00 |" in page([toy])


def test_cells_and_counts(tmp_path: Path) -> None:
    toy = _toy(tmp_path)
    assert counts(toy.cells) == {"reproduced": 2, "higher": 2, "lower": 1, "not run": 5}
    assert summary([toy, toy])[-1] == ["all", "20", "10", "4", "4", "2", "10"]
    text = page([toy])
    assert "| w | a | 80.0 | 81.0 ± 0.6 | 3 | 1× | reproduced | [1](toy.md#toy) |" in text
    assert "| w | b | 70.0 ± 1.0 | 73.0 | 3 | 1× | higher by 3.0 | [1](toy.md#toy) |" in text
    assert "| x | a | 60.0 | 30.0 | 3 | 1× | lower by 30.0 | [1](toy.md#toy) |" in text
    assert "- Too dear. *b*: x (71.0), z (10.0)" in text
    assert "- Forgotten. *a*: w (1.0), x (2.0), y (3.0)" in text


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('table = "Table 1"', 'table = "Table 3"', "'Table 3' is no table; did you mean 'Table 2'?"),
        ('"w" = [[80.0', '"v" = [[80.0', "'v' is no row of Table 1"),
        ('columns = ["a", "b"]', 'columns = ["a", "c"]', "'c' is no column of Table 1"),
        ('columns = ["a", "b"]', 'columns = ["a", "a"]', "row 'w', column 'a' is filled twice"),
        ('"y" = [50.0, ""]', '"y" = [50.0, 1.0]', "row 'y', column 'b': the paper has no number there"),
        ('"y" = [50.0, ""]', '"y" = [50.0]', "row 'y': 1 values for 2 columns"),
        ('"y" = [50.0, ""]', '"w" = [50.0, ""]', "measured.toml: Cannot overwrite a value"),
        ("[80.0, 81.0, 82.0]", "[80.0, 81.0]", "row 'w', column 'a': 2 values for 3 seeds"),
        ('"x" = [30.0', '"x" = ["30"', "must be a number, a list with one for each seed, or '' for none"),
        ('"x" = [30.0', '"x" = [""', "row 'x', column 'a' has no value and 0 reasons"),
        ('tables = ["Table 2"]', 'tables = ["Table 1", "Table 2"]', "column 'b' has no value and 2 reasons"),
        ('tables = ["Table 2"]', 'tables = ["Table 4"]', "'Table 4' is no table"),
        ('columns = ["b"]', 'columns = ["c"]', "'c' is no column of Table 1"),
        ('columns = ["b"]', 'rows = ["v"]', "'v' is no row of Table 1"),
        ("budget =", "cost =", "runs.0.cost: Extra inputs are not permitted"),
    ],
)
def test_wrong_measured_cells_are_refused(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in MEASURED
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        _toy(tmp_path, measured=MEASURED.replace(before, after, 1))
    assert "measured.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('name = "Table 2"', 'name = "Table 1"', "two tables are named 'Table 1'"),
        ('columns = ["a", "b"]', 'columns = ["a", "a"]', "Table 1 has column 'a' twice"),
        ('"x" = [60.0, 71.0]', '"x" = [60.0]', "Table 1, row 'x': 1 numbers for 2 columns"),
        ('"x" = [60.0, 71.0]', '"w" = [60.0, 71.0]', "published.toml: Cannot overwrite a value"),
        ("70.0 ± 1.0", "70.0 +- 1.0", "must be a number, a text such as '87.8 ± 0.5', or '' for none"),
    ],
)
def test_wrong_published_tables_are_refused(tmp_path: Path, before: str, after: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        _toy(tmp_path, published=PUBLISHED.replace(before, after, 1))
    assert "published.toml" in str(caught.value)


def test_the_committed_page_is_what_the_command_writes(ledger: list[Paper]) -> None:
    committed = (ROOT / "docs" / "results" / "ledger.md").read_text(encoding="utf-8")
    assert committed == page(ledger) + "\n", "run `florilegium ledger`"


def test_the_ledger_lists_what_it_promises(ledger: list[Paper]) -> None:
    *each, total = summary(ledger)
    assert [int(number) for number in total[1:]] == [sum(int(row[at]) for row in each) for at in range(1, len(HEAD))]
    assert int(total[1]) >= 250
    assert int(total[2]) >= 150


def test_measured_values_stand_on_the_results_pages(ledger: list[Paper]) -> None:
    """Under the heading that the page links: the record and the page cannot say different numbers."""
    for paper in ledger:
        text = (ROOT / "docs" / "results" / paper.measured.page).read_text(encoding="utf-8")
        sections = {part.partition("\n")[0]: part for part in re.split(r"^#+ ", text, flags=re.MULTILINE)}
        for cell in paper.cells:
            for value in cell.measured.values if cell.measured else ():
                assert cell.measured
                section = sections[cell.measured.runs.section]
                found = re.search(rf"(?<![\d.,]){re.escape(str(value))}(?![\d.])(?!,\d)", section)
                assert found, f"{paper.measured.page}, {cell.measured.runs.section}: {cell.row}, {cell.column}: {value}"


def test_commands_name_recipes_that_exist(ledger: list[Paper]) -> None:
    named = re.compile(r"florilegium (run|sweep|pareto|fidelity|flamby) ([\w.:-]+)(?: ([\w.-]+))?")
    commands = [command for paper in ledger for runs in paper.measured.runs for command in runs.commands]
    found = {named.match(command) for command in commands}
    assert None not in found
    for kind, recipe, name in {match.groups() for match in found if match}:
        read_recipe(recipe)
        assert kind != "sweep" or name in table_names(recipe, "sweeps"), f"{recipe}: {name}"


def test_anchors_are_those_of_github() -> None:
    assert anchor("Table 4.1, n = 100") == "table-41-n--100"
    assert anchor("Which reading brings the ensemble's gain? (`lenet`, S = 2)") == (
        "which-reading-brings-the-ensembles-gain-lenet-s--2"
    )


def test_the_command_writes_page_and_picture(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["ledger", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "ledger.md").read_text(encoding="utf-8").startswith("# Ledger\n")
    assert (tmp_path / "ledger.png").read_bytes().startswith(b"\x89PNG")
    assert done.output.startswith("\t".join(HEAD))
