"""Every method minimises the loss that is chosen, with the weights of its examples, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from florilegium.apps.assembly.parts import assemble
from florilegium.apps.assembly.task_checks import fitting
from florilegium.apps.methods.registry import METHODS
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.strategies.folder.metrics_file import read_evaluations
from florilegium.tasks.task import FAMILY
from tests.fingerprints import cases
from tests.runs import Runs
from tests.support import TASK, config, mostly_long

CLASSIFIERS = fitting(TASK)
OTHERS = [name for name in METHODS.own if METHODS[name].task != "targets"]
CHANGES: dict[str, Value] = {"loss": "focal", "class-weights": "1,1,4,1,1,1,9,1,1,1"}
IGNORING = {name: why for name in METHODS if (why := METHODS[name].client_class().ignores_loss)}


@pytest.mark.parametrize("method", OTHERS)
def test_what_learns_no_targets_has_no_loss_and_no_metrics(method: str) -> None:
    for key, value in {**CHANGES, "metrics": "f1"}.items():
        with pytest.raises(ConfigurationError, match=f"{key}: it would have no effect"):
            assemble(config(**{**cases()[method], "dataset": "digits", key: value}), one_thread=True)


@pytest.mark.parametrize("key", CHANGES)
@pytest.mark.parametrize("method", mostly_long([*CLASSIFIERS], "fedavg", "fedproto", "ditto", "flowdup", "pefll"))
def test_the_loss_and_weights_of_classes_change_what_is_learned(method: str, key: str, tmp_path: Path) -> None:
    if method in IGNORING:
        with pytest.raises(ConfigurationError, match=f"{key}: it would have no effect"):
            assemble(config(**{**cases()[method], key: CHANGES[key]}), one_thread=True)
        return
    if key == "loss" and FAMILY in METHODS[method].client_class().needs:
        with pytest.raises(ConfigurationError, match="needs the likelihood of a generalised linear model"):
            assemble(config(**{**cases()[method], key: CHANGES[key]}), one_thread=True)
        return
    runs = Runs(tmp_path, {**cases()[method], "metrics": "perplexity,accuracy"})
    both: dict[str, dict[str, Value]] = {"plain": {}, "changed": {key: CHANGES[key]}}
    plain, changed = (read_evaluations(runs(name, **keys))[-1]["seen"] for name, keys in both.items())
    assert plain["perplexity"] != pytest.approx(changed["perplexity"], rel=1e-6)
