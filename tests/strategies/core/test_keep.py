"""Key ``keep``: at the end a run returns to the models that were best on held-out examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.strategies.core import rounds
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import run_app
from tests.support import config

KEYS: dict[str, Value] = {
    "num-clients": 4, "participation": 1.0, "validation-fraction": 0.25, "evaluate-every": 1, "local-epochs": 1,
    "rounds": 5,
}  # fmt: skip
PERSONAL = ("fedper", "ditto", "fedala", "apple")


def _run(tmp_path: Path, name: str, **keys: Any) -> Path:
    names = {} if "resume" in keys else {"run-name": name}
    intercept = keys.pop("intercept", None)
    run_app(config(**{**KEYS, **names, "runs-dir": str(tmp_path), **keys}), intercept=intercept)
    return tmp_path / name


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the third round be the best: earlier rounds are before it, and later ones are not better."""
    monkeypatch.setattr(rounds, "best_round", lambda evaluations, task: min(3, len(evaluations)) or None)


def _summary(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "summary.json").read_text()))


@pytest.mark.usefixtures("third")
@pytest.mark.parametrize("method", ["fedavg", "scaffold", *PERSONAL])
def test_the_models_of_the_best_round_are_left(tmp_path: Path, method: str) -> None:
    """Global model, the method's state and clients' own models: all figures are those of the best evaluation."""
    path = _run(tmp_path, "kept", method=method, keep="best")
    lines, summary = read_metrics(path), _summary(path)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    assert summary["kept"] == 3
    assert summary["final"]["seen"] == lines[2]["seen"] != lines[4]["seen"]
    short = _run(tmp_path, "short", method=method, rounds=3)
    for name, array in read_checkpoint(short).arrays.items():
        np.testing.assert_array_equal(read_checkpoint(path).arrays[name], array)
    assert (path / "clients.csv").read_text() == (short / "clients.csv").read_text()


@pytest.mark.usefixtures("third")
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_run_that_died_keeps_the_same_as_a_whole_one(tmp_path: Path, method: str) -> None:
    def die(message: Message) -> Message | None:
        if message.metadata.message_type == "train" and message.content["config"]["round"] == 5:
            raise KeyboardInterrupt
        return None

    whole = _run(tmp_path, "whole", method=method, keep="best")
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, "part", method=method, keep="best", intercept=die)
    part = _run(tmp_path, "part", method=method, keep="best", resume="part")
    assert _summary(part)["kept"] == _summary(whole)["kept"]
    assert _summary(part)["final"] == _summary(whole)["final"]
    for name, array in read_checkpoint(whole).arrays.items():
        np.testing.assert_array_equal(read_checkpoint(part).arrays[name], array)


def test_the_choice_follows_the_main_figure_that_metrics_names_and_never_test_rows(tmp_path: Path) -> None:
    path = _run(tmp_path, "kept", keep="best", metrics="accuracy")
    accuracies = [line["seen"]["validation_accuracy_median"] for line in read_metrics(path)]
    assert _summary(path)["kept"] == 1 + int(np.argmax(accuracies))  # the first of equal ones


def test_without_the_key_the_last_model_is_left(tmp_path: Path) -> None:
    path = _run(tmp_path, "last")
    assert "kept" not in _summary(path)
    assert _summary(path)["final"]["seen"] == read_metrics(path)[-1]["seen"]


def test_patience_ends_the_run_and_the_best_is_left(tmp_path: Path) -> None:
    path = _run(tmp_path, "both", keep="best", patience=2, rounds=40, **{"learning-rate": 10.0, "max-grad-norm": 1.0})
    losses = [line["seen"]["validation_loss_median"] for line in read_metrics(path)]
    assert _summary(path)["kept"] == 1 + int(np.argmin(losses)) < len(losses)
    assert _summary(path)["final"]["seen"]["validation_loss_median"] == min(losses)


@pytest.mark.usefixtures("third")
def test_a_run_that_is_over_is_not_prolonged_from_another_round(tmp_path: Path) -> None:
    _run(tmp_path, "kept", keep="best")
    with pytest.raises(ConfigurationError, match=r"resume: run 'kept' is over, .* init = 'kept'"):
        _run(tmp_path, "kept", keep="best", resume="kept", rounds=7)
    again = _run(tmp_path, "again", init="kept", rounds=0)
    for name, array in read_checkpoint(tmp_path / "kept").arrays.items():
        np.testing.assert_array_equal(read_checkpoint(again).arrays[name], array)


def test_what_it_needs_and_what_it_does_not_go_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"keep: .*set validation-fraction"):
        _run(tmp_path, "no", keep="best", **{"validation-fraction": 0.0})
    with pytest.raises(ConfigurationError, match=r"patience, keep: .*secure-aggregation"):
        _run(tmp_path, "no", keep="best", **{"secure-aggregation": True})
    with pytest.raises(ConfigurationError, match=r"patience, keep: .*not protected"):
        _run(
            tmp_path,
            "no",
            keep="best",
            **{"privacy.unit": "client", "privacy.noise-multiplier": 1.0, "weighting": "uniform"},
        )
    with pytest.raises(ConfigurationError, match=r"keep: no client has an example to validate with"):
        _run(tmp_path, "small", keep="best", **{"validation-fraction": 0.001})
