"""What is wrong with a run is said before others start, and the rehearsal leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import florilegium as fl
from florilegium.apps.assembly.parts import open_folder, outcome_noted
from florilegium.apps.engines import rehearsal
from florilegium.apps.engines.registry import engine
from florilegium.apps.engines.rehearsal import rehearse
from florilegium.common.errors import ConfigurationError, FlorilegiumError
from tests.support import CACHE, config

WRONG = {
    "init": ({"init": "nowhere"}, "there is no run 'nowhere'"),
    "data-dir": ({"dataset": "cifar10", "data-dir": "/nowhere"}, "data-dir: there is no /nowhere"),
    "classes": ({"classes-per-client": 11}, "classes-per-client: a client cannot have 11 classes"),
    "blocks": ({"method": "fedrep", "fedrep.head-blocks": 9}, "head-blocks: 9 of the network's blocks were asked for"),
    "stages": ({"method": "ppfe", "ppfe.stage-rounds": "1,2"}, "ppfe.stage-rounds"),
    "privacy": ({"privacy.unit": "client"}, r"weighting: with privacy.unit = 'client'"),
    "device": ({"device": "cuda:99"}, r"device: 'cuda:99' is not there; PyTorch .* sees \d+ GPUs"),
    "model": ({"model": "char-lstm"}, "model: 'char-lstm' does not take the inputs of 'digits'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(what: str, tmp_path: Path) -> None:
    keys, message = WRONG[what]
    with pytest.raises(FlorilegiumError, match=message):
        rehearse(config(**{**keys, "runs-dir": str(tmp_path)}))
    assert not list(tmp_path.iterdir())


EARLY = """
import sys
from florilegium.apps.engines.registry import engine
from florilegium.common.errors import ConfigurationError, FlorilegiumError
for keys in ({"init": "nowhere"}, {"init": "/nowhere.pt"}, {"dataset": "cifar10", "data-dir": "/nowhere"},
             {"classes-per-client": 11}, {"privacy.unit": "client"}, {"rounds": "many"}):
    try:
        with engine("auto", 1, [keys]):
            pass
    except FlorilegiumError as error:
        print(str(error).splitlines()[-1])
print("torch" in sys.modules)
"""


def test_what_needs_no_pytorch_is_said_before_it_is_imported() -> None:
    """The import takes most of the time until an error is shown."""
    said = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=True).stdout.splitlines()
    expected = ["there is no run 'nowhere'", "init: there is no file /nowhere.pt", "data-dir: there is no /nowhere",
                "a client cannot have 11 classes",
                "weighting: ", "rounds: input should be a valid integer", "False"]  # fmt: skip
    assert len(said) == len(expected)
    for line, words in zip(said, expected, strict=True):
        assert words in line


@pytest.mark.parametrize("method", ["fedavg", "pefll", "mdm", "scaffold"])
def test_what_is_right_is_left_alone(method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rehearse(config(method=method, **{"runs-dir": str(tmp_path), "resume": "nowhere"}))
    assert not list(tmp_path.iterdir())
    assert not caplog.text


def test_a_comparison_does_not_begin_if_one_of_its_runs_cannot(tmp_path: Path) -> None:
    with pytest.raises(fl.ConfigurationError, match="head-blocks"):
        fl.compare(
            ["fedavg", "fedrep"], fedrep={"head_blocks": 9}, runs_dir=tmp_path, cache_dir=str(CACHE), progress=False
        )
    assert not list(tmp_path.iterdir())


def test_methods_that_do_not_fit_the_task_are_refused_first_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before others are rehearsed, which takes longer, and also where a run starts from one that is not there yet."""
    rehearsed: list[object] = []
    monkeypatch.setattr(rehearsal, "rehearse", rehearsed.append)
    common = {"task": "regression", "partitioner": "iid"}
    fits, other = {"method": "fedavg", **common}, {"method": "fedproto", "init": "later", **common}
    with pytest.raises(ConfigurationError, match="'fedproto' needs one class for each example"):  # noqa: SIM117
        with engine("process", 1, [fits, other]):
            pass
    assert not rehearsed
    with engine("process", 1, [fits, {**fits, "method": "ditto"}]):
        assert len(rehearsed) == 2


def test_a_run_that_flower_stops_says_so(tmp_path: Path) -> None:
    """``flwr stop`` ends the run's process by SystemExit, whose text is "0"."""
    run = open_folder(tmp_path / "run", config(), "fedavg")
    with pytest.raises(SystemExit), outcome_noted(run):
        raise SystemExit(0)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["error"]) == ("stopped", "its process was asked to end, as `flwr stop` does")
