"""``florilegium check``: what a run would refuse, what differs from the defaults, and an estimate that runs confirm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import Tensor, nn

from florilegium.apps.runs import check
from florilegium.apps.runs.check import check_run
from florilegium.common.errors import ConfigurationError, DataError, RunError
from florilegium.common.settings import Value
from tests.grid import run_app
from tests.support import CACHE, config

KEYS: dict[str, Value] = {
    "num-clients": 6, "rounds": 4, "participation": 0.5, "local-steps": 2, "evaluate-every": 2, "cache-dir": str(CACHE),
}  # fmt: skip


def test_bytes_and_counts_are_those_of_the_run(tmp_path: Path) -> None:
    found = check_run(KEYS)
    assert (found.clients, found.cohort, found.rounds) == (6, 3, 4)
    assert found.estimate["client trainings"] == 12
    assert found.estimate["client tests"] == 12  # of six, after rounds 2 and 4
    run_app(config(**KEYS, **{"runs-dir": str(tmp_path), "run-name": "run"}))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found.estimate["MB received"] == pytest.approx(summary["bytes_up"] / 1e6)
    assert found.estimate["MB sent to clients"] == pytest.approx(summary["bytes_down"] / 1e6)
    assert found.estimate["seconds, one worker"] > 0


def test_changed_keys_stand_beside_their_defaults() -> None:
    changed = check_run({**KEYS, "learning-rate": 0.25}).changed
    assert changed["learning-rate"] == (0.25, config()["learning-rate"])
    assert changed.keys() == {*KEYS, "learning-rate"} - {"participation"}  # 0.5 is the default


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rounds": -1}, "rounds"), ({"method": "fedsilly"}, "method"), ({"num-clients": 5000}, "num-clients"),
        ({"cohort-size": 7}, "cohort-size"), ({"init": "nowhere"}, "there is no run 'nowhere'"),
    ],
)  # fmt: skip
def test_what_a_run_refuses_is_refused(keys: dict[str, Value], said: str) -> None:
    with pytest.raises((ConfigurationError, DataError), match=said):
        check_run({**KEYS, **keys})


def test_where_one_client_cannot_be_rehearsed_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> dict[str, float]:
        raise ConfigurationError("rounds: the stages need 60")

    monkeypatch.setattr(check, "_rehearsed", refuse)
    found = check_run(KEYS)
    assert (found.estimate, found.why) == ({}, "rounds: the stages need 60")


class Branching(nn.Module):
    """Decides by its inputs what to compute, which no exporter can follow."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[-2] * shape[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        found: Tensor = self.layer(x if float(x.sum()) > 0 else 2 * x)
        return found


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": f"{__name__}:Branching"}, "`export --onnx` would fail: this network cannot be written as ONNX"),
        ({"model": "tests.models.foreign:ViewNet"}, ""),
        ({"model": "mlp"}, ""),
        ({"method": "knn-per", "model": "mlp"}, "it looks up the nearest among stored examples"),
        ({"model": "cnn-bn", "finetune-epochs": 1, "finetune-bn": "batch"}, "with the statistics of each batch"),
        ({"method": "k-fed", "model": "centers", "rounds": 1, "evaluate-every": 1, "kmeans.privacy-unit": "none",
          "kmeans.radius": 1.0, "kmeans.reveal-rows": True}, ""),
    ],
)  # fmt: skip
def test_what_could_not_be_done_with_a_model_is_told_before_the_run(keys: dict[str, Value], said: str) -> None:
    told = [warning for warning in check_run({**KEYS, **keys}).warnings if "after the run" in warning]
    assert len(told) == bool(said)
    assert not said or said in told[0]


def test_a_model_that_cannot_be_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise RunError(f"{folder} holds no readable model")

    monkeypatch.setattr("florilegium.clients.core.export.load_model", refuse)
    (said,) = check_run(KEYS).warnings
    assert said.startswith("model: after the run no client's model could be exported: ")
