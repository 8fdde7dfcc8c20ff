"""The ledger: its rules on closed cases, its records against the results pages, and the page that is committed."""

from __future__ import annotations

import math
import re
import shlex
from decimal import Decimal
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from scipy.stats import kendalltau, sem, ttest_1samp, ttest_ind_from_stats
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.cli.options import read_seeds
from florilegium.apps.runs.experiment import read_layers, read_recipe
from florilegium.apps.runs.recipes import table_names
from florilegium.common.errors import ConfigurationError
from florilegium.research.board.claims import CLAIMS, named
from florilegium.research.ledger.page import HEAD, anchor, page, summary
from florilegium.research.ledger.records import Cell, Measured, Paper, Published, Runs, Unit, papers, read_paper
from florilegium.research.ledger.verdicts import counts, difference, orders, verdict
from tests.processes import ROOT

PUBLISHED = """
title = "Toy"
source = "nobody"
error = "standard deviation"
plus-minus = "deviation"
runs = 3

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
hours = 2.5
commands = ["florilegium run toy", "florilegium run toy --set seed=2"]

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


def _cell(published: str, ours: str, unit: Unit = "%", error: str = "", runs: int = 0, **more: object) -> Cell:
    """``error``: standard error of the published mean, of as many ``runs``."""
    seeds = [*range(1, 1 + max(1, len(ours.split())))]
    record = Runs.model_validate(
        {"table": "", "columns": [], "section": "", "budget": "", "setting": "", "commands": ["c"], "values": {},
         "seeds": seeds, "same-draws": more.pop("same_draws", False)}
    )  # fmt: skip
    measured = Measured(tuple(map(Decimal, ours.split())), record) if ours else None
    given = Decimal(error) if error else None
    return Cell("", "", unit, Published(Decimal(published), None, ""), measured, "", given, runs, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        # t(2) = 4.3027 times the standard error 0.1/√3 is 0.2484
        (_cell("88.4", "86.6 86.7 86.8"), "reproduced"),  # −1.7 − 0.25 > −2
        (_cell("88.4", "86.5 86.6 86.7"), "lower"),  # −1.8 − 0.25 < −2
        (_cell("88.4", "90.1 90.2 90.3"), "higher"),
        (_cell("88.4", "80 88 96"), "not distinguishable"),
        (_cell("88.4", "88.4"), "no interval"),
        (_cell("0.43", "0.45 0.45", "fraction"), "reproduced"),  # where 0.45 − 0.43 > 0.02 in floating point
        (_cell("0.43", "0.46 0.46", "fraction"), "higher"),
        (_cell("3", "3 3 3", "count"), "reproduced"),
        (_cell("3", "2 2 2", "count"), "lower"),
        (_cell("0.8", "0.24 0.24"), "reproduced"),  # two points are the whole of it
        (_cell("0.8", "0.24 0.24", share=Decimal("0.25")), "lower"),
        (_cell("0.8", "0.61 0.61", share=Decimal("0.25")), "reproduced"),
        (_cell("0.748", "0.748", "fraction", same_draws=True), "reproduced"),
        (_cell("0.748", "0.770", "fraction", same_draws=True), "higher"),
        (_cell("3", ""), "not run"),
    ],
)
def test_verdicts(cell: Cell, expected: str) -> None:
    assert verdict(cell) == expected


@pytest.mark.parametrize("deviation", ["", "0.4", "3"])
@pytest.mark.parametrize("ours", ["59 60 61", "59.9 60.0 60.2", "57 64 66 69", "52 61"])
@pytest.mark.parametrize("published", ["55", "59", "62.5"])
def test_intervals_are_those_of_welch(published: str, ours: str, deviation: str) -> None:
    """Against scipy's tests of equal means: 0 is outside the 95 % interval where p < 0.05."""
    values, n = [*map(float, ours.split())], 3
    error = str(Decimal(deviation) / Decimal(n).sqrt()) if deviation else ""
    cell = _cell(published, ours, error=error, runs=n)
    if deviation:
        mean, spread = np.mean(values), np.std(values, ddof=1)
        given = (mean, spread, len(values), float(published), float(deviation), n)
        p = ttest_ind_from_stats(*given, equal_var=False).pvalue
    else:
        p = ttest_1samp(values, float(published)).pvalue
    found = difference(cell)
    assert found.p == pytest.approx(p)
    if verdict(cell) != "reproduced":
        assert (verdict(cell) == "not distinguishable") == (p >= 0.05)
    assert (verdict(cell) == "reproduced") == (abs(found.mean) + found.margin <= 2)


def test_a_deviation_becomes_an_error(tmp_path: Path) -> None:
    """± 1.0 of three runs is 1/√3 of their mean, where it is their deviation."""
    errors = {
        kind: [cell.error for cell in _toy(tmp_path, PUBLISHED.replace('"deviation"', f'"{kind}"')).cells if cell.error]
        for kind in ("deviation", "standard error", "none")
    }
    assert float(errors["deviation"][0]) == pytest.approx(1 / math.sqrt(3))
    assert errors["standard error"] == [1]
    assert errors["none"] == []


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
    more = sum(sum(a < b for a, b in combinations(other, 2)) in (0, 1, 5, 6) for other in permutations(range(4)))
    assert order.p == pytest.approx(more / 24)  # of all orders of four, those with a τ of ±2/3 or ±1
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
    assert "| Toy | Table 1 | a | 4 | each its own | 1.00 | 0.083 | 1.00 |" in page([toy])


def test_cells_and_counts(tmp_path: Path) -> None:
    toy = _toy(tmp_path)
    assert counts(toy.cells) == {
        "reproduced": 0, "higher": 0, "lower": 0, "not distinguishable": 1, "no interval": 4, "not run": 5
    }  # fmt: skip
    assert summary([toy, toy])[-1] == ["all", "20", "10", "0", "0", "0", "2", "8", "10"]
    text = page([toy])
    assert "| w | a | 80.0 | 81.0 ± 0.6 | 3 | 1× | not distinguishable: 1.0 above, ± 2.5 | [1](toy.md#toy) |" in text
    assert "| w | b | 70.0 ± 1.0 | 73.0 | 3 | 1× | no interval: mean alone, 3.0 above | [1](toy.md#toy) |" in text
    assert "| x | a | 60.0 | 30.0 | 3 | 1× | no interval: mean alone, 30.0 below | [1](toy.md#toy) |" in text
    told = "- Too dear; about 2.5 h of one core: `florilegium run toy`; `florilegium run toy --set seed=2`."
    assert f"{told} *b*: x (71.0), z (10.0)" in text
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
        ("hours = 2.5", "", "give both commands and hours, or neither (why: 'too dear')"),
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
    records = [one for paper in ledger for one in (*paper.measured.runs, *paper.measured.not_run)]
    commands = [command for one in records for command in one.commands]
    found = {named.match(command) for command in commands}
    assert None not in found
    for kind, recipe, name in {match.groups() for match in found if match}:
        read_recipe(recipe)
        assert kind != "sweep" or name in table_names(recipe, "sweeps"), f"{recipe}: {name}"


def _seeds(command: str) -> list[int] | None:
    """Return the seeds of the runs that a command carries out; None for commands that have seeds of their own."""
    kind, recipe, *rest = shlex.split(command)[1:]
    layers, given = read_layers(recipe.partition(":")[0]), dict(word.split("=", 1) for word in rest if "=" in word)
    if "--seeds" in rest:
        return read_seeds(rest[rest.index("--seeds") + 1])
    if "seed" in given:
        return [int(given["seed"])]
    own = layers.sweeps[rest[0]].get("seeds") if kind == "sweep" else None
    return own or ([layers.keys.get("seed", 1)] if kind in ("run", "sweep") else None)


def test_the_commands_of_a_row_carry_out_its_seeds(ledger: list[Paper]) -> None:
    for paper in ledger:
        for runs in paper.measured.runs:
            found = [_seeds(command) for command in runs.commands]
            if None not in found:
                assert {seed for seeds in found for seed in seeds or []} == {*runs.seeds}, runs.commands


def test_anchors_are_those_of_github() -> None:
    assert anchor("Table 4.1, n = 100") == "table-41-n--100"
    assert anchor("Which reading brings the ensemble's gain? (`lenet`, S = 2)") == (
        "which-reading-brings-the-ensembles-gain-lenet-s--2"
    )


def test_the_command_writes_page_and_picture(tmp_path: Path, ledger: list[Paper]) -> None:
    done = CliRunner().invoke(cli, ["ledger", "--html", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "ledger.md").read_text(encoding="utf-8").startswith("# Ledger\n")
    assert (tmp_path / "ledger.png").read_bytes().startswith(b"\x89PNG")
    assert done.output.startswith("\t".join(HEAD))
    page = (tmp_path / "ledger.html").read_text(encoding="utf-8")
    numbers = page.partition("<h2>Every number</h2>")[2]
    listed = sum(len(paper.cells) for paper in ledger)
    assert numbers.count('<th role="rowheader"') == listed
    assert numbers.count('data-label="verdict">not run<') == sum(
        cell.measured is None for p in ledger for cell in p.cells
    )


def test_claims_of_methods_have_the_verdicts_that_sweeps_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ["100", "Wang et al. 2024", "flora", "fedit", "+0.005 ± 0.049", "not distinguishable"]
    record = tomli_w.dumps({"over": "alpha", "verdicts": [row]})
    (tmp_path / "adapters-banking77-short.methods.toml").write_text(record)
    monkeypatch.setattr("florilegium.research.ledger.page.CLAIMS_OF", tmp_path)
    lines = page([]).split("## Do claimed orders of methods hold?")[1].splitlines()
    assert f"| `adapters-banking77-short methods`, alpha = 100 | {' | '.join(row[1:])} |" in lines
    assert "| `adapters-banking77-short ranks` | Cho et al. 2024 | hetlora-mix | rank2 | – | not run |" in lines


def test_claims_of_defences_have_the_verdicts_that_boards_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = CLAIMS[0]
    row = ["20% attackers", *named(first), "+0.100 ± 0.050", "holds"]
    (tmp_path / "under-attack-claims.toml").write_text(tomli_w.dumps({"seeds": [1, 2, 3], "verdicts": [row]}))
    monkeypatch.setattr("florilegium.research.ledger.page.CLAIMS_OF", tmp_path)
    lines = page([]).split("## Do claimed orders of defences hold?")[1].split("\n## ")[0].splitlines()
    told = [line for line in lines if line.endswith(("| holds |", "| not run |"))]
    cells = ["`under-attack`, 20% attackers", *named(first), "+0.100 ± 0.050", "holds"]
    assert told[0] == f"| {' | '.join(cells)} |"
    assert len(told) == len(CLAIMS)
    assert all(line.startswith("| – |") for line in told[1:])
