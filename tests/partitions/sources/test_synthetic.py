"""The made regression data: what is shared, what is not, and what a federation of it looks like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from florilegium.apps.assembly.parts import assemble
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.device_data import read_device
from florilegium.partitions.federation import federate
from florilegium.partitions.sources.synthetic import NOISE, TEST_EXAMPLES, linear, weights
from tests.support import config, settings

KEYS = {"method": "ppfe-linear", "dataset": "synthetic-linear", "partitioner": "natural", "model": "linear",
        "samples-per-client": 50, "num-clients": 6}  # fmt: skip
SPEC = find_spec("synthetic-linear")


def test_without_a_personal_part_all_clients_are_alike() -> None:
    s = settings(**KEYS, personalisation_ratio="0")
    np.testing.assert_array_equal(weights(s, 100, 0), weights(s, 100, 5))


def test_a_wholly_personal_client_has_nothing_of_the_shared_part() -> None:
    draws = np.stack([weights(settings(**KEYS, personalisation_ratio="1"), 100, k) for k in range(200)])
    shared = weights(settings(**KEYS, personalisation_ratio="0"), 100, 0)
    correlations = draws @ shared / np.linalg.norm(shared) / np.linalg.norm(draws, axis=1)
    assert abs(correlations.mean()) < 3 * 0.1 / np.sqrt(200)  # each has standard deviation 1/√d
    # α_k ~ U(0.5, 1.5) has mean 1, so that E‖W‖² = d·(1/d) = 1.
    np.testing.assert_allclose((draws**2).sum(axis=1).mean(), 1.0, atol=0.1)


def test_half_and_half_is_the_mean_of_both() -> None:
    whole, none = (weights(settings(**KEYS, personalisation_ratio=r), 100, 3) for r in ("1", "0"))
    np.testing.assert_allclose(weights(settings(**KEYS, personalisation_ratio="0.5"), 100, 3), (whole + none) / 2)


def test_targets_are_linear_with_noise() -> None:
    s = settings(**{**KEYS, "samples-per-client": 3000})
    dataset = linear(s, SPEC)
    rows = dataset.train.clients["client"] == "000002"
    residuals = dataset.train.y[rows] - dataset.train.x[rows] @ weights(s, 100, 2)
    assert rows.sum() == 3000
    np.testing.assert_allclose(residuals.std(), NOISE, rtol=0.05)
    np.testing.assert_allclose(np.trace(np.cov(dataset.train.x[rows].T)) / 100, 1.0, rtol=0.1)  # E Σ_k = I


def test_each_client_holds_its_own_rows() -> None:
    federation, dataset = federate(settings(**KEYS))
    assert len(federation) == 6
    for client in range(6):
        for shares, split, count in (
            (federation.train, dataset.train, 50),
            (federation.test, dataset.test, TEST_EXAMPLES),
        ):
            assert split is not None
            names = split.clients["client"][shares[client]]
            assert list(names) == [f"{client:06d}"] * count
    assert federation.class_counts(dataset).tolist() == [[50]] * 6


def test_it_needs_clients_of_its_own() -> None:
    for wrong in ({"partitioner": "iid"}, {"num-clients": 0}, {"samples-per-client": 0}):
        with pytest.raises(ConfigurationError, match="synthetic-linear' makes clients of its own"):
            federate(settings(**{**KEYS, **wrong}))


def test_ratios() -> None:
    for wrong in ("1.5", "0.7,0.2", "", "0,0.5,1"):
        with pytest.raises(ConfigurationError, match="personalisation-ratio"):
            settings(**KEYS, personalisation_ratio=wrong)


def test_methods_and_labels_must_fit() -> None:
    settings(**{**KEYS, "method": "fedavg"})
    with pytest.raises(ConfigurationError, match="'fedproto' needs one class for each example; task 'Regression'"):
        assemble(config(**{**KEYS, "method": "fedproto", "model": "mlp"}), one_thread=True)
    with pytest.raises(ConfigurationError, match=r"'ppfe-linear' needs one number for each example, .*: fedavg, "):
        assemble(config(method="ppfe-linear", model="linear"), one_thread=True)


def test_a_device_may_bring_numbers_of_its_own(tmp_path: Path) -> None:
    x, y = np.random.default_rng(1).normal(size=(10, 100)).astype(np.float32), np.arange(10.0)
    pyarrow.parquet.write_table(pyarrow.table({"x": x.tolist(), "y": y}), tmp_path / "train.parquet")
    data = read_device(tmp_path, SPEC)
    kept, held = data.train.y.flatten().numpy().astype(int), data.test.y.flatten().numpy().astype(int)
    assert sorted([*kept, *held]) == list(range(10))
    np.testing.assert_array_equal(data.train.x.numpy(), x[kept])
    for wrong, said in (
        ({"x": x[:, :3].tolist(), "y": y}, "lists of 100 numbers"),
        ({"x": x.tolist(), "y": ["a"] * 10}, "no number in row 0: 'a'"),
        ({"x": x.tolist(), "y": [None] * 10}, "no number in row 0, 10 rows in all"),
    ):
        pyarrow.parquet.write_table(pyarrow.table(wrong), tmp_path / "train.parquet")
        with pytest.raises(DataError, match=said):
            read_device(tmp_path, SPEC)
