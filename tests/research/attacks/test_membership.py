"""Membership inference: its figures by hand, and runs that learn their rows by heart or do not train at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import Examples
from florilegium.research.attacks.membership import Membership, Scores, attack, auc, confidences, hits
from tests.runs import Runs

KEYS: dict[str, Value] = {
    "method": "local", "model": "mlp", "num-clients": 8, "participation": 1.0, "rounds": 1, "local-epochs": 60,
    "learning-rate": 0.1, "momentum": 0.9, "batch-size": 16, "evaluate-every": 0, "partitioner": "iid",
    "samples-per-client": 20,
}  # fmt: skip


def test_figures_of_a_few_rows() -> None:
    """Members 3, 2, 1 against others 2, 0: of 6 pairs 4 are in order, 1 is a tie, 1 is not."""
    member, score = np.array([True, True, True, False, False]), np.array([3.0, 2.0, 1.0, 2.0, 0.0])
    assert auc(member, score) == pytest.approx(4.5 / 6)
    rng = np.random.default_rng(2)
    many, scores = rng.random(500) < 0.3, rng.normal(size=500).round(1)
    assert auc(many, scores) == pytest.approx(roc_auc_score(many, scores))
    false, true, _ = roc_curve(many, scores, drop_intermediate=False)
    assert hits(many, scores) == pytest.approx(true[false <= 0.01].max())
    assert hits(member, score) == pytest.approx(1 / 3)  # above 2 there is one member, and nobody else


def test_one_false_alarm_in_a_hundred_is_allowed() -> None:
    others = np.arange(200.0)
    member, score = np.repeat([True, False], [10, 200]), np.concatenate([np.full(10, 197.5), others])
    assert hits(member, score) == 1.0  # two of 200 are above
    assert hits(member, np.concatenate([np.full(10, 196.5), others])) == 0.0


def test_confidences_are_logs_of_odds() -> None:
    logits = torch.tensor([[1.0, 3.0, 0.0], [40.0, -40.0, 0.0]])
    logs, odds = confidences(nn.Identity(), Examples(logits, torch.tensor([1, 0])))
    p = np.exp(3) / np.exp([1.0, 3.0, 0.0]).sum()
    np.testing.assert_allclose(logs[0], np.log(p), rtol=1e-6)
    np.testing.assert_allclose(odds, [np.log(p / (1 - p)), 40.0], rtol=1e-6)  # p = 1 in double precision


def test_pooled_figures_take_all_rows_together_and_errors_resample_clients() -> None:
    """Within each client the order is perfect; between them it is not."""
    member = np.array([True, False])
    scores = {"a": np.array([4.0, 3.0]), "b": np.array([2.0, 1.0])}
    clients = [Scores(name, member, score, np.zeros(2)) for name, score in scores.items()]
    table = Membership(clients, 0).table()
    assert "| 2 clients, 4 rows |" in table
    assert "| AUC, mean of clients | 1.000 ± 0.000 | 0.500 ± 0.000 |" in table
    # Resampled, they are one client with probability 1/2 (AUC 1), both with 1/2 (AUC 3/4): deviation 1/8.
    pooled = table.partition("| AUC, pooled | 0.750 ± ")[2]
    assert float(pooled.split()[0]) == pytest.approx(0.125, abs=0.002)
    assert Membership(clients, 0).csv().splitlines()[1] == "a,1,1,1,0.5,1,0"


@pytest.mark.long
def test_models_that_know_their_rows_by_heart_tell_and_untrained_ones_do_not(tmp_path: Path) -> None:
    run = Runs(tmp_path, KEYS)
    path = run("learnt")
    found = attack(path)
    assert len(found.clients) == 8
    assert np.mean([auc(one.member, one.loss) for one in found.clients]) > 0.55
    assert np.mean([auc(one.member, one.calibrated) for one in found.clients]) > 0.55
    assert (path / "audit-membership.md").read_text() == found.table()
    assert (path / "audit-membership.csv").read_text().count("\n") == 9
    new = attack(run("new", **{"learning-rate": 1e-9}))
    assert abs(np.mean([auc(one.member, one.loss) for one in new.clients]) - 0.5) < 0.05


@pytest.mark.long
def test_one_client_is_not_enough(tmp_path: Path) -> None:
    path = Runs(tmp_path, {**KEYS, "num-clients": 1, "participation": 1.0, "local-epochs": 1})("run")
    with pytest.raises(RunError, match="1 seen clients have training and test rows; at least 2"):
        attack(path)
