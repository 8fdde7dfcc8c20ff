"""Personal methods under attack: what attackers and rules act on, and what honest clients' own models keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.strategies.folder.results import read_clients, read_summary
from tests.runs import Runs

ALL: dict[str, Value] = {
    "model": "mlp", "partitioner": "iid", "num-clients": 8, "samples-per-client": 40, "participation": 1.0, "rounds": 2,
    "local-epochs": 1, "learning-rate": 0.1, "batch-size": 20, "weighting": "uniform", "evaluate-every": 0,
    "attackers": 2, "seed": 3,
}  # fmt: skip
METHODS: dict[str, dict[str, Value]] = {
    "ditto": {}, "fedrep": {}, "fedbabu": {"finetune-epochs": 1}, "pfedfda": {}, "apfl": {},
    "ppfe": {"ppfe.personal-blocks": "0,1", "ppfe.stage-rounds": "1,1", "ppfe.reduction": "none"},
}  # fmt: skip
STRONG: dict[str, Value] = {"attack": "sign-flip", "sign-flip.scale": 20.0}


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, ALL)


def _final(path: Path) -> dict[str, float]:
    return read_summary(path)["final"]["seen"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("attack", ["sign-flip", "backdoor"])
def test_what_clients_return_is_forged_and_combined(run: Runs, method: str, attack: str) -> None:
    """The rule sees one update for each client, and all figures are of honest clients."""
    strong = {"backdoor.boost": 0.0} if attack == "backdoor" else {"sign-flip.scale": 20.0}
    path = run("attacked", method=method, attack=attack, aggregation="multi-krum", **METHODS[method], **strong)
    assert read_summary(path)["robust"]["recall"] == 1.0
    assert len(read_clients(path)) == 6
    assert 0 < _final(path)["accuracy"] <= 1
    assert ("attack_success" in _final(path)) == (attack == "backdoor")


def test_models_that_nobody_else_touches_are_safe(run: Runs) -> None:
    """With λ = 0 Ditto's personal models are trained alone: attackers change the model of all, and nothing else."""
    keys: dict[str, Value] = {"method": "ditto", "ditto.regularization": 0.0, "rounds": 3}
    attacked = run("attacked", **keys, **STRONG)
    own = {line["client"]: line for line in read_clients(run("honest", **keys))}
    for line in read_clients(attacked):
        assert (line["loss"], line["accuracy"]) == (own[line["client"]]["loss"], own[line["client"]]["accuracy"])
        assert float(line["loss_global"]) > float(own[line["client"]]["loss_global"])


def test_a_backdoor_is_measured_before_and_after_fine_tuning(run: Runs) -> None:
    """What clients fine-tune is the run's model, whose success is measured too; three epochs change it."""
    keys: dict[str, Value] = {
        "attack": "backdoor",
        "rounds": 3,
        "samples-per-client": 120,
        "batch-size": 10,
        "local-epochs": 2,
    }
    plain, tuned = _final(run("plain", **keys)), _final(run("tuned", **keys, **{"finetune-epochs": 3}))
    assert tuned["attack_success_global"] == plain["attack_success"] > 0.3
    assert tuned["accuracy_global"] == plain["accuracy"]
    assert tuned["attack_success"] != tuned["attack_success_global"]
    assert "attack_success_global" not in plain


def test_clustered_models_have_poisoned_clients_alone(run: Runs) -> None:
    """How many attackers choose a model of IFCA is not known before the run: no rule could be right."""
    keys: dict[str, Value] = {"method": "ifca", "ifca.clusters": 2}
    assert "attack_success" in _final(run("attacked", **keys, attack="backdoor"))
    for refused in ({"attack": "sign-flip"}, {"attack": "backdoor", "backdoor.boost": 0.0}, {"aggregation": "median"}):
        with pytest.raises(ConfigurationError, match="'ifca': it averages each part over the clients that train it"):
            run("refused", **keys, **refused)
