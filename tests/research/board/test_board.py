"""A whole board: methods are tuned, run with several seeds and ranked; a method that fails is a line of its own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.reports.statistics import Estimate
from florilegium.apps.runs.experiment import read_assignments
from florilegium.common.errors import ConfigurationError
from florilegium.research.board.entries import Entry
from florilegium.research.board.page import _made, draw
from florilegium.research.board.published import published
from florilegium.strategies.folder.main_figure import MainFigure
from tests.support import CACHE

RECIPE = f"""
dataset = "digits"
model = "mlp"
num-clients = 4
rounds = 2
evaluate-every = 1
validation-fraction = 0.2
unseen-fraction = 0.25
cache-dir = "{CACHE}"

[variants.diverging]
method = "fedavg"
learning-rate = 1e30

[published.Others]
local = "80.4 ± 0.1"

[tune.board]
methods = ["fedavg", "local", "diverging"]
trials = 1
rounds = 1

[tune.board.keys]
learning-rate = {{ low = 0.01, high = 1e30, log = true }}
"""


def _board(folder: Path) -> str:
    (folder / "small.toml").write_text(RECIPE)
    command = ["board", str(folder / "small.toml"), "--runs-dir", str(folder / "runs"), "--seeds", "1-2"]
    done = CliRunner().invoke(
        cli, [*command, "--output", str(folder / "out"), "--workers", "1"], catch_exceptions=False
    )
    assert done.exit_code == 0
    return (folder / "out" / "small.md").read_text(encoding="utf-8")


def test_a_board_is_made_and_reused(tmp_path: Path) -> None:
    text = _board(tmp_path)
    lines = [line.split(" | ") for line in text.partition("## Tuning")[0].splitlines() if line.startswith("| ")]
    seen = {line[0].strip("| "): line for line in lines[2:4]}
    assert {*seen} == {"fedavg", "local"}
    assert seen["local"][-1].strip(" |") == "*80.4 ± 0.1*"
    assert seen["fedavg"][4].startswith("*")  # best on test
    assert re.search(r"- diverging failed: \S+", text)
    assert "## Clients that were never seen" in text
    runs = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*-seed*/summary.json")}
    assert _board(tmp_path) == text
    assert runs == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*-seed*/summary.json")}
    page = (tmp_path / "out" / "small.html").read_text(encoding="utf-8")
    assert (
        len(re.findall(r'<td [^>]*class="grey">', page)) == 3 * 2
    )  # best on test: two groups of two methods; published: two
    assert "Paired differences" not in page


@pytest.mark.parametrize(
    ("recipe", "seeds", "options", "message"),
    [
        (RECIPE, "1-2", ["--set", "seed=5"], "seed: it is set although a list of seeds is given"),
        (RECIPE, "1,2,1", [], "a seed is given twice"),
        (RECIPE.replace('"80.4 ± 0.1"', "[80.4]"), "1", [], r"\[published.Others\]: local must be"),
    ],
    ids=["seed", "twice", "published"],
)
def test_what_is_wrong_is_said_before_the_trials(
    recipe: str, seeds: str, options: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "small.toml").write_text(recipe)
    command = ["board", str(tmp_path / "small.toml"), "--runs-dir", str(tmp_path / "runs"), "--seeds", seeds, *options]
    with pytest.raises(ConfigurationError, match=message):
        CliRunner().invoke(cli, command, catch_exceptions=False)
    assert not (tmp_path / "runs").exists()


def test_the_page_names_the_command_and_the_version_of_its_runs() -> None:
    runs = [SimpleNamespace(path=Path(name)) for name in ("second", "first", "third")]
    parts = {
        "first": _part("2026-01-31", commit="abc"),
        "second": _part("2026-02-01", commit="abc"),
        "third": _part("2026-02-01", commit="def", modified=True),
    }
    overrides = {"runs-dir": "x", "fedper.momentum": 0.5, "final": True, "classes-per-client": "2 3"}
    board: Any = SimpleNamespace(
        recipe="my board.toml", seeds=[1, 2, 3], overrides=overrides, section=SimpleNamespace(runs=runs)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("florilegium.research.board.made.read_provenance", lambda path: [parts[path.name]])
        words = _made(board)
    assert words.startswith("Made on 2026-01-31 to 2026-02-01 by ")
    assert "(florilegium 9 (commit abc, code 12); florilegium 9 (commit def-dirty, code 12); P, 1 worker" in words
    typed = shlex.split(re.findall(r"`(florilegium board .*?)`", words)[0])
    assert typed[2:5] == ["my board.toml", "--seeds", "1-3"]
    expected = {key: value for key, value in overrides.items() if key != "runs-dir"}
    assert read_assignments(typed[6::2]) == expected


def _part(day: str, *, commit: str, modified: bool = False) -> dict[str, Any]:
    versions = {"florilegium": "9", "commit": commit, "modified": modified, "code": "12"}
    return {"start": f"{day}T23:00:00+00:00", "machine": {"processor": "P"}, "workers": 1, "versions": versions}


def test_a_method_may_have_figures_of_new_clients_alone() -> None:
    value = Estimate(0.5, 0.1, 2, 1)
    one, other = (Entry(label, (1, 1), value, None, value, None, 1.0, 1.0, 1.0, MainFigure()) for label in "ab")
    accuracy = draw({"seen": [one], "unseen": [other, one]}).axes[0]
    assert [label.get_text() for label in accuracy.get_yticklabels()] == ["a", "b"]


def test_published_figures_are_numbers_or_texts(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("[published.A]\nfedavg = 80.5\nlocal = '1 ± 2'")
    assert published(str(file)) == {"A": {"fedavg": "80.5", "local": "1 ± 2"}}
    file.write_text("[published.A]\nfedavg = [1]")
    with pytest.raises(ConfigurationError, match=r"\[published.A\]: fedavg must be a number or a text"):
        published(str(file))
