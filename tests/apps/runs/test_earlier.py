"""Run folders that versions 0.1.0 and 0.2.0 wrote (``earlier/``) are read, or refused in words (docs/upgrading.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli.app import cli
from florilegium.apps.settings.configuration import complete, parse
from florilegium.strategies.folder.run_folder import read_config

HERE = Path(__file__).with_name("earlier")
VERSIONS = sorted(path.name for path in HERE.iterdir())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs, one of each version."""
    return Path(shutil.copytree(HERE, tmp_path / "runs"))


def test_their_figures_are_read(runs: Path) -> None:
    """The numbers as the files of both versions have them."""
    assert [*fl.runs(runs_dir=str(runs))["accuracy"].round(4)] == [0.4934, 0.4934]
    for version in VERSIONS:
        run = fl.open(str(runs / version))
        assert (run.state, run.summary["rounds"], len(run.clients)) == ("completed", 2, 3)
        assert [*run.metrics["accuracy"].round(3)] == [0.385, 0.493]
        parse(complete(read_config(runs / version)))
    done = CliRunner().invoke(cli, ["report", *VERSIONS, "--runs-dir", str(runs), "--output", str(runs / "report")])
    assert done.exit_code == 0, done.output
    assert "earlier versions noted no hash" in done.output


@pytest.mark.parametrize(
    ("version", "method", "meant"),
    [
        ("0.1.0", "fedavg", "fedadam"), ("0.1.0", "pefll", "adam"), ("0.2.0", "pefll", "adam"),
        ("0.2.0", "pefll-prior", "adam"),  # a method that 0.1.0 did not have
    ],
)  # fmt: skip
def test_adam_meant_fedadam_in_the_first_version(runs: Path, version: str, method: str, meant: str) -> None:
    path = runs / version / "config.toml"
    words = path.read_text().replace('server-optimizer = "sgd"', 'server-optimizer = "adam"')
    path.write_text(words.replace('method = "fedavg"', f'method = "{method}"', 1))
    config = read_config(runs / version)
    assert (config["method"], config["server-optimizer"]) == (method, meant)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("command", ["resume {} --set rounds=4 --workers 1", "export {} --client 0 --output model"])
def test_their_models_are_refused_in_words(version: str, command: str, runs: Path) -> None:
    words = [*command.format(version).split(), "--runs-dir", str(runs)]
    done = CliRunner().invoke(cli, words)
    assert "it has no checksum, as files of versions up to 0.2.0" in f"{done.output}{done.exception}"
    assert done.exit_code
    assert fl.open(str(runs / version)).state == "completed"
