"""pFedFDA: the classifier against scikit-learn's, interpolation at its ends, what travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import shrunk_covariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn.functional import cross_entropy

from florilegium.clients.core.wire import unpack
from florilegium.clients.hyper.personal import PFedFDAHyper
from florilegium.clients.pfedfda import COVARIANCE, MEANS, best_interpolation, classifier, estimate, folds_of
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.pfedfda import PFedFDA
from tests.grid import run_app
from tests.support import config, make_client, perform, with_network

HYPER = PFedFDAHyper(shrinkage=1e-4, ridge=0.0, folds=2)


def _blobs(count: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, classes and true means of three Gaussians with identity covariance."""
    rng = np.random.default_rng(seed)
    means = np.array([[3.0, 0, 0, 0], [0, 3.0, 0, 0], [0, 0, 3.0, 0]]) + shift
    y = np.arange(count) % 3
    return means[y] + rng.normal(size=(count, 4)), y, means


class TestClassifier:
    def test_posteriors_are_scikit_learns(self) -> None:
        z, y, _ = _blobs(60, 1)
        μ, _ = estimate(z, y, np.zeros((3, 4)), 0.0)
        reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-4, priors=[0.5, 0.3, 0.2]).fit(z, y)
        # scikit-learn takes the class-weighted mean of the classes' own (biased) covariances, shrunk alike.
        weights, biases = classifier(μ, reference.covariance_, np.array([0.5, 0.3, 0.2]), 1e-12)
        scores = z @ weights.T + biases
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        np.testing.assert_allclose(p / p.sum(axis=1, keepdims=True), reference.predict_proba(z), atol=1e-6)

    def test_shrinkage_is_scikit_learns(self) -> None:
        z, y, _ = _blobs(60, 1)
        μ, Σ = estimate(z, y, np.zeros((3, 4)), 0.0)
        weights, _ = classifier(μ, Σ, np.ones(3) / 3, 0.2)
        np.testing.assert_allclose(weights @ shrunk_covariance(Σ, shrinkage=0.2), μ)

    def test_a_singular_covariance_does_no_harm(self) -> None:
        weights, biases = classifier(np.ones((2, 3)), np.zeros((3, 3)), np.array([0.5, 0.5]), 1e-4)
        assert np.isfinite(weights).all()
        assert np.isfinite(biases).all()


class TestEstimate:
    def test_means_and_pooled_covariance(self) -> None:
        z, y, _ = _blobs(30, 2)
        μ, Σ = estimate(z, y, np.zeros((3, 4)), 0.0)
        for c in range(3):
            np.testing.assert_allclose(μ[c], z[y == c].mean(axis=0))
        pooled = sum(np.cov(z[y == c].T, ddof=0) * (y == c).sum() for c in range(3)) / 29
        np.testing.assert_allclose(Σ, pooled)

    def test_a_class_without_examples_keeps_the_global_mean(self) -> None:
        z, y, _ = _blobs(30, 2)
        given = np.full((3, 4), 7.0)
        μ, _ = estimate(z[y != 1], y[y != 1], given, 0.0)
        np.testing.assert_array_equal(μ[1], given[1])

    def test_folds_share_every_class_evenly(self) -> None:
        y = np.array([0] * 6 + [1] * 4 + [2] * 2)
        fold = folds_of(y, 2, np.random.default_rng(1))
        for c, count in ((0, 3), (1, 2), (2, 1)):
            assert (fold[y == c] == 0).sum() == count


class TestInterpolation:
    def test_true_global_gaussians_are_kept_rather_than_a_few_own_examples(self) -> None:
        # Single draws vary; the means over 30 draws were 0.28 and 0.71.
        β = {"true": [], "wrong": []}
        for seed in range(20):
            z, y, means = _blobs(12, seed)
            for name, μ in (("true", means), ("wrong", means[::-1].copy())):
                rng = np.random.default_rng(seed)
                β[name].append(best_interpolation(z, y, μ, np.eye(4), np.ones(3) / 3, HYPER, rng))
        assert np.mean(β["true"]) < 0.5 < np.mean(β["wrong"])

    def test_many_own_examples_under_wrong_global_gaussians_go_local(self) -> None:
        z, y, means = _blobs(600, 3)
        β = best_interpolation(z, y, means[::-1].copy(), np.eye(4), np.ones(3) / 3, HYPER, np.random.default_rng(1))
        assert β > 0.9

    def test_too_few_examples_to_validate(self) -> None:
        z, y, means = _blobs(1, 3)
        assert best_interpolation(z, y, means, np.eye(4), np.ones(3) / 3, HYPER, np.random.default_rng(1)) == 0.0


class TestClient:
    """A client of 30 digits with β fixed at 0.25, against the formulas written out."""

    @pytest.fixture
    def data(self) -> Examples:
        rng = np.random.default_rng(1)
        y = np.array([0] * 15 + [1] * 10 + [2] * 5)
        x = rng.normal(size=(30, 1, 8, 8)) + y[:, None, None, None]
        return Examples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))

    @pytest.fixture
    def client(self, data: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr("florilegium.clients.pfedfda.best_interpolation", lambda *arguments: 0.25)
        keys: dict[str, Value] = {"method": "pfedfda", "local-steps": 2, "batch-size": 30, "learning-rate": 0.1,
                                  "momentum": 0.0}  # fmt: skip
        return make_client(data, build("mlp", (1, 8, 8), 10, 1), folder=tmp_path, **keys)

    @pytest.fixture
    def received(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(2)
        body = {n: a for n, a in get_arrays(build("mlp", (1, 8, 8), 10, 1)).items() if not n.startswith("fc3")}
        root = np.eye(32) + 0.1 * rng.normal(size=(32, 32))
        gaussians = {MEANS: rng.normal(size=(10, 32)), COVARIANCE: root @ root.T}
        return body | {name: array.astype(np.float32) for name, array in gaussians.items()}

    @staticmethod
    def _bayes(μ: np.ndarray, Σ: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return weights Σ⁻¹μ_c and biases ln π_c − ½ μ_cᵀΣ⁻¹μ_c for the client's smoothed class frequencies."""
        π = np.array([15, 10, 5] + [0] * 7) / 30 + 1e-4
        inverse = np.linalg.inv((1 - 1e-4) * Σ + 1e-4 * np.trace(Σ) / 32 * np.eye(32))
        return μ @ inverse, np.log(π / π.sum()) - 0.5 * np.array([m @ inverse @ m for m in μ])

    @staticmethod
    def _own(z: np.ndarray, y: np.ndarray, μ: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means = np.array([z[y == c].mean(axis=0) if (y == c).any() else μ[c] for c in range(10)])
        return means, (z - means[y]).T @ (z - means[y]) / 29 + np.eye(32)

    def test_the_extractor_is_trained_under_a_fixed_classifier(
        self, client: Any, data: Examples, received: dict[str, np.ndarray]
    ) -> None:
        """Two steps of the extractor; then β of the own Gaussians of its features, the rest of the global ones."""
        answer = perform(client, "train", received).arrays
        model, μ, Σ = build("mlp", (1, 8, 8), 10, 1), received[MEANS].astype(float), received[COVARIANCE].astype(float)
        weights, biases = (torch.from_numpy(a.astype(np.float32)) for a in self._bayes(μ, Σ))
        body = model[:-1]
        for _ in range(2):
            loss = cross_entropy(body(data.x) @ weights.T + biases, data.y)
            slopes = torch.autograd.grad(loss, list(body.parameters()))
            with torch.no_grad():
                for parameter, slope in zip(body.parameters(), slopes, strict=True):
                    parameter -= 0.1 * slope
        for name, array in get_arrays(model).items():
            if not name.startswith("fc3"):
                np.testing.assert_allclose(answer[name], array, atol=1e-5)
        own_μ, own_Σ = self._own(body(data.x).detach().double().numpy(), data.y.numpy(), μ)
        np.testing.assert_allclose(answer[MEANS], 0.25 * own_μ + 0.75 * μ, atol=1e-4)
        np.testing.assert_allclose(answer[COVARIANCE], 0.25 * own_Σ + 0.75 * Σ, atol=1e-4)

    def test_a_test_is_by_the_interpolated_classifier(
        self, client: Any, data: Examples, received: dict[str, np.ndarray]
    ) -> None:
        metrics = perform(client, "test", received).metrics
        model, μ, Σ = build("mlp", (1, 8, 8), 10, 1), received[MEANS].astype(float), received[COVARIANCE].astype(float)
        z = model[:-1](data.x).detach().double().numpy()
        own_μ, own_Σ = self._own(z, data.y.numpy(), μ)
        for suffix, β in (("", 0.25), ("_global", 0.0)):
            weights, biases = self._bayes(β * own_μ + (1 - β) * μ, β * own_Σ + (1 - β) * Σ)
            loss = cross_entropy(torch.from_numpy(z @ weights.T + biases), data.y).item()
            assert metrics["loss" + suffix] == pytest.approx(loss, rel=1e-4)


def test_the_extractor_and_the_gaussians_travel_and_learn(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"method": "pfedfda", "num-clients": 6, "rounds": 8, "evaluate-every": 0,
                              "runs-dir": str(tmp_path), "run-name": "r"}  # fmt: skip
    grid = run_app(config(**keys))
    for message in grid.sent:
        if message.metadata.message_type in ("train", "evaluate"):
            names = set(unpack(message.content["arrays"]))
            assert {MEANS, COVARIANCE} <= names
            assert not any(name.startswith("fc3") for name in names)
    assert read_checkpoint(tmp_path / "r").arrays[MEANS].shape == (10, 32)
    figures = read_metrics(tmp_path / "r")[-1]["seen"]
    assert figures["accuracy"] > 0.85  # 0.98 with each of seeds 1 to 3
    assert figures["accuracy"] >= figures["accuracy_global"]


def test_networks_that_end_otherwise_are_refused(tmp_path: Path) -> None:
    class Bare(PFedFDA):
        def __init__(self) -> None:
            self.federation = with_network(arrays)

    arrays = {"conv.weight": np.zeros((2, 2, 3, 3)), "out.weight": np.zeros((2, 2, 1, 1))}
    with pytest.raises(ConfigurationError, match="single dense layer"):
        Bare().server_part(arrays)
