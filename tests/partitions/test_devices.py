"""Tests of partitions.devices: a simulated client's data, written for a device, are the same data."""

from __future__ import annotations

import pytest
import torch

from florilegium.common.errors import DataError
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.device_data import read_device
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from tests.partitions.made import write
from tests.support import settings


def _assert_same(device, client) -> None:
    for part in ("train", "test"):
        ours, theirs = getattr(device, part), getattr(client, part)
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)


@pytest.mark.parametrize(
    ("dataset", "rows", "partitioner"),
    [("digits", (0, 0), "iid"), ("cifar10", (60, 20), "iid"), ("femnist", (60, 0), "natural")],
)
def test_a_device_reads_what_its_client_had(tmp_path, dataset, rows, partitioner):
    if dataset != "digits":
        write(tmp_path, dataset, *rows)
    chosen = settings(dataset=dataset, data_dir=str(tmp_path), num_clients=3, partitioner=partitioner)
    federation, source = federate(chosen)
    for client in range(3):
        assert federation.test.sizes[client] > 0
        write_device(federation, source, client, tmp_path / "device")
        _assert_same(read_device(tmp_path / "device", source.spec), simulated(federation, source, client))


def test_a_device_of_a_rotated_client_sees_rotated_images(tmp_path):
    federation, source = federate(settings(num_clients=2, partitioner="rotation", angles="90"))
    write_device(federation, source, 0, tmp_path)
    _assert_same(read_device(tmp_path, source.spec), simulated(federation, source, 0))


def test_a_client_without_test_rows_makes_a_usable_device(tmp_path):
    write(tmp_path, "femnist", train=5)  # writers with 2, 1, 1 and 1 rows hold none back
    chosen = settings(dataset="femnist", data_dir=str(tmp_path), num_clients=0, partitioner="natural")
    federation, source = federate(chosen)
    assert federation.test.sizes.tolist() == [0, 0, 0, 0]
    write_device(federation, source, 0, tmp_path / "device")
    _assert_same(read_device(tmp_path / "device", source.spec), simulated(federation, source, 0))


def test_other_data_than_images_are_refused(tmp_path):
    write(tmp_path, "adult", train=20)
    federation, source = federate(settings(dataset="adult", data_dir=str(tmp_path), num_clients=2, partitioner="iid"))
    with pytest.raises(DataError, match="only image datasets can be written as device folders, not 'adult'"):
        write_device(federation, source, 0, tmp_path / "device")
