"""FedProto and FedDistill: one step against NumPy, the limit of local training, sums, classes that somebody lacks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, softmax
from torch import nn

from florilegium.clients.families.classwise import SUMS, WEIGHTS
from florilegium.clients.feddistill import INCLUDED
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import torch_draws
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.feddistill import FedDistill
from florilegium.strategies.fedproto import FedProto
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, perform, with_network

Matrix = NDArray[Any]
CLASSES, FEATURES, INPUTS = 4, 3, 5
LABELS = [0, 0, 2, 0, 1, 2]  # no example of class 3
STEP: dict[str, Value] = {"batch-size": 6, "local-epochs": 1, "learning-rate": 0.1}
METHODS = ("fedproto", "feddistill")


def _network() -> nn.Sequential:
    """Return z = Ax + a, logits = Bz + b."""
    with torch_draws(1, "test"):
        return nn.Sequential(OrderedDict(body=nn.Linear(INPUTS, FEATURES), head=nn.Linear(FEATURES, CLASSES)))


def _examples(labels: Sequence[int] = LABELS) -> Examples:
    x = np.random.default_rng(1).normal(size=(len(labels), INPUTS)).astype(np.float32)
    return Examples(torch.from_numpy(x), torch.tensor(labels))


def _sent(method: str, seed: int = 2, known: Sequence[float] = (1, 0, 3, 2), included: int = 0) -> Arrays:
    """Return what the server sends: sums for the classes of weight > 0."""
    width = FEATURES if method == "fedproto" else CLASSES
    weights = np.array(known, np.float32)
    sums = np.random.default_rng(seed).normal(size=(CLASSES, width)).astype(np.float32) * (weights > 0)[:, None]
    rounds = {INCLUDED: np.full(CLASSES, included)} if method == "feddistill" else {}
    return {SUMS: sums, WEIGHTS: weights, **rounds}


def _forward(arrays: Mapping[str, Matrix], x: Matrix) -> tuple[Matrix, Matrix]:
    z = x @ arrays["body.weight"].T + arrays["body.bias"]
    return z, z @ arrays["head.weight"].T + arrays["head.bias"]


def _stepped(arrays: Mapping[str, Matrix], examples: Examples, dlogits: Matrix, dz: Matrix | float = 0.0) -> Arrays:
    """Return the arrays after a step of SGD, given the loss's derivatives by the logits, and by z besides these."""
    x, (z, _) = examples.x.numpy(), _forward(arrays, examples.x.numpy())
    dz = dz + dlogits @ arrays["head.weight"]
    slopes = {
        "body.weight": dz.T @ x,
        "body.bias": dz.sum(0),
        "head.weight": dlogits.T @ z,
        "head.bias": dlogits.sum(0),
    }
    return {name: array - 0.1 * slopes[name] for name, array in arrays.items()}


def _assert_state(client: Any, expected: Mapping[str, Matrix]) -> None:
    kept = client.state.load()
    for name, array in expected.items():
        np.testing.assert_allclose(kept[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_step_of_fedproto(tmp_path: Path) -> None:
    """The derivative of λ·mean ‖z − C̄‖²/d by z is 2λ(z − C̄)/(nd), where there is a prototype."""
    network, examples, sent = _network(), _examples(), _sent("fedproto")
    start, y = get_arrays(network), np.array(LABELS)
    client = make_client(
        examples, network, folder=tmp_path, method="fedproto", **STEP, **{"fedproto.regularization": 3}
    )
    answer = perform(client, "train", sent)
    z, logits = _forward(start, examples.x.numpy())
    known = sent[WEIGHTS] > 0
    prototypes = sent[SUMS] / np.maximum(sent[WEIGHTS], 1)[:, None]
    pull = 3 * known[y][:, None] * 2 * (z - prototypes[y]) / (6 * FEATURES)
    after = _stepped(start, examples, (softmax(logits, axis=1) - np.eye(CLASSES)[y]) / 6, pull)
    _assert_state(client, after)
    distances = known[y] * ((z - prototypes[y]) ** 2).mean(axis=1)
    ce = -log_softmax(logits, axis=1)[np.arange(6), y]
    assert answer.metrics["loss"] == pytest.approx((ce + 3 * distances).mean(), rel=1e-5)
    # Prototypes are those of the trained model; the weights are numbers of examples.
    z, _ = _forward(after, examples.x.numpy())
    np.testing.assert_allclose(answer.arrays[SUMS], np.eye(CLASSES)[y].T @ z, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(answer.arrays[WEIGHTS], [3, 1, 2, 0])


def test_prototypes_of_fedproto_collected_during_training(tmp_path: Path) -> None:
    """Two epochs of one step: the mean of the features under the model before each."""
    network, examples, sent = _network(), _examples(), _sent("fedproto")
    start, y = get_arrays(network), np.array(LABELS)
    keys: dict[str, Value] = {**STEP, "fedproto.regularization": 0, "fedproto.collect": "during", "local-epochs": 2}
    answer = perform(make_client(examples, network, folder=tmp_path, method="fedproto", **keys), "train", sent)
    z, logits = _forward(start, examples.x.numpy())
    after, _ = _forward(
        _stepped(start, examples, (softmax(logits, axis=1) - np.eye(CLASSES)[y]) / 6), examples.x.numpy()
    )
    np.testing.assert_allclose(answer.arrays[SUMS], np.eye(CLASSES)[y].T @ (z + after) / 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(answer.arrays[WEIGHTS], [3, 1, 2, 0])


@pytest.mark.parametrize("distance", ["cross-entropy", "squared"])
def test_a_step_of_feddistill(distance: str, tmp_path: Path) -> None:
    network, examples, sent = _network(), _examples(), _sent("feddistill")
    start, y = get_arrays(network), np.array(LABELS)
    keys: dict[str, Value] = {"feddistill.regularization": 2.0, "feddistill.distance": distance}
    client = make_client(examples, network, folder=tmp_path, method="feddistill", **STEP, **keys)
    answer = perform(client, "train", sent)
    _, logits = _forward(start, examples.x.numpy())
    targets = (sent[SUMS] / np.maximum(sent[WEIGHTS], 1)[:, None])[y]
    p = softmax(logits, axis=1)
    distil = 2 * (logits - targets) / CLASSES if distance == "squared" else p - softmax(targets, axis=1)
    known = (sent[WEIGHTS] > 0)[y][:, None]
    _assert_state(client, _stepped(start, examples, (p - np.eye(CLASSES)[y] + 2 * known * distil) / 6))
    # Logits are collected while the model trains: here before its only step.
    np.testing.assert_allclose(answer.arrays[SUMS], np.eye(CLASSES)[y].T @ logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
class TestBoth:
    def test_without_regulariser_it_is_local_training(self, method: str, tmp_path: Path) -> None:
        kept = []
        for name in (method, "local"):
            keys: dict[str, Value] = {f"{method}.regularization": 0, "batch-size": 4, "local-epochs": 3}
            client = make_client(_examples(), _network(), folder=tmp_path / name, method=name, **keys)
            answer = perform(client, "train", _sent(method) if name == method else {})
            kept.append(client.state.load() | {"loss": np.array(answer.metrics["loss"])})
        assert all((kept[0][name] == array).all() for name, array in kept[1].items())

    def test_a_clients_weight_is_one_if_uniform(self, method: str, tmp_path: Path) -> None:
        answers = []
        for weighting in ("examples", "uniform"):
            client = make_client(_examples(), _network(), folder=tmp_path / weighting, method=method,
                                 weighting=weighting, **{"local-epochs": 2})  # fmt: skip
            answers.append(perform(client, "train", _sent(method)).arrays)
        np.testing.assert_array_equal(answers[0][WEIGHTS], [3, 1, 2, 0])
        np.testing.assert_array_equal(answers[1][WEIGHTS], [1, 1, 1, 0])
        np.testing.assert_allclose(answers[0][SUMS], answers[1][SUMS] * answers[0][WEIGHTS][:, None], rtol=1e-5)

    def test_a_client_that_has_never_trained_is_tuned_from_the_initial_model(self, method: str, tmp_path: Path) -> None:
        tuned = make_client(_examples(), _network(), folder=tmp_path / "1", method=method, **{"finetune-epochs": 30},
                            **{"learning-rate": 0.3, "fedproto.regularization": 3.0})  # fmt: skip
        plain = make_client(_examples(), _network(), folder=tmp_path / "2", method=method)
        after, before = (perform(client, "test", _sent(method, seed=3)).metrics for client in (tuned, plain))
        assert after["accuracy"] == 1.0
        assert before["accuracy"] < 0.5
        assert tuned.state.load() is None  # a test leaves nothing behind

    def test_an_only_example(self, method: str, tmp_path: Path) -> None:
        client = make_client(_examples([3]), _network(), folder=tmp_path, method=method)
        answer = perform(client, "train", _sent(method, known=(0, 0, 0, 0)))
        np.testing.assert_array_equal(answer.arrays[WEIGHTS], [0, 0, 0, 1])
        assert np.isfinite(perform(client, "test", _sent(method)).metrics["loss"])

    def test_a_stock_strategys_model_is_refused(self, method: str, tmp_path: Path) -> None:
        network = _network()
        client = make_client(_examples(), network, folder=tmp_path, method=method)
        with pytest.raises(RunError, match="needs its own strategy"):
            perform(client, "train", get_arrays(network))


class TestNearestPrototype:
    def _predicted(self, tmp_path: Path, known: Sequence[float], **keys: Value) -> tuple[Matrix, Matrix, Matrix]:
        """Return features (n, d), sent prototypes and scores (n, C) of a client that has not trained."""
        network, examples, sent = _network(), _examples(), _sent("fedproto", known=known)
        z, _ = _forward(get_arrays(network), examples.x.numpy())
        client = make_client(examples, network, folder=tmp_path, method="fedproto", **keys)
        perform(client, "test", sent)
        return z, sent[SUMS] / np.maximum(sent[WEIGHTS], 1)[:, None], client.predictor(examples.x).detach().numpy()

    def test_scores_are_distances_up_to_a_term_of_the_example(self, tmp_path: Path) -> None:
        z, prototypes, scores = self._predicted(tmp_path, (1, 2, 3, 2))
        distances = cdist(z, prototypes, "sqeuclidean")
        np.testing.assert_allclose(
            scores - scores[:, :1], distances[:, :1] - distances, rtol=1e-3, atol=1e-4
        )  # fmt: skip

    def test_a_class_that_nobody_has_sent_is_the_clients_own_or_is_never_chosen(self, tmp_path: Path) -> None:
        z, prototypes, scores = self._predicted(tmp_path, (1, 0, 3, 0))
        prototypes[1] = z[np.array(LABELS) == 1].mean(axis=0)
        distances = cdist(z, prototypes, "sqeuclidean")[:, :3]
        assert (scores.argmax(axis=1) == distances.argmin(axis=1)).all()
        assert (scores[:, 3] < -1e8).all()

    def test_before_anybody_has_trained_clients_use_their_classifier(self, tmp_path: Path) -> None:
        z, _, scores = self._predicted(tmp_path, (0, 0, 0, 0))
        head = get_arrays(_network())
        np.testing.assert_allclose(scores, z @ head["head.weight"].T + head["head.bias"], rtol=1e-4, atol=1e-5)

    def test_the_classifier_if_asked_for(self, tmp_path: Path) -> None:
        z, _, scores = self._predicted(tmp_path, (1, 2, 3, 2), **{"fedproto.predict": "classifier"})
        head = get_arrays(_network())
        np.testing.assert_allclose(scores, z @ head["head.weight"].T + head["head.bias"], rtol=1e-4, atol=1e-5)


class FakeRound:
    """A round whose cohort has sent ``arrays``."""

    def __init__(self, number: int, clients: list[str], arrays: Arrays) -> None:
        self.number, self._clients, self._arrays = number, clients, arrays

    def sample(self) -> list[str]:
        """Return the cohort."""
        return self._clients

    def ask(self, phase: str, cohort: list[str], **options: Any) -> Outcome:
        """Return the cohort's sums."""
        return Outcome(cohort, self._arrays, {"weight": np.ones(len(cohort)), "loss": np.zeros(len(cohort))})


def _strategy(kind: type[Any], train: int = 10) -> Any:
    strategy = object.__new__(kind)
    members = {str(i): SimpleNamespace(train=train) for i in range(5)}
    strategy.settings = SimpleNamespace(weighting="examples")
    strategy.clients = members
    strategy.federation = with_network({})
    strategy._rounds, strategy._accepted = np.zeros(CLASSES, np.int64), {}
    return strategy


def _reply(weights: Sequence[float], value: float) -> Arrays:
    return {SUMS: np.full((CLASSES, CLASSES), value), WEIGHTS: np.array(weights, float)}


class TestServer:
    def test_classes_that_the_cohort_lacks_keep_their_sums(self) -> None:
        strategy = _strategy(FedDistill)
        model = strategy.server_part({})
        for number, reply in ((1, _reply([1, 2, 0, 0], 5)), (2, _reply([0, 4, 3, 0], 7))):
            model = strategy.train_round(FakeRound(number, ["0"], reply), model)
        np.testing.assert_array_equal(model[WEIGHTS], [1, 4, 3, 0])
        np.testing.assert_array_equal(model[SUMS][:, 0], [5, 7, 7, 0])
        assert {array.dtype for array in model.values()} == {np.dtype(np.float32)}

    @pytest.mark.parametrize("weight", [-1.0, 21.0])
    def test_weights_that_cannot_be_change_nothing(self, weight: float, caplog: pytest.LogCaptureFixture) -> None:
        strategy = _strategy(FedDistill)
        model = strategy.train_round(FakeRound(1, ["0", "1"], _reply([weight, 20, 0, 0], 5)), strategy.server_part({}))
        np.testing.assert_array_equal(model[WEIGHTS], [0, 20, 0, 0])  # two clients with ten examples each
        assert "classes [0] keep their earlier sums" in caplog.text

    def test_every_client_is_told_where_the_sums_contain_its_logits(self) -> None:
        strategy = _strategy(FedDistill)
        model = strategy.server_part({})
        model = strategy.train_round(FakeRound(3, ["0", "1"], _reply([1, 2, 0, 0], 5)), model)
        strategy.train_round(FakeRound(4, ["1", "2"], _reply([0, 4, 3, 0], 7)), model)
        expected = [[3, 0, 0, 0], [0, 4, 4, 0], [0, 4, 4, 0], [0, 0, 0, 0]]
        np.testing.assert_array_equal(strategy.individual(["0", "1", "2", "3"])[INCLUDED], expected)
        resumed = _strategy(FedDistill)
        resumed.restore(*strategy.state())
        np.testing.assert_array_equal(resumed.individual(["0", "1", "2", "3"])[INCLUDED], expected)
        strategy.train_round(FakeRound(5, ["3"], _reply([1, 1, 1, 1], 7)), model)
        assert strategy.state()[1] == {"accepted": {"3": 5}}  # others' logits are in no sum any more


@pytest.mark.parametrize(("included", "left"), [(1, 1.0), (2, 0.0), (0, 0.0)])
def test_a_client_leaves_its_own_logits_out_if_the_sums_contain_them(
    included: int, left: float, tmp_path: Path
) -> None:
    """Round 1's logits are kept. Sums of another round, or of a round in which the reply was lost, lack them."""
    client = make_client(_examples(), _network(), folder=tmp_path, method="feddistill")
    own = perform(client, "train", _sent("feddistill"), round=1).arrays
    sent = _sent("feddistill", known=(5, 5, 5, 5), included=included)
    perform(client, "test", sent, round=2)
    np.testing.assert_allclose(client.sums.numpy(), sent[SUMS] - left * own[SUMS], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(client.weights.numpy(), sent[WEIGHTS] - left * own[WEIGHTS])


def test_the_only_client_with_a_class_has_nobody_to_learn_from(tmp_path: Path) -> None:
    client = make_client(_examples(), _network(), folder=tmp_path, method="feddistill")
    own = perform(client, "train", _sent("feddistill"), round=1).arrays
    perform(client, "test", own | {INCLUDED: np.ones(CLASSES, np.int64)}, round=2)
    assert not client.weights.any()


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ({"a.weight": np.zeros((3, 2)), "b.weight": np.zeros((4, 3))}, "has no bias"),
        ({"b.weight": np.zeros((4, 3)), "b.bias": np.zeros(4)}, "at least one must be left"),
        ({"a.w": np.zeros((3, 2)), "b.w": np.zeros((4, 3, 1, 1)), "b.b": np.zeros(4)}, "a single dense layer"),
    ],
)
def test_networks_that_fedproto_cannot_use(arrays: Arrays, error: str) -> None:
    strategy = _strategy(FedProto)
    strategy.settings.method = "fedproto"
    strategy.federation = with_network(arrays)
    with pytest.raises(ConfigurationError, match=error):
        strategy.server_part(arrays)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_learns_and_serves_unseen_clients(method: str, tmp_path: Path) -> None:
    keys: dict[str, Value] = {
        "method": method, "num-clients": 6, "participation": 0.5, "rounds": 2, "local-epochs": 2,
        "unseen-fraction": 0.34, "finetune-epochs": 4, "evaluate-every": 0,
    }  # fmt: skip
    figures = read_metrics(path := Runs(tmp_path, keys)("run"))[-1]
    assert figures["seen"]["accuracy"] > 0.6
    assert figures["unseen"]["accuracy"] > 0.6
    assert read_checkpoint(path).arrays.keys() == {SUMS, WEIGHTS}  # no model reaches the server
