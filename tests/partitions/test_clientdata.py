"""Tests of partitions.clientdata: normalisation by hand, layouts, simulated clients and a device's folder."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet
import pytest
import torch

from florilegium.partitions.clientdata import CPU, ClientData, Examples, simulated, to_inputs
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.federation import federate
from florilegium.partitions.sources.decode import decode
from tests.partitions.made import make
from tests.support import TASK, settings


def _write(folder, name, rows, part="train", seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    made = make(name, rows, seed)
    pyarrow.parquet.write_table(made.table, folder / f"{part}.parquet")
    return made


class TestInputs:
    @pytest.mark.parametrize("name", ["cifar10", "mnist", "femnist"])
    def test_images_are_normalised_per_channel(self, name):
        """A pixel p of channel c becomes (p/255 − mean_c) / std_c."""
        spec, made = DATASETS[name], make(name, 3)
        inputs = to_inputs(spec, made.x)
        assert inputs.dtype == torch.float32
        for c in range(spec.shape[0]):
            expected = (made.x[..., c] / 255 - spec.mean[c]) / spec.std[c]
            np.testing.assert_allclose(inputs[:, c].numpy(), expected, rtol=1e-4, atol=1e-5)

    def test_one_pixel_by_hand(self):
        """CIFAR-10's green channel has mean 0.4822 and deviation 0.2435: (51/255 − 0.4822) / 0.2435 = −1.158932."""
        pixels = np.zeros((1, 32, 32, 3), np.uint8)
        pixels[0, 4, 7, 1] = 51
        assert to_inputs(DATASETS["cifar10"], pixels)[0, 1, 4, 7].item() == pytest.approx(-1.158932, abs=1e-5)

    @pytest.mark.parametrize("name", ["cifar10", "mnist"])
    def test_images_are_in_channels_last_layout(self, name):
        inputs = to_inputs(DATASETS[name], make(name, 3).x)
        channels, height, width = DATASETS[name].shape
        assert inputs.shape == (3, channels, height, width)
        assert inputs.is_contiguous(memory_format=torch.channels_last)
        assert inputs.stride() == (channels * height * width, 1, channels * width, channels)

    def test_character_codes_are_widened_and_tables_stay(self):
        text = decode(DATASETS["sent140"], make("sent140", 3).table, "here").x
        inputs = to_inputs(DATASETS["sent140"], text)
        assert inputs.dtype == torch.int64
        assert inputs.tolist() == text.tolist()
        table = decode(DATASETS["adult"], make("adult", 3).table, "here").x
        inputs = to_inputs(DATASETS["adult"], table)
        assert inputs.dtype == torch.float32
        assert inputs.tolist() == table.tolist()


class TestLoading:
    def _counting(self, calls):
        def load(name):
            calls.append(name)
            return Examples(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))

        return load

    def test_each_part_is_loaded_once_and_only_when_used(self):
        calls = []
        load = self._counting(calls)
        data = ClientData(
            lambda: load("train"), lambda: load("test"), labeled=True, simulated=True, device=torch.device("cpu")
        )
        assert calls == []
        assert len(data.test) == 2
        assert data.test is data.test
        assert calls == ["test"]
        assert len(data.train) == 2
        assert calls == ["test", "train"]

    def test_examples_are_moved_to_the_device(self):
        load = self._counting([])
        data = ClientData(
            lambda: load("train"), lambda: load("test"), labeled=True, simulated=True, device=torch.device("meta")
        )
        assert {t.device.type for t in (data.train.x, data.train.y, data.test.x, data.test.y)} == {"meta"}


class TestHoldingBack:
    """10 + 5 + 3 + 1 examples of four classes, of which a fifth, 3, validates."""

    Y = torch.tensor([2, 0, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0, 0, 1, 0, 2, 1, 0])

    def held(self, seed: int, fraction: float = 0.2) -> Examples:
        """Return what validates, whose inputs are the rows."""
        examples = Examples(torch.arange(len(self.Y)), self.Y)
        data = ClientData(lambda: examples, lambda: examples, labeled=True, simulated=True, device=CPU)
        part = data.hold_back(fraction, torch.Generator().manual_seed(seed), TASK)
        assert sorted([*part.train.x.tolist(), *part.validation.x.tolist()]) == list(range(len(self.Y)))
        assert torch.equal(self.Y[part.validation.x], part.validation.y)
        return part.validation

    def test_every_class_has_its_share(self) -> None:
        whole = torch.bincount(self.Y)
        for seed in range(50):
            for fraction in (0.2, 0.5):
                y = self.held(seed, fraction).y
                assert len(y) == int(fraction * len(self.Y))
                assert ((torch.bincount(y, minlength=4) - len(y) / len(self.Y) * whole).abs() < 1).all()

    def test_every_example_is_as_likely(self) -> None:
        counts = torch.bincount(torch.cat([self.held(seed).x for seed in range(2000)]), minlength=len(self.Y))
        p = 3 / len(self.Y)
        assert (counts / 2000 - p).abs().max() < 4 * (p * (1 - p) / 2000) ** 0.5

    def test_too_few_to_hold_any_back(self) -> None:
        assert len(self.held(1, 0.05)) == 0


class TestSimulated:
    def test_a_client_has_the_rows_of_its_federation(self):
        federation, dataset = federate(settings(num_clients=4, partitioner="iid", unseen_fraction=0.25))
        for client in range(4):
            data = simulated(federation, dataset, client)
            for examples, split, shares in (
                (data.train, dataset.train, federation.train), (data.test, dataset.test, federation.test)
            ):  # fmt: skip
                rows = shares[client]
                expected = (split.x[rows] / 255 - dataset.spec.mean[0]) / dataset.spec.std[0]
                np.testing.assert_allclose(examples.x.numpy(), expected.transpose(0, 3, 1, 2), rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(examples.y.numpy(), split.y[rows])
                assert examples.y.dtype == torch.int64

    def test_held_back_rows_come_from_the_training_split(self, tmp_path):
        _write(tmp_path / "adult", "adult", 20)
        federation, dataset = federate(
            settings(dataset="adult", data_dir=str(tmp_path), num_clients=2, partitioner="iid")
        )
        assert dataset.test is None
        data = simulated(federation, dataset, 1)
        np.testing.assert_array_equal(data.test.x.numpy(), dataset.train.x[federation.test[1]])
        assert len(data.test) > 0

    def test_a_client_knows_whether_it_has_labels(self):
        federation, dataset = federate(settings(num_clients=6, partitioner="iid", labeled_fraction=0.5))
        found = [simulated(federation, dataset, client).labeled for client in range(6)]
        assert found == federation.labeled.tolist()
        assert set(found) == {True, False}

    def test_a_rotated_client_sees_training_and_test_images_rotated(self):
        chosen = {"num_clients": 8, "angles": "0,90,180,270"}
        federation, dataset = federate(settings(partitioner="rotation", **chosen))
        assert len(set(federation.angles.tolist())) > 2
        for client, angle in enumerate(federation.angles):
            data = simulated(federation, dataset, client)
            for examples, split, shares in (
                (data.train, dataset.train, federation.train), (data.test, dataset.test, federation.test)
            ):  # fmt: skip
                upright = to_inputs(dataset.spec, split.x[shares[client]]).numpy()
                np.testing.assert_array_equal(examples.x.numpy(), np.rot90(upright, round(angle / 90), axes=(2, 3)))


def test_labels_are_those_of_the_examples_that_remain_for_training() -> None:
    federation, dataset = federate(settings(num_clients=5))
    data = simulated(federation, dataset, 2).hold_back(0.25, torch.Generator().manual_seed(1), TASK)
    assert len(data.validation) > 0
    assert torch.equal(data.labels, data.train.y)
    assert len(data.labels) + len(data.validation) == len(federation.train[2])
