"""Buffers of the global model: a first client's, and recomputed by one pass, against computations of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

from florilegium.apps.assembly.node_clients import SimulatedClients
from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays, buffers_of, exchanged, set_arrays
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import CPU, assert_rounded, make_client, perform, settings

HERE = "tests.strategies.layers.test_buffers"
KEYS: dict[str, Value] = {
    "model": f"{HERE}:mixed", "num-clients": 4, "participation": 1.0, "rounds": 1, "local-epochs": 1, "batch-size": 16,
    "learning-rate": 0.05, "evaluate-every": 0, "partitioner": "iid",
}  # fmt: skip


class Range(nn.Module):
    """Divides by the largest absolute value that it has seen in training, as quantisers do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.full((1,), 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.largest.copy_(torch.maximum(self.largest, x.detach().abs().max()[None]))
        return x / self.largest


def mixed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network with batch norm, a range, and spectral normalisation."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape[1] * shape[2], 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16),
        nn.BatchNorm1d(16), Range(), nn.utils.parametrizations.spectral_norm(nn.Linear(16, classes)),
    )  # fmt: skip


class Latest(nn.Module):
    """Divides by the largest absolute value of the last batch of training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.largest.copy_(x.detach().abs().max()[None])
        return x / self.largest


def ranged(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network with a range."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 16), Latest(), nn.Linear(16, classes))


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _network(arrays: Arrays, **keys: Value) -> nn.Sequential:
    s = settings(**{**KEYS, **keys})
    network = network_for(dataset_of(s), s, s.seed)
    set_arrays(network, arrays)
    return network


def _inputs(clients: Sequence[str], **keys: Value) -> list[Tensor]:
    source = SimulatedClients(settings(**{**KEYS, **keys}), CPU)
    return [source.data(client).train.x for client in clients]


def _asked(run: Runs, phase: str) -> list[Any]:
    """Return the requests of a phase: their configurations, with the clients in the order of the cohort."""
    configs: list[Any] = [message.content.config_records.get("config", {}) for message in run.grid.sent]
    return [found for found in configs if found.get("phase") == phase]


def _moments(network: nn.Sequential, batches: Sequence[Tensor]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return mean and unbiased variance of the inputs of each batch norm, means over the batches by their sizes."""
    found: dict[str, list[tuple[int, np.ndarray, np.ndarray]]] = {}
    for x in batches:
        for name, layer in network.named_children():
            if isinstance(layer, nn.BatchNorm1d):
                values = x.detach().double().numpy()
                found.setdefault(name, []).append((len(x), values.mean(0), values.var(0, ddof=1)))
                x = functional.batch_norm(x, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)
            else:
                x = layer.eval()(x)
    return {
        name: cast(Any, tuple(np.average([row[i] for row in rows], axis=0, weights=[row[0] for row in rows])
                              for i in (1, 2)))
        for name, rows in found.items()
    }  # fmt: skip


@pytest.mark.parametrize("size", [16, 25])
def test_recomputed_statistics_are_those_of_one_pass_over_all_clients_data(run: Runs, size: int) -> None:
    arrays = read_checkpoint(run("run", buffers="recompute", **{"batch-size": size})).arrays
    network = _network(arrays)
    parts = _inputs([str(i) for i in range(4)])
    assert min(len(x) % size for x in parts) > 1  # of the last batch, which counts for less
    for name, (mean, variance) in _moments(network, [x for part in parts for x in part.split(size)]).items():
        np.testing.assert_allclose(arrays[f"{name}.running_mean"], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(arrays[f"{name}.running_var"], variance, rtol=1e-4, atol=1e-6)


def test_with_batches_of_one_size_they_are_those_of_pytorchs_update_bn(run: Runs) -> None:
    keys: dict[str, Value] = {"samples-per-client": 96}
    arrays = read_checkpoint(run("run", buffers="recompute", **keys)).arrays
    network, parts = _network(arrays, **keys), _inputs([str(i) for i in range(4)], **keys)
    assert [len(x) for x in parts] == [96] * 4
    update_bn([x for part in parts for x in part.split(16)], network)
    for name, tensor in buffers_of(network).items():
        if "running" in name:
            assert_rounded(arrays[name], tensor.numpy())


def test_a_recomputed_range_is_the_first_clients(run: Runs) -> None:
    """That of the last batch of its pass, where four clients' differ."""
    keys: dict[str, Value] = {"model": f"{HERE}:ranged"}
    arrays = read_checkpoint(run("run", buffers="recompute", **keys)).arrays
    network = _network(arrays, **keys)
    first = int(_asked(run, "recompute")[0]["clients"][0])
    with torch.no_grad():
        ranges = [float(network[1](x.split(16)[-1].flatten(1)).abs().max()) for x in _inputs([*"0123"])]
    assert np.ptp(ranges) > 1e-2
    assert float(arrays["2.largest"][0]) == pytest.approx(ranges[first], rel=1e-5)


def test_recomputed_directions_go_with_the_new_parameters(run: Runs) -> None:
    """A power iteration finds the largest singular value, so that the layer's is 1."""
    arrays = read_checkpoint(run("run", buffers="recompute", rounds=3)).arrays
    layer = _network(arrays)[7].eval()
    assert float(torch.linalg.matrix_norm(layer.weight, 2)) == pytest.approx(1, abs=0.02)
    assert float(np.linalg.norm(arrays["7.parametrizations.weight.0._u"])) == pytest.approx(1, abs=1e-5)


def test_averaged_directions_are_refused_and_the_remedy_is_named(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match=r"model: '.*mixed' has buffers of length 1 .* buffers = 'recompute'"):
        run("run")


@pytest.mark.parametrize("keys", [{}, {"server-learning-rate": 0.5, "server-momentum": 0.5}, {"num-clients": 3}])
def test_the_first_clients_buffers_are_those_that_it_trains(run: Runs, keys: dict[str, Value]) -> None:
    ours = read_checkpoint(run("first", buffers="first", nodes=1, **keys)).arrays
    (asked,) = _asked(run, "train")
    first = str(asked["clients"][0])
    s = settings(**{**KEYS, **keys, "buffers": "first"})
    network = network_for(dataset_of(s), s, s.seed)
    client = make_client(SimulatedClients(s, CPU).data(first).train, network, **{**KEYS, **keys})
    client.client_id = first
    start = {name: tensor.numpy().copy() for name, tensor in exchanged(network).items()}
    own = perform(client, "train", start).arrays
    for name in buffers_of(network):
        assert_rounded(ours[name], own[name])
    parameters = read_checkpoint(run("other", buffers="recompute", nodes=1, **keys)).arrays
    for name in exchanged(network).keys() - buffers_of(network).keys():
        assert_rounded(ours[name], parameters[name])  # the mean, whatever the buffers are


def test_clients_that_recompute_in_vain_leave_the_buffers_averaged(run: Runs) -> None:
    def refuse(message: Message) -> Message | None:
        if message.content.config_records.get("config", {}).get("phase") == "recompute":
            raise_in_place(message)
        return None

    def raise_in_place(message: Message) -> None:
        message.content["config"]["phase"] = "no-such-phase"

    keys: dict[str, Value] = {"model": "cnn-bn"}
    broken = read_checkpoint(run("broken", buffers="recompute", intercept=refuse, **keys)).arrays
    plain = read_checkpoint(run("plain", **keys)).arrays
    assert broken.keys() == plain.keys()
    assert all(np.array_equal(broken[name], plain[name]) for name in plain)


@pytest.mark.parametrize("buffers", ["first", "recompute"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova", "ditto"])
def test_resume_and_packing(run: Runs, buffers: str, method: str) -> None:
    run.check_resume_and_packing(
        buffers=buffers, method=method, rounds=4, participation=0.5, **{"local-steps": 2, "evaluate-every": 1}
    )


@pytest.mark.parametrize("buffers", ["first", "recompute"])
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"privacy.unit": "client", "privacy.epsilon": 1.0, "weighting": "uniform"}, "privacy.unit = 'client'"),
        ({"secure-aggregation": True, "max-update-norm": 10.0}, "secure-aggregation = True"),
        ({"aggregation": "median"}, "aggregation = 'median'"),
        ({"mode": "buffered", "buffer.size": 2, "fleet.speed": 50.0}, "mode = 'buffered'"),
        ({"model": "mlp"}, "'mlp' has no buffers that are exchanged"),
        ({"method": "fedbn"}, "the server has a part of the network"),
        ({"method": "fedper"}, "the server has a part of the network"),
        ({"method": "local"}, "its clients learn alone"),
        ({"method": "ifca"}, "it averages each part over the clients that train it"),
        ({"method": "k-fed", "model": "centers"}, "it adds up statistics, not updates"),
    ],
)
def test_what_does_not_go_with_it_is_refused(run: Runs, buffers: str, keys: dict[str, Value], said: str) -> None:
    with pytest.raises(ConfigurationError, match="buffers: ") as raised:
        run("run", buffers=buffers, **{"model": "cnn-bn", **keys})
    assert said in str(raised.value)


def test_a_client_of_one_example_cannot_recompute() -> None:
    s = settings(**KEYS)
    network = network_for(dataset_of(s), s, s.seed)
    examples = SimulatedClients(s, CPU).data("0").train
    examples = type(examples)(examples.x[:1], examples.y[:1])
    client = make_client(examples, network, **KEYS)
    with pytest.raises(Exception, match="batch norm needs at least 2 training examples, and it has 1"):
        perform(client, "recompute", {name: tensor.numpy().copy() for name, tensor in exchanged(network).items()})
