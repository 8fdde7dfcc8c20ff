"""A board of two attacks against three defences, one of which is impossible with many attackers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.common.errors import ConfigurationError
from florilegium.research.board.claims import Claim, Point, verdicts
from florilegium.research.board.under_attack import Cell, Pair, pairs
from florilegium.strategies.folder.run_folder import read_config
from tests.support import CACHE

RECIPE = """
dataset = "digits"
partitioner = "iid"
model = "linear"
num-clients = 8
participation = 1.0
rounds = 3
local-epochs = 1
learning-rate = 0.0001
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

[tune.board]
methods = ["mean", "median", "bulyan"]
trials = 2
rounds = 2

[tune.board.keys]
learning-rate = { values = [0.0001, 0.05] }

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


def test_the_page_has_the_worst_attack_first(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim("a paper", Point("flip", "median"), Point("flip", "mean"))
    monkeypatch.setattr("florilegium.research.board.claims.CLAIMS", (claim,))
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
    start = lines.index("| defence | worst attack | accuracy | nobody attacks |")
    worst = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start + 2 : start + 5]]
    assert worst[-1] == ["mean", "flip", f"{flipped[0]:.3f}", f"{undisturbed[0]:.3f}"]
    assert [float(row[2]) for row in worst] == sorted((float(row[2]) for row in worst), reverse=True)
    assert "–" in "".join(line for line in lines if line.startswith("| flip"))
    told = tomllib.loads((tmp_path / "boards" / "small-claims.toml").read_text())
    assert told["seeds"] == [1]
    assert [(row[0], row[-1]) for row in told["verdicts"]] == [(f"{n}% attackers", "no interval") for n in (12, 25)]
    assert float(told["verdicts"][0][-2]) == pytest.approx(flipped[1] - flipped[0], abs=0.002)
    page = (tmp_path / "boards" / "small.html").read_text()
    assert page.count("<table") == sum(line.startswith("| attack |") for line in lines) + 5 == 11
    assert "hsl(" in page
    chosen = next(line for line in lines if line.startswith("| learning-rate |"))
    assert chosen == "| learning-rate | 0.05 | 0.05 | 0.05 |"  # 0.0001 trains nothing
    config = read_config(next((tmp_path / "runs").glob("fedavg-*")))
    assert config["learning-rate"] == 0.05


def test_claims_are_judged_by_paired_seeds() -> None:
    """Three differences with mean m and deviation s have the interval m ± 4.303·s/√3."""
    accuracies = {
        Point("mimic", "median-of-buckets"): {1: 0.8, 2: 0.7, 3: 0.9},
        Point("mimic", "median"): {1: 0.7, 2: 0.62, 3: 0.78, 4: 0.0},  # differences 0.10, 0.08, 0.12
        Point("little-is-enough", "trimmed-mean"): {1: 0.5, 2: 0.6},
        Point("min-max", "trimmed-mean"): {1: 0.7, 2: 0.5},  # −0.2, +0.1
        Point("sign-flip", "trimmed-mean-of-neighbours"): {1: 0.5},
        Point("sign-flip", "trimmed-mean"): {1: 0.6},
        Point("label-flip", "trimmed-mean-of-neighbours"): {},
        Point("label-flip", "trimmed-mean"): {1: 0.5},
        Point("inner-product", "trimmed-mean-of-neighbours"): {1: 0.1, 2: 0.1},
        Point("inner-product", "trimmed-mean"): {1: 0.5, 2: 0.5},
    }
    assert [(row[0], *row[3:]) for row in verdicts(accuracies.get)] == [
        ("Karimireddy et al. 2022", "+0.100 ± 0.050", "holds"),
        ("Allouah et al. 2023", "-0.100", "no interval"),
        ("Allouah et al. 2023", "–", "no run completed"),
        ("Allouah et al. 2023", "-0.400 ± 0.000", "does not hold"),
        ("Shejwalkar and Houmansadr 2021", "-0.050 ± 1.906", "not distinguishable"),
    ]
    assert not verdicts(lambda point: None)


def test_lost_runs_are_told_and_are_the_worst() -> None:
    """Deviations of 0.7, 0.8, 0.9 and of 0.7, 0.9 by hand: 0.1, and 0.2/√2."""
    whole = Cell({1: {"accuracy": 0.7}, 2: {"accuracy": 0.8}, 3: {"accuracy": 0.9}}, [])
    partly = Cell({1: {"accuracy": 0.7}, 3: {"accuracy": 0.9}}, ["diverged"])
    assert [cell.shown("accuracy") for cell in (whole, partly, Cell({}, ["diverged"]), Cell({}, []))] == [
        "0.800 ± 0.100", "0.800 ± 0.141, 1 of 3 lost", "lost", "–"
    ]  # fmt: skip
    assert partly.shown("accuracy_global") == "–"  # which the method has not
    assert whole.left() == pytest.approx(0.8)
    assert [partly.left(), Cell({}, ["diverged"]).left(), Cell({}, []).left()] == [0, 0, None]


def test_the_attack_that_ends_all_runs_is_the_worst(recipe: str, tmp_path: Path) -> None:
    text = RECIPE.replace("sign-flip.scale = 20.0", "sign-flip.scale = 1e16").replace("[0.125, 0.25]", "[0.25]")
    text = text.replace('"median", "bulyan"]', '"median"]')
    Path(recipe).write_text(text)
    command = ["board", recipe, "--seeds", "1", "--workers", "1", "--set", f"cache-dir={CACHE}"]
    CliRunner().invoke(cli, [*command, "--runs-dir", str(tmp_path / "runs"), "--output", str(tmp_path / "boards")])
    page = (tmp_path / "boards" / "small.md").read_text()
    assert re.search(r"\| mean \| flip \| lost \| 0\.\d+ \|", page)
    assert "- 25% attackers, mean, flip: 1 of 1 runs lost: " in page
    assert "hsl(30 70% 75%)" in (tmp_path / "boards" / "small.html").read_text()


def test_defences_are_tuned_alike_or_not_at_all(recipe: str, tmp_path: Path) -> None:
    Path(recipe).write_text(RECIPE.replace('methods = ["mean", "median", "bulyan"]', 'methods = ["mean", "median"]'))
    with pytest.raises(ConfigurationError, match="add 'bulyan' to methods"):
        pairs(recipe, {"runs-dir": str(tmp_path)})


def test_a_variant_that_is_not_there(recipe: str, tmp_path: Path) -> None:
    Path(recipe).write_text(RECIPE.replace('["labels", "flip"]', '["labels", "flop"]'))
    with pytest.raises(ConfigurationError, match="there is no variant 'flop'"):
        pairs(recipe, {"runs-dir": str(tmp_path)})


def test_what_a_method_does_not_allow_is_left_out(recipe: str, tmp_path: Path) -> None:
    """IFCA's server combines each model by itself: no rule, and no forged updates; poisoned labels are possible."""
    more = RECIPE.replace('"bulyan"]', '"bulyan", "ifca", "ifca-median"]')
    more += '[variants.ifca]\nmethod = "ifca"\n[variants.ifca-median]\nmethod = "ifca"\naggregation = "median"\n'
    Path(recipe).write_text(more)
    found = {(one.attack, one.defence) for one in pairs(recipe, {"runs-dir": str(tmp_path)})}
    assert {attack for attack, defence in found if defence == "ifca"} == {"", "labels"}
    assert not {attack for attack, defence in found if defence == "ifca-median"}
