"""Comparisons from the command line and from Python: runs that fail, seeds, and runs that were lengthened."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli.app import cli
from florilegium.apps.cli.options import MOST_SEEDS, read_seeds
from florilegium.apps.sweeps.named_runs import comparison
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from tests.support import CACHE

KEYS: dict[str, Value] = {
    "model": "linear", "num-clients": 4, "rounds": 1, "local-epochs": 1, "cache-dir": str(CACHE),
}  # fmt: skip
DIVERGING = {"fedprox.mu": 1e38}


def _words(folder: Path, **keys: Value) -> list[str]:
    sets = [word for key, value in {**KEYS, **keys}.items() for word in ("--set", f"{key}={value}")]
    return [*sets, "--workers", "1", "--runs-dir", str(folder)]


def test_a_method_that_fails_does_not_cost_the_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done = CliRunner().invoke(cli, ["compare", "fedprox", "fedavg", *_words(tmp_path, **DIVERGING)])
    assert isinstance(done.exception, RunError)
    assert done.exception.exit_status == 1
    assert "1 of 2 runs failed:\n  fedprox-digits-" in str(done.exception)
    (report,) = tmp_path.glob("compare-fedprox-*/report.md")
    assert "| fedavg | seen" in report.read_text()
    assert f"{report.parent}\n" in done.output

    keys = {**{name.replace("-", "_"): value for name, value in KEYS.items()}, "runs_dir": str(tmp_path)}
    diverging = {**keys, "fedprox": {"mu": 1e38}, "progress": False}
    assert [*fl.compare(["fedprox", "fedavg"], **diverging).runs] == ["fedavg"]
    assert "1 of 2 runs failed:\n  fedprox-digits-" in caplog.text
    with pytest.raises(RunError, match="1 of 1 runs failed:\n  fedprox-digits-"):
        fl.compare(["fedprox"], **diverging)


def test_a_lengthened_run_is_told_from_the_compared_one(tmp_path: Path) -> None:
    words = ["compare", "fedavg", *_words(tmp_path)]
    assert CliRunner().invoke(cli, words).exit_code == 0
    (run,) = tmp_path.glob("fedavg-*")
    fl.run(resume=run.name, runs_dir=tmp_path, rounds=2, progress=False)
    said = str(CliRunner().invoke(cli, words).exception)
    assert f"there is already a run {run} with other settings. rounds: was 2, is 1. A run is named after" in said
    assert "keeps the name when `resume` changes them. Ask for the same (--set rounds=2), choose another" in said


@pytest.mark.parametrize("command", [["compare", "fedavg"], ["run", "--seeds", "1"]])
def test_the_folder_of_runs_may_be_set_like_any_key(command: list[str], tmp_path: Path) -> None:
    words = _words(tmp_path)[:-2]  # without --runs-dir
    done = CliRunner().invoke(cli, [*command, *words, "--set", f"runs-dir={tmp_path}"], catch_exceptions=False)
    assert done.exit_code == 0
    assert len([*tmp_path.glob("fedavg-digits-*/summary.json")]) == 1
    assert len([*tmp_path.glob("compare-fedavg-*/report.md")]) == 1


def test_seeds_are_numbers_and_ranges() -> None:
    assert read_seeds("1-3, 7,10 - 11") == [1, 2, 3, 7, 10, 11]
    assert len(read_seeds(f"1-{MOST_SEEDS}")) == MOST_SEEDS


@pytest.mark.parametrize("text", ["", " ", "1,", "3-1", "a", "-1", "1" * 5000])
def test_other_texts_are_no_seeds(text: str) -> None:
    for command in (["run"], ["compare", "fedavg"]):
        done = CliRunner().invoke(cli, [*command, "--seeds", text])
        assert isinstance(done.exception, ConfigurationError)
        assert "is not a list of seeds" in str(done.exception)


@pytest.mark.parametrize("text", ["1-100000000000", "0-10000", "1-9999,10000-10001"])
def test_the_number_of_seeds_is_limited(text: str) -> None:
    with pytest.raises(ConfigurationError, match="more than 10000 seeds"):
        read_seeds(text)


def test_seeds_are_not_given_twice() -> None:
    for assignments, options in ((["seed=5"], {}), ([], {"seed": 5})):
        with pytest.raises(ConfigurationError, match="seed: it is set although a list of seeds is given"):
            comparison(["fedavg"], [1, 2], None, assignments, options)
