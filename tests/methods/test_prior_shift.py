"""Prior shift: Bayes' rule, limits, estimates of priors, and what is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import softmax

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.prior_shift import PRIOR
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.models.priors import estimated, shift, smoothed
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.metrics_file import read_metrics
from tests.runs import Runs
from tests.support import make_client, perform

KEYS: dict[str, Value] = {
    "method": "prior-shift", "model": "mlp", "local-epochs": 1, "batch-size": 16, "learning-rate": 0.1, "momentum": 0.0,
}  # fmt: skip
NETWORK = build("mlp", (1, 8, 8), 10, 1)
START = get_arrays(NETWORK)
FEDERATION = np.linspace(1, 2, 10) / np.linspace(1, 2, 10).sum()
SENT = START | {BESIDE + PRIOR: FEDERATION.astype(np.float32)}


def _examples(labels: list[int]) -> Examples:
    x = torch.randn(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return Examples(x, torch.tensor(labels))


DATA = _examples([0, 0, 0, 0, 0, 3, 3, 7])


def _client(folder: Path, data: Examples = DATA, **keys: Value) -> Any:
    return make_client(data, NETWORK, folder=folder, **{**KEYS, **keys})


def test_predictions_are_those_of_bayes_rule(tmp_path: Path) -> None:
    """p_k(y | x) = p(y | x)·π_k(y)/p̂(y), normalised."""
    client = _client(tmp_path, **{"prior-shift.smoothing": 0.5})
    perform(client, "test", SENT)
    own = (np.bincount(DATA.y, minlength=10) + 10 * 0.5 * FEDERATION) / (8 + 10 * 0.5)
    with torch.no_grad():
        found = client.predictor(DATA.x).softmax(dim=1).numpy()
        plain = build("mlp", (1, 8, 8), 10, 1)(DATA.x).softmax(dim=1).numpy()
    wanted = plain * own / FEDERATION
    np.testing.assert_allclose(found, wanted / wanted.sum(axis=1, keepdims=True), rtol=1e-4)


def test_a_client_may_be_tested_as_if_it_had_no_labels(tmp_path: Path) -> None:
    unlabeled = _client(tmp_path)
    unlabeled.data.labeled = False
    labeled = _client(tmp_path, **{"prior-shift.estimate": "inputs"})
    found = []
    for client in (unlabeled, labeled):
        perform(client, "test", SENT)
        found.append(client.predictor(DATA.x).detach())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert set(perform(labeled, "train", SENT).arrays) == set(SENT)  # its labels still train


def test_equal_priors_change_nothing(tmp_path: Path) -> None:
    client = _client(tmp_path, _examples([*range(10)]), **{"prior-shift.federation": "uniform"})
    metrics = perform(client, "test", START).metrics
    assert metrics["loss"] == pytest.approx(metrics["loss_global"], rel=1e-6)
    np.testing.assert_allclose(get_arrays(client.model)["fc3.bias"], START["fc3.bias"], atol=1e-6)


def test_the_clients_frequencies_are_returned_if_a_prior_was_sent(tmp_path: Path) -> None:
    sent = perform(_client(tmp_path), "train", SENT).arrays
    np.testing.assert_allclose(sent[BESIDE + PRIOR], np.bincount(DATA.y, minlength=10) / 8, rtol=1e-6)
    assert set(perform(_client(tmp_path), "train", START).arrays) == set(START)


def test_adjusted_training_descends_the_loss_of_the_clients_prior(tmp_path: Path) -> None:
    """A step on cross-entropy of f(x) + ln π_k, written out; what is returned has no prior of the client."""
    keys: dict[str, Value] = {"prior-shift.federation": "adjusted", "batch-size": 8, "prior-shift.smoothing": 0.5}
    found = perform(_client(tmp_path, **keys), "train", START).arrays
    own = torch.tensor((np.bincount(DATA.y, minlength=10) + 0.5) / (8 + 10 * 0.5))
    network = build("mlp", (1, 8, 8), 10, 1)
    torch.nn.functional.cross_entropy(network(DATA.x) + own.log(), DATA.y).backward()
    assert set(found) == set(START)
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        wanted = parameter.detach() - 0.1 * parameter.grad
        np.testing.assert_allclose(found[name], wanted.numpy(), rtol=1e-4, atol=1e-6)


def test_adjusted_training_on_equal_classes_is_fedavgs(tmp_path: Path) -> None:
    equal, adjusted = _examples([*range(10)] * 2), {"prior-shift.federation": "adjusted"}
    found = perform(_client(tmp_path, equal, **adjusted), "train", START).arrays
    for name, array in perform(_client(tmp_path, equal, method="fedavg"), "train", START).arrays.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_priors_are_smoothed_by_added_examples() -> None:
    prior = np.array([0.6, 0.4, 0.0])
    np.testing.assert_allclose(smoothed(torch.tensor([3, 0, 0]), prior, 0.5), np.array([3.9, 0.6, 0.0]) / 4.5)
    np.testing.assert_allclose(smoothed(torch.tensor([0, 0, 0]), prior, 0.0), prior)
    assert float(shift(np.array([0.0, 1.0]), np.array([0.5, 0.5]))[0]) == pytest.approx(np.log(1e-6 / 0.5))


def test_an_estimated_prior_has_the_largest_likelihood() -> None:
    """Against a numerical optimiser of Σ_i ln Σ_c π_c·p(c | x_i)/p̂_c over the simplex."""
    rng = np.random.default_rng(1)
    logits, trained = rng.normal([0.8, 0, -0.5], size=(200, 3)), np.array([0.5, 0.3, 0.2])
    ratio = softmax(logits, axis=1) / trained
    best = minimize(lambda z: -np.log(ratio @ softmax(z)).sum(), np.zeros(3), method="BFGS", options={"gtol": 1e-8})
    found = estimated(torch.from_numpy(logits), trained, 10_000)
    np.testing.assert_allclose(found, softmax(best.x), atol=1e-4)
    np.testing.assert_allclose(estimated(torch.from_numpy(logits), trained, 0), trained)


def test_a_class_that_nobody_has_stays_absent() -> None:
    logits = torch.zeros(5, 3)  # the classifier gives it a third
    np.testing.assert_allclose(estimated(logits, np.array([0.5, 0.5, 0.0]), 50), [0.5, 0.5, 0.0])


def test_an_exact_classifier_finds_the_prior_of_inputs() -> None:
    """Two normal laws with their true posteriors: the estimate comes near the share that was drawn."""
    rng = np.random.default_rng(2)
    y = rng.random(20_000) < 0.9
    x = rng.normal(np.where(y, 1.0, -1.0))
    logits = torch.from_numpy(np.stack([-x, x], axis=1))  # log-odds 2x under equal priors
    assert estimated(logits, np.array([0.5, 0.5]), 1_000)[1] == pytest.approx(0.9, abs=0.01)


RUN: dict[str, Value] = {
    "method": "prior-shift", "dataset": "digits", "model": "mlp", "num-clients": 6, "partitioner": "pathological",
    "classes-per-client": 2, "participation": 1.0, "rounds": 2, "local-epochs": 1, "evaluate-every": 1,
    "unseen-fraction": 0.17,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Runs on digits, two classes per client."""
    return Runs(tmp_path, RUN)


@pytest.mark.parametrize("federation", ["measured", "uniform", "adjusted"])
def test_two_classes_a_client_are_worth_more_than_the_shared_model(run: Runs, federation: str) -> None:
    path = run("run", **{"prior-shift.federation": federation})
    *_, last = read_metrics(path)
    for group in ("seen", "unseen"):
        assert last[group]["accuracy"] > last[group]["accuracy_global"]
    sent = [message.content["arrays"] for message in run.grid.sent if "arrays" in message.content]
    assert (BESIDE + PRIOR in str(sent[-1])) == (federation == "measured")


def test_a_network_without_a_bias_is_refused(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match="last block must"):
        run("run", model=f"{__name__}:without_bias")


def without_bias(shape: tuple[int, ...], classes: int) -> torch.nn.Sequential:
    """Return a network whose last layer has no bias."""
    body = (torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU())
    return torch.nn.Sequential(*body, torch.nn.Linear(16, classes, bias=False))
