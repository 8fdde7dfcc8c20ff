"""What the server holds: chosen rows of a dataset, a made mixture's points, or a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.partitions.server_data import server_examples
from florilegium.partitions.sources.mixture import VARIANCE
from tests.support import settings

MIXTURE = {"method": "feddp-kmeans", "model": "centers", "dataset": "gaussian-mixture", "partitioner": "iid",
           "num-clients": 10, "samples-per-client": 300, "server-examples": 200,
           "server-ood-examples": 100}  # fmt: skip
DIGITS = {"partitioner": "iid", "num-clients": 4, "client-rows": "label=0|1|2|3", "server-ood-rows": "label=8|9",
          "server-examples": 12, "server-ood-examples": 30}  # fmt: skip


def _rows(split_rows: np.ndarray) -> set[int]:
    return set(split_rows.tolist())


class TestChosenRows:
    def test_clients_and_server_hold_what_was_asked_for(self) -> None:
        federation, dataset = federate(settings(**DIGITS))
        own = dataset.train.y[federation.train.rows]
        assert set(own.tolist()) == {0, 1, 2, 3}
        labels = dataset.train.y[federation.server]
        assert (labels >= 8).sum() == 30
        assert (labels <= 3).sum() == 12

    def test_no_row_is_held_twice_and_none_is_lost(self) -> None:
        federation, dataset = federate(settings(**DIGITS))
        clients, server = _rows(federation.train.rows), _rows(federation.server)
        assert not clients & server
        assert len(clients) == len(federation.train.rows)
        assert len(clients) + 12 == int((dataset.train.y <= 3).sum())

    def test_classes_can_be_missing_from_the_server(self) -> None:
        keys = {**DIGITS, "client-rows": "", "server-ood-examples": 0, "server-missing": 4, "server-examples": 60}
        federation, dataset = federate(settings(**keys))
        assert dataset.train.y[federation.server].max() <= 5
        assert set(dataset.train.y[federation.train.rows].tolist()) == set(range(10))

    def test_missing_classes_are_among_those_the_clients_have(self) -> None:
        federation, dataset = federate(settings(**{**DIGITS, "server-missing": 2}))
        assert set(dataset.train.y[federation.server].tolist()) <= {0, 1, 8, 9}

    def test_without_server_examples_there_are_none(self) -> None:
        federation, _ = federate(settings())
        assert not len(federation.server)

    def test_inputs_are_normalised_as_the_clients_are(self) -> None:
        s = settings(**DIGITS)
        federation, dataset = federate(s)
        held = server_examples(s)
        assert len(held) == 42
        raw = np.asarray(dataset.train.x[federation.server])[..., 0]
        expected = (raw / 255 - dataset.spec.mean[0]) / dataset.spec.std[0]
        np.testing.assert_allclose(held.x[:, 0].numpy(), expected, atol=1e-5)

    def test_the_same_seed_chooses_the_same(self) -> None:
        first, _ = federate(settings(**DIGITS))
        again, _ = federate(settings(**DIGITS, finetune_epochs=1))
        other, _ = federate(settings(**DIGITS, seed=2))
        np.testing.assert_array_equal(first.server, again.server)
        assert (first.server != other.server).any()

    @pytest.mark.parametrize(
        ("keys", "error", "said"),
        [
            ({"client-rows": "label=11"}, ConfigurationError, "client-rows: column 'label' has no value '11'"),
            ({"client-rows": "colour=red"}, ConfigurationError, "'colour' is not a column of 'digits'"),
            ({"server-ood-rows": ""}, ConfigurationError, "server-ood-rows: say which rows"),
            ({"client-rows": ""}, ConfigurationError, "client-rows: without it clients hold rows of every kind"),
            ({"server-missing": 4}, ConfigurationError, "server-missing: the clients have 4 classes"),
            ({"server-ood-examples": 5000}, DataError, "server-ood-examples: 'digits' has"),
            ({"server-examples": 5000}, DataError, "server-examples: 'digits' has"),
        ],
    )
    def test_bad_choices_are_refused(self, keys: dict[str, object], error: type[Exception], said: str) -> None:
        with pytest.raises(error, match=said):
            federate(settings(**{**DIGITS, **keys}))

    @pytest.mark.parametrize("choice", ["label", "=3", "label=", "label=1||2"])
    def test_a_choice_must_be_one(self, choice: str) -> None:
        with pytest.raises(ConfigurationError, match="is not a choice of rows"):
            settings(**{"client-rows": choice})


class TestMixture:
    def test_points_scatter_around_their_means(self) -> None:
        s = settings(**{**MIXTURE, "samples-per-client": 2000})
        _, dataset = federate(s)
        for component in range(10):
            own = dataset.train.x[dataset.train.y == component]
            mean = own.mean(axis=0)
            # The mean of n points has variance 0.5/n in each direction; it lies near [0, 1].
            assert -0.1 < mean.min() < mean.max() < 1.1
            np.testing.assert_allclose(own.var(axis=0).mean(), VARIANCE, rtol=0.03)

    def test_means_are_spread_over_the_cube(self) -> None:
        _, dataset = federate(settings(**{**MIXTURE, "samples-per-client": 2000}))
        means = np.stack([dataset.train.x[dataset.train.y == c].mean(axis=0) for c in range(10)])
        np.testing.assert_allclose(means.mean(), 0.5, atol=4 * np.sqrt(1 / 12 / 1000))
        np.testing.assert_allclose(means.var(), 1 / 12, rtol=0.15)

    def test_the_servers_points(self) -> None:
        held = server_examples(settings(**MIXTURE))
        np.testing.assert_array_equal(np.bincount(held.y, minlength=11), [20] * 10 + [100])
        uniform = held.x[200:].numpy()
        assert 0 <= uniform.min() < uniform.max() <= 1
        np.testing.assert_allclose(uniform.var(), 1 / 12, rtol=0.05)

    def test_missing_components(self) -> None:
        held = server_examples(settings(**MIXTURE, **{"server-missing": 2}))
        np.testing.assert_array_equal(np.bincount(held.y, minlength=11), [20] * 8 + [0, 0, 100])

    def test_server_and_clients_share_the_means_but_no_point(self) -> None:
        s = settings(**MIXTURE)
        federation, dataset = federate(s)
        held = server_examples(s)
        near = np.linalg.norm(dataset.train.x[dataset.train.y == 3].mean(0) - held.x[60:80].numpy().mean(0))
        far = np.linalg.norm(dataset.train.x[dataset.train.y == 4].mean(0) - held.x[60:80].numpy().mean(0))
        assert near < far
        first = simulated(federation, dataset, 0).train.x
        assert not (first[:, None] == held.x[None]).all(dim=2).any()

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"num-clients": 0}, "needs num-clients"),
            ({"samples-per-client": 0}, "samples-per-client"),
            ({"server-examples": 205}, "use a multiple of 10"),
            ({"server-missing": 10}, "leave out fewer"),
            (
                {"client-rows": "label=1"},
                "'gaussian-mixture' is generated from the settings; there are no rows to choose",
            ),
        ],
    )
    def test_bad_keys_are_refused(self, keys: dict[str, int | str], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            federate(settings(**{**MIXTURE, **keys}))


class TestFile:
    def test_a_file_in_the_datasets_schema(self, tmp_path: Path) -> None:
        s = settings(**{"num-clients": 2})
        federation, dataset = federate(s)
        write_device(federation, dataset, 1, tmp_path)
        file = str(tmp_path / "train.parquet")
        held = server_examples(settings(**{"num-clients": 2, "server-data": file}), deployed=True)
        np.testing.assert_allclose(held.x, simulated(federation, dataset, 1).train.x)

    def test_devices_need_one(self) -> None:
        with pytest.raises(ConfigurationError, match="server-data: name a parquet file"):
            server_examples(settings(), deployed=True)
