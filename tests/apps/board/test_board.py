"""A whole board: methods are tuned, run with several seeds and ranked; a method that fails is a line of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilegium.apps.board.published import published
from florilegium.apps.cli import cli
from florilegium.common.errors import ConfigurationError
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
    assert page.count('<td class="grey">') == 3 * 2  # best on test: two groups of two methods; published: two
    assert "Paired differences" not in page


def test_published_figures_are_numbers_or_texts(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("[published.A]\nfedavg = 80.5\nlocal = '1 ± 2'")
    assert published(str(file)) == {"A": {"fedavg": "80.5", "local": "1 ± 2"}}
    file.write_text("[published.A]\nfedavg = [1]")
    with pytest.raises(ConfigurationError, match=r"\[published.A\]: fedavg must be a number or a text"):
        published(str(file))
