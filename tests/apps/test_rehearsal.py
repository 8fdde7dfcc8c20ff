"""What is wrong with a run is said before others start, and the rehearsal leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

import florilegium as fl
from florilegium.apps.rehearsal import rehearse
from florilegium.common.errors import FlorilegiumError
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
