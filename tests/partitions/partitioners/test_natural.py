"""Tests of partitions.natural: clients that a column of the data names."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.federation import federate
from tests.partitions.made import make, write
from tests.support import settings

REAL = Path(os.environ.get("FLORILEGIUM_DATA", "/nowhere"))


def _federate(tmp_path, dataset, **chosen):
    return federate(settings(dataset=dataset, data_dir=str(tmp_path), partitioner="natural", **chosen))


def _assert_own_rows(federation, dataset, column) -> None:
    test_split = dataset.train if federation.test_from_train else dataset.test
    for client, name in enumerate(federation.names):
        assert set(dataset.train.clients[column][federation.train[client]]) == {name}
        assert set(test_split.clients[column][federation.test[client]]) <= {name}


class TestSuccess:
    def test_nothing_is_printed(self, tmp_path, capfd):
        write(tmp_path, "shakespeare", train=32, test=10)
        _federate(tmp_path, "shakespeare", num_clients=0, seed=77)
        assert capfd.readouterr() == ("", "")

    def test_all_clients_have_all_their_rows(self, tmp_path):
        made = write(tmp_path, "shakespeare", train=32, test=10)
        federation, dataset = _federate(tmp_path, "shakespeare", num_clients=0)
        _assert_own_rows(federation, dataset, "client_id")
        for part, shares in (("train", federation.train), ("test", federation.test)):
            counts = Counter(made[part].clients["client_id"])
            assert dict(zip(federation.names.tolist(), shares.sizes.tolist(), strict=True)) == dict(counts)
            assert len(set(shares.rows.tolist())) == len(shares.rows)
        assert not federation.test_from_train

    def test_without_a_test_split_every_client_holds_back_a_fifth_of_its_own(self, tmp_path):
        made = write(tmp_path, "femnist", train=50)  # writers have 13, 13, 12 and 12 rows
        federation, dataset = _federate(tmp_path, "femnist", num_clients=0)
        _assert_own_rows(federation, dataset, "writer_id")
        assert federation.test_from_train
        counts = Counter(made["train"].clients["writer_id"])
        for client, name in enumerate(federation.names):
            rows = [*federation.train[client], *federation.test[client]]
            assert len(rows) == len(set(rows)) == counts[name]
            assert len(federation.test[client]) == round(0.2 * counts[name])

    def test_the_rows_held_back_are_drawn_at_random(self, tmp_path):
        write(tmp_path, "femnist", train=80)
        federation, _ = _federate(tmp_path, "femnist", num_clients=0)
        assert any(min(federation.test[client]) < max(federation.train[client]) for client in range(4))

    def test_a_test_file_without_the_column_is_left_aside(self, tmp_path):
        write(tmp_path, "femnist", train=40, test=8)
        file = tmp_path / "femnist" / "test.parquet"
        pyarrow.parquet.write_table(make("femnist", 8).table.drop_columns("writer_id"), file)
        federation, _ = _federate(tmp_path, "femnist", num_clients=0)
        assert federation.test_from_train

    def test_a_client_without_test_rows_is_kept(self, tmp_path):
        write(tmp_path, "shakespeare", train=30)
        table = make("shakespeare", 30, seed=1).table
        keep = np.array([name != "ROMEO" for name in table.column("client_id").to_pylist()])
        pyarrow.parquet.write_table(table.filter(keep), tmp_path / "shakespeare" / "test.parquet")
        federation, dataset = _federate(tmp_path, "shakespeare", num_clients=0)
        _assert_own_rows(federation, dataset, "client_id")
        sizes = dict(zip(federation.names.tolist(), federation.test.sizes.tolist(), strict=True))
        assert sizes == {"First Citizen": 10, "JULIET": 10, "ROMEO": 0}

    def test_some_clients_are_drawn_at_random(self, tmp_path):
        write(tmp_path, "femnist", train=40)
        drawn = []
        for seed in range(6):
            federation, dataset = _federate(tmp_path, "femnist", num_clients=2, seed=seed)
            _assert_own_rows(federation, dataset, "writer_id")
            drawn.append(tuple(federation.names.tolist()))
            assert len(set(drawn[-1])) == 2
        assert len(set(drawn)) > 1

    def test_samples_per_client_cut_long_clients_only(self, tmp_path):
        write(tmp_path, "shakespeare", train=32, test=10)  # 11, 11 and 10 rows
        federation, _ = _federate(tmp_path, "shakespeare", num_clients=0, samples_per_client=4)
        assert federation.train.sizes.tolist() == [4, 4, 4]
        federation, _ = _federate(tmp_path, "shakespeare", num_clients=0, samples_per_client=11)
        assert sorted(federation.train.sizes.tolist()) == [10, 11, 11]

    @pytest.mark.parametrize(
        ("column", "names"),
        [
            ("", {"Adm-clerical", "?"}),  # the first column of the dataset: occupation
            ("occupation", {"Adm-clerical", "?"}),
            ("workclass", {"State-gov", "?"}),
            ("native.country", {"United-States", "Trinadad&Tobago"}),
        ],
    )
    def test_the_column_can_be_chosen(self, tmp_path, column, names):
        write(tmp_path, "adult", train=20)
        federation, dataset = _federate(tmp_path, "adult", num_clients=0, client_column=column)
        assert set(federation.names.tolist()) == names
        _assert_own_rows(federation, dataset, column or "occupation")


@pytest.mark.long
@pytest.mark.skipif(not (REAL / "adult" / "train.parquet").is_file(), reason="needs the files of $FLORILEGIUM_DATA")
def test_real_occupations(cache_dir):
    """UCI Adult has 15 occupations, counting unknown; of Armed-Forces there are 9 training rows."""
    federation, dataset = _federate(REAL, "adult", num_clients=0)
    assert len(federation) == 15
    _assert_own_rows(federation, dataset, "occupation")
    assert len(federation.train.rows) == len(dataset.train) == 32561
    assert len(federation.test.rows) == len(dataset.test) == 16281
    sizes = dict(zip(federation.names.tolist(), federation.train.sizes.tolist(), strict=True))
    assert sizes["Armed-Forces"] == 9
    assert sizes["Prof-specialty"] == 4140


class TestFailure:
    def test_more_clients_than_the_data_name_say_how_many_there_are(self, tmp_path):
        write(tmp_path, "femnist", train=40)
        with pytest.raises(DataError) as caught:
            _federate(tmp_path, "femnist", num_clients=5)
        assert str(caught.value) == "num-clients: 'femnist' has only 4 natural clients, not 5; 0 takes all"

    def test_a_dataset_without_names_says_so(self):
        with pytest.raises(
            ConfigurationError, match="partitioner: 'natural' needs a column of client names; 'digits' has none"
        ):
            federate(settings(partitioner="natural"))

    def test_an_unknown_column_names_the_nearest_and_all(self, tmp_path):
        write(tmp_path, "adult", train=20)
        with pytest.raises(ConfigurationError) as caught:
            _federate(tmp_path, "adult", num_clients=0, client_column="workclas")
        message = str(caught.value)
        assert message.startswith("client-column: 'workclas' is not one of occupation, workclass, native.country")
        assert message.endswith("did you mean 'workclass'?")
