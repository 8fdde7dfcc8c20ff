"""k-means in plain arrays against scikit-learn and SciPy, k-FED and sphere packing by their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from florilegium.models.centers import Centers
from florilegium.models.clustering import clustering_accuracy, cost, distances, nearest, sums
from florilegium.models.kfed import local_centers, merge_centers
from florilegium.models.kmeans import k_means
from florilegium.models.sphere_packing import sphere_packing


def _blobs(n: int, k: int = 3, d: int = 4, spread: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % k
    return 5.0 * np.eye(k, d)[labels] + spread * rng.normal(size=(n, d)), labels


def test_distances_are_scipys() -> None:
    rng = np.random.default_rng(1)
    points, centers = rng.normal(size=(20, 6)), rng.normal(size=(5, 6))
    np.testing.assert_allclose(distances(points, centers), cdist(points, centers) ** 2)
    labels, squares = nearest(points, centers)
    np.testing.assert_array_equal(labels, cdist(points, centers).argmin(axis=1))
    np.testing.assert_allclose(squares, (cdist(points, centers) ** 2).min(axis=1))


def test_sums_by_a_loop() -> None:
    points, labels = np.arange(12.0).reshape(6, 2), np.array([0, 2, 0, 2, 2, 0])
    totals, counts = sums(points, labels, 4)
    np.testing.assert_array_equal(counts, [3, 0, 3, 0])
    np.testing.assert_array_equal(totals[2], points[1] + points[3] + points[4])
    assert not totals[[1, 3]].any()


def test_weights_count_as_repetitions() -> None:
    points, _ = _blobs(30)
    weights = np.arange(30) % 3 + 1.0
    weighted = k_means(points, weights, 3, 5, np.random.default_rng(1))
    repeated = KMeans(3, n_init=5, random_state=0).fit(np.repeat(points, weights.astype(int), axis=0))
    np.testing.assert_allclose(sorted(weighted.tolist()), sorted(repeated.cluster_centers_.tolist()), atol=1e-6)
    assert cost(points, weights, weighted) == pytest.approx(repeated.inertia_)


def test_accuracy_is_that_of_the_best_matching() -> None:
    # Cluster 0 is class 1 and the other way round; 2 of 12 are elsewhere.
    assert clustering_accuracy(np.array([[1.0, 6.0], [4.0, 1.0]])) == pytest.approx(10 / 12)
    assert clustering_accuracy(np.array([[2.0, 2.0]])) == pytest.approx(0.5)  # one cluster, two classes


def test_the_network_chooses_the_nearest() -> None:
    rng = np.random.default_rng(2)
    network = Centers(6, 4)
    network.centers.data = torch.from_numpy(rng.normal(size=(4, 6))).float()
    x = rng.normal(size=(9, 2, 3)).astype(np.float32)
    expected, _ = nearest(x.reshape(9, 6).astype(float), network.centers.detach().double().numpy())
    np.testing.assert_array_equal(network(torch.from_numpy(x)).argmax(dim=1), expected)


class TestKFed:
    def test_a_client_finds_its_clusters(self) -> None:
        points, labels = _blobs(60)
        found = local_centers(points, 3, 3, np.random.default_rng(1))
        expected = np.stack([points[labels == label].mean(axis=0) for label in range(3)])
        np.testing.assert_allclose(sorted(found.tolist()), sorted(expected.tolist()))

    def test_a_few_clear_points_do_not_make_a_cluster(self) -> None:
        # Wide clusters: hardly a point is three times closer to its centre, and their means would be noise.
        rng = np.random.default_rng(3)
        labels = np.arange(1000) % 5
        points = rng.uniform(size=(5, 100))[labels] + np.sqrt(0.5) * rng.normal(size=(1000, 100))
        found = local_centers(points, 5, 5, rng)
        assert np.bincount(nearest(points, found)[0], minlength=5).min() > 150

    def test_clients_with_some_of_the_clusters_find_all(self) -> None:
        means = 10.0 * np.eye(4)
        local = np.stack([means[[0, 1]], means[[1, 2]] + 0.1, means[[2, 3]], means[[3, 0]] - 0.1])
        merged = merge_centers(local, 4, np.random.default_rng(1))
        expected = [means[0] - 0.05, means[1] + 0.05, means[2] + 0.05, means[3] - 0.05]
        np.testing.assert_allclose(sorted(merged.tolist()), sorted(np.array(expected).tolist()))


class TestSpherePacking:
    def test_centres_are_apart_and_in_the_cube(self) -> None:
        centers = sphere_packing(2.0, 10, 5, np.random.default_rng(1))
        gaps = cdist(centers, centers)[~np.eye(5, dtype=bool)]
        corners = np.linalg.norm(2.0 - np.abs(centers), axis=1)
        a = min(gaps.min() / 2, corners.min())
        assert np.abs(centers).max() <= 2.0
        # Five points at random in this cube are rarely 1.5 times as far apart as half their mean distance.
        typical = cdist(*np.random.default_rng(2).uniform(-2, 2, size=(2, 300, 10))).mean() / 2
        assert a > 0.9 * typical

    def test_two_points_on_a_line_cannot_be_farther_apart(self) -> None:
        # In [−1, 1] with a from the ends and 2a from each other, a is at most 1/2.
        centers = np.sort(sphere_packing(1.0, 1, 2, np.random.default_rng(1))[:, 0])
        np.testing.assert_allclose(centers, [-0.5, 0.5], atol=0.1)
