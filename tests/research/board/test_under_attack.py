"""A board of two attacks against three defences, one of which is impossible with many attackers."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.common.errors import ConfigurationError
from florilegium.research.board.under_attack import Pair, pairs
from tests.support import CACHE

RECIPE = """
dataset = "digits"
partitioner = "iid"
model = "linear"
num-clients = 8
participation = 1.0
rounds = 3
local-epochs = 1
learning-rate = 0.05
evaluate-every = 0

[variants.flip]
attack = "sign-flip"
sign-flip.scale = 20.0

[variants.labels]
attack = "label-flip"
label-flip.source = 3
label-flip.target = 5

[variants.mean]
aggregation = "mean"

[variants.median]
aggregation = "median"

[variants.bulyan]
aggregation = "bulyan"

[sweeps.attacks]
variants = ["labels", "flip"]

[sweeps.defences]
variants = ["mean", "median", "bulyan"]

[sweeps.shares]
values = [0.125, 0.25]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return str(path)


def test_every_attack_meets_every_defence_that_is_possible(recipe: str, tmp_path: Path) -> None:
    found = pairs(recipe, {"runs-dir": str(tmp_path)})
    defences = {Pair("flip", name, 0.25) in found for name in ("mean", "median")}
    assert defences == {True}
    assert Pair("", "bulyan", 0.125) in found
    assert Pair("", "bulyan", 0.25) not in found  # 4·2 + 3 > 8
    assert len(found) == 3 * (3 + 2)


def test_the_page_has_the_worst_attack_first(recipe: str, tmp_path: Path) -> None:
    command = [
        "board",
        recipe,
        "--seeds",
        "1",
        "--workers",
        "1",
        "--set",
        f"cache-dir={CACHE}",
        "--runs-dir",
        str(tmp_path / "runs"),
    ]
    done = CliRunner().invoke(cli, [*command, "--output", str(tmp_path / "boards")])
    assert done.exit_code == 0, done.output
    lines = (tmp_path / "boards" / "small.md").read_text().splitlines()
    start = lines.index("| attack | mean | median | bulyan |")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start + 2 : start + 5]]
    assert [row[0] for row in rows] == ["nobody attacks", "flip", "labels"]
    undisturbed, flipped, _ = ([float(cell) for cell in row[1:]] for row in rows)
    assert flipped[0] < 0.5 < flipped[1]  # the mean is lost, the median is not
    assert undisturbed[0] > 0.7
    assert "–" in "".join(line for line in lines if line.startswith("| flip"))
    page = (tmp_path / "boards" / "small.html").read_text()
    assert page.count("<table") == sum(line.startswith("| attack |") for line in lines) == 6
    assert "hsl(" in page


def test_a_variant_that_is_not_there(recipe: str, tmp_path: Path) -> None:
    Path(recipe).write_text(RECIPE.replace('["labels", "flip"]', '["labels", "flop"]'))
    with pytest.raises(ConfigurationError, match="there is no variant 'flop'"):
        pairs(recipe, {"runs-dir": str(tmp_path)})
