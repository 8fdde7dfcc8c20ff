"""Canaries: wrong classes, tossed coins, and everything else as it was."""

from __future__ import annotations

import numpy as np
import pytest

from florilegium.common.errors import ConfigurationError
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.federation import federate
from tests.support import settings


def test_present_examples_have_wrong_classes_and_absent_ones_are_nobodys() -> None:
    without, _ = federate(settings(num_clients=5))
    federation, dataset = federate(settings(num_clients=5, canaries=200))
    c = federation.canaries
    assert len(c.rows) == len(np.unique(c.rows)) == 200
    assert 60 < c.present.sum() < 140  # six deviations
    assert (c.classes != dataset.train.y[c.rows]).all()
    assert set(c.classes) == set(range(10))
    for client in range(5):
        own = c.clients == client
        assert np.isin(c.rows[own], without.train[client]).all()
        kept = without.train[client][~np.isin(without.train[client], c.rows[own & ~c.present])]
        np.testing.assert_array_equal(federation.train[client], kept)
        expected = dataset.train.y[kept].copy()
        for row, wrong in zip(c.rows[own & c.present], c.classes[own & c.present], strict=True):
            expected[kept == row] = wrong
        data = simulated(federation, dataset, client)
        np.testing.assert_array_equal(data.labels, expected)
        assert "train" not in vars(data)  # the inputs were not loaded
        np.testing.assert_array_equal(data.train.y, expected)
        np.testing.assert_array_equal(federation.test[client], without.test[client])


def test_present_clients_train_on_turned_classes_and_absent_ones_do_not_train() -> None:
    without, _ = federate(settings(num_clients=30))
    federation, dataset = federate(settings(num_clients=30, canaries=20, canary_unit="client"))
    c = federation.canaries
    assert len(np.unique(c.clients)) == 20
    for client in range(30):
        own = c.clients == client
        y, turned = dataset.train.y[federation.train[client]], simulated(federation, dataset, client).train.y.numpy()
        assert federation.unseen[client] == (own.any() and not c.present[own].any())
        if own.any():
            assert len(set((turned - y) % 10)) == 1
            assert (turned != y).all()
            np.testing.assert_array_equal(c.classes[own], turned)
        else:
            np.testing.assert_array_equal(turned, y)
        np.testing.assert_array_equal(federation.train[client], without.train[client])
    assert 2 <= federation.unseen.sum() <= 18


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"canaries": 5, "canary_unit": "client"}, "canaries: 5 of 5 clients that train"),
        ({"canaries": 1000}, "canaries: 1000 of .* at most half"),
        (
            {
                "canaries": 2,
                "method": "ppfe-linear",
                "dataset": "synthetic-linear",
                "model": "linear",
                "partitioner": "natural",
                "samples_per_client": 20,
            },
            "has no classes",
        ),
    ],
)
def test_what_is_refused(keys: dict[str, int | str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        federate(settings(**{"num_clients": 5, **keys}))
