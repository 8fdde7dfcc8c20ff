"""Engines by name: the suite's own, those of other packages, and what "auto" takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli.app import cli
from florilegium.apps.cli.options import complete_engine
from florilegium.apps.engines.base import Engine
from florilegium.apps.engines.one_process import run_here
from florilegium.apps.engines.process import InThisProcess
from florilegium.apps.engines.progress import Show
from florilegium.apps.engines.registry import ENGINES, engine
from florilegium.apps.settings.configuration import complete
from florilegium.common.settings import Value
from tests.support import CACHE

TINY: dict[str, Any] = {"rounds": 2, "num_clients": 3, "cache_dir": str(CACHE), "progress": False}
ended: list[str] = []


class Toy(Engine):
    """Trains all clients here, one after the other, and never evaluates for whoever called it."""

    def __exit__(self, *exception: object) -> None:
        ended.append("toy")

    def run(self, overrides: Mapping[str, Value], run_path: Path, progress: Show) -> None:
        run_path.mkdir(parents=True, exist_ok=True)
        run_here(complete(overrides), run_path)


class Eager(Toy):
    @classmethod
    def suits(cls, workers: int, configs: Sequence[Mapping[str, Value]]) -> bool:
        return workers == 3


def test_a_toy_engine_gives_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINES, "_installed", {"toy": EntryPoint("toy", f"{__name__}:Toy", "florilegium.engines")})
    ended.clear()
    runs = [
        fl.run(engine=name, runs_dir=tmp_path / str(at), **TINY)
        for at, name in enumerate(("process", "toy", f"{__name__}:Toy"))
    ]
    assert ended == ["toy", "toy"]
    first, *others = (run.summary["final"]["seen"] for run in runs)
    assert first["accuracy"] > 0
    assert others == [first, first]
    assert complete_engine("to") == ["toy"]


def test_the_command_line_takes_an_engine_by_reference(tmp_path: Path) -> None:
    ended.clear()
    words = ["--engine", f"{__name__}:Toy", "--runs-dir", str(tmp_path), "--workers", "1", "--set", "num-clients=3"]
    CliRunner().invoke(cli, ["run", *words, "--set", "rounds=1", "--set", f"cache-dir={CACHE}"], catch_exceptions=False)
    assert ended == ["toy"]


@pytest.mark.parametrize("name", ["json:dumps", "dask", "nowhere.at.all:Engine", ""])
def test_what_is_no_engine_is_refused(name: str) -> None:
    with pytest.raises(fl.ConfigurationError, match=f"^engine: '{name}' (is not an engine|cannot be imported)"):
        engine(name, 1, []).__enter__()


def test_auto_takes_an_engine_that_suits_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setitem(ENGINES.own, "eager", f"{__name__}:Eager")
    for workers, expected in ((1, InThisProcess), (3, Eager)):
        with engine("auto", workers, []) as chosen:
            assert type(chosen) is expected
            assert chosen.workers == workers
