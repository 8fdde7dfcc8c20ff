"""Tests of partitions.selecting: selections are those of ``datasets``, and are made when they are used."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from datasets import Dataset as HubDataset
from datasets import concatenate_datasets
from flwr_datasets.partitioner import IidPartitioner, LinearPartitioner, NaturalIdPartitioner

from florilegium.partitions.partitioners import natural
from florilegium.partitions.selecting import RowsToDivide, Selection, rows_in
from tests.support import settings

ROW = np.random.default_rng(1).permutation(100)[:60]
COLUMNS: dict[str, Any] = {"row": ROW, "label": np.arange(60) % 7, "client": np.array(list("zeta-beta-a") * 6)[:60]}


@pytest.fixture
def rows() -> RowsToDivide:
    return RowsToDivide.of(COLUMNS)


@pytest.mark.parametrize(
    "indices", [[3, 1, 3], range(4, 9), range(8, 2, -2), np.array([5, 2]), [], np.array([7], np.uint8), iter([1, 2])]
)
def test_a_selection_is_that_of_datasets(rows, indices):
    again = list(indices)
    expected = HubDataset.from_dict(COLUMNS).select(again)
    part = rows.select(iter(again) if hasattr(indices, "__next__") else indices)
    assert rows_in(part).tolist() == expected["row"][:]
    assert part.to_dict() == expected.to_dict()
    assert rows_in(part).tolist() == expected["row"][:]  # now that it is a dataset


@pytest.mark.parametrize("use", [copy.deepcopy, copy.copy, lambda part: pickle.loads(pickle.dumps(part))])
def test_a_selection_can_be_copied(rows, use):
    assert use(rows.select([3, 1]))["row"][:] == ROW[[3, 1]].tolist()


def test_selections_can_be_joined_and_changed(rows):
    joined = concatenate_datasets([rows.select([3]), rows.select([1])])
    assert rows_in(joined).tolist() == ROW[[3, 1]].tolist()
    assert rows_in(rows.select([3]).remove_columns("row")) is None


def test_rows_that_were_changed_first_are_selected_as_they_are(rows):
    fewer = rows.filter(lambda row: row["row"] > 50)
    assert rows_in(fewer.select([0, 1])).tolist() == ROW[ROW > 50][:2].tolist()
    assert rows_in(rows.sort("row").select([0, 1])).tolist() == np.sort(ROW)[:2].tolist()
    assert rows_in(rows.remove_columns("row").select([0])) is None


@pytest.mark.parametrize("indices", [[-1, 3], [60]])
def test_indices_that_do_not_exist_are_refused(rows, indices):
    with pytest.raises((IndexError, OverflowError)):
        rows_in(rows.select(indices))


@pytest.mark.parametrize("made", [lambda: IidPartitioner(7), lambda: LinearPartitioner(4)])
def test_partitioners_select_without_making_datasets(rows, made):
    ours, theirs = made(), made()
    ours.dataset, theirs.dataset = rows, HubDataset.from_dict(COLUMNS)
    for number in range(ours.num_partitions):
        part = ours.load_partition(number)
        assert type(part) is Selection
        assert rows_in(part).tolist() == theirs.load_partition(number)["row"][:]


def test_natural_clients_are_those_of_flower(rows):
    ours, theirs = natural.make(settings(), rows, 1), NaturalIdPartitioner("client")
    ours.dataset, theirs.dataset = rows, HubDataset.from_dict(COLUMNS)
    assert ours.num_partitions == theirs.num_partitions == len({*COLUMNS["client"]})
    for number in range(ours.num_partitions):
        assert rows_in(ours.load_partition(number)).tolist() == theirs.load_partition(number)["row"][:]
    assert ours.partition_id_to_natural_id == theirs.partition_id_to_natural_id
