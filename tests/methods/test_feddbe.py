"""FedDBE: its steps against the paper's equations, limits, the consensus mean, what is tested, new clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.feddbe import BIAS, MEAN
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples, simulated
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, perform, settings

KEYS: dict[str, Value] = {
    "method": "feddbe", "model": "mlp", "local-epochs": 1, "batch-size": 16, "learning-rate": 0.1, "momentum": 0.0,
}  # fmt: skip
NETWORK = build("mlp", (1, 8, 8), 10, 1)
START = get_arrays(NETWORK)
GENERATOR = torch.Generator().manual_seed(1)
DATA = Examples(torch.randn(9, 1, 8, 8, generator=GENERATOR), torch.tensor([0, 1, 1, 3, 3, 3, 0, 0, 1]))
Z_P, CONSENSUS = torch.randn(32, generator=GENERATOR), torch.randn(32, generator=GENERATOR)
SENT = START | {BESIDE + MEAN: CONSENSUS.numpy()}


def _client(folder: Path, **keys: Value) -> Any:
    return make_client(DATA, NETWORK, folder=folder, **{**KEYS, **keys})


def _representations(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    body = {name: tensor for name, tensor in tensors.items() if "fc3" not in name}
    z: torch.Tensor = functional_call(NETWORK[:-1], body, (x,))
    return z


@pytest.mark.parametrize("μ", [1.0, 0.3])
def test_steps_are_those_of_the_paper(μ: float, tmp_path: Path) -> None:
    """Two steps on all examples: ℓ(z + z_p) + κ·MSE(z̄_i, z̄), with the gradient of the present batch alone."""
    client = _client(tmp_path, **{"local-epochs": 2, "feddbe.penalty": 3.0, "feddbe.momentum": μ})
    client.state.save({BIAS: Z_P.numpy()})
    answer = perform(client, "train", SENT)
    tensors = {name: torch.from_numpy(array) for name, array in START.items()} | {BIAS: Z_P}
    past = None
    for _ in range(2):
        tensors = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
        z = _representations({n: t for n, t in tensors.items() if n != BIAS}, DATA.x)
        scores = (z + tensors[BIAS]) @ tensors["fc3.weight"].T + tensors["fc3.bias"]
        mean = z.mean(dim=0) if past is None else (1 - μ) * past + μ * z.mean(dim=0)
        (cross_entropy(scores, DATA.y) + 3.0 * ((mean - CONSENSUS) ** 2).sum() / 32).backward()
        past = mean.detach()
        tensors = {n: (t - 0.1 * t.grad).detach() for n, t in tensors.items() if t.grad is not None}
    np.testing.assert_allclose(client.state.load()[BIAS], tensors.pop(BIAS).numpy(), rtol=1e-4, atol=1e-6)
    assert answer.arrays.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(answer.arrays[name], tensor.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_without_penalty_and_memory_it_is_fedavg(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"batch-size": 4, "feddbe.penalty": 0.0, "feddbe.memory": False, "finetune-epochs": 1}
    clients = [_client(tmp_path / method, **{**keys, "method": method}) for method in ("feddbe", "fedavg")]
    ours, plain = (perform(client, "train", START) for client in clients)
    assert all(np.array_equal(array, plain.arrays[name]) for name, array in ours.arrays.items())
    assert perform(clients[0], "test", START).metrics == perform(clients[1], "test", START).metrics


def test_the_representation_is_that_of_a_briefly_trained_model(tmp_path: Path) -> None:
    trained = perform(_client(tmp_path, method="fedavg"), "train", START).arrays  # one step on all examples
    answer = perform(_client(tmp_path, **{"local-epochs": 7}), "representation", START)
    with torch.no_grad():
        z = _representations({name: torch.from_numpy(array) for name, array in trained.items()}, DATA.x)
    np.testing.assert_allclose(answer.arrays[MEAN], z.sum(dim=0).numpy(), rtol=1e-4, atol=1e-5)
    assert answer.num_examples == 9


def test_the_consensus_is_the_mean_over_all_examples(tmp_path: Path) -> None:
    """Of all seen clients, though two take part in a round; the learning rate is too small to matter."""
    keys: dict[str, Value] = {
        **KEYS, "num-clients": 5, "partitioner": "dirichlet", "cohort-size": 2, "unseen-fraction": 0.2, "rounds": 2,
        "learning-rate": 1e-9, "evaluate-every": 0,
    }  # fmt: skip
    run = Runs(tmp_path, keys)
    found = read_checkpoint(run("run")).state[BESIDE + MEAN]
    requests = [message.content["config"] for message in run.grid.sent if "config" in message.content]
    asked = [request["clients"] for request in requests if request["phase"] == "representation"]
    seen = [client for clients in asked for client in clients]
    assert len(asked) == 2  # a message for each node, before the first round alone
    assert len({*seen}) == len(seen) == 4
    federation, dataset = federate(settings(**keys))
    x = torch.cat([simulated(federation, dataset, int(i)).train.x for i in sorted(seen)])
    with torch.no_grad():
        z = _representations({name: torch.from_numpy(array) for name, array in START.items()}, x)
    np.testing.assert_allclose(found, z.mean(dim=0).numpy(), rtol=1e-3, atol=1e-5)


def _loss(bias: np.ndarray) -> float:
    with torch.no_grad():
        z = _representations({name: torch.from_numpy(array) for name, array in START.items()}, DATA.x)
        scores = (z.numpy() + bias) @ START["fc3.weight"].T + START["fc3.bias"]
        return float(cross_entropy(torch.from_numpy(scores), DATA.y))


def test_the_bias_is_added_before_the_classifier(tmp_path: Path) -> None:
    client = _client(tmp_path)
    client.state.save({BIAS: Z_P.numpy()})
    metrics = perform(client, "test", START).metrics
    assert metrics["loss"] == pytest.approx(_loss(Z_P.numpy()), rel=1e-4)
    assert metrics["loss_global"] == pytest.approx(_loss(np.zeros(32, np.float32)), rel=1e-4)


def test_a_new_client_has_the_global_model_or_learns_its_bias(tmp_path: Path) -> None:
    assert "accuracy_global" not in perform(_client(tmp_path), "test", START).metrics
    metrics = perform(_client(tmp_path, **{"finetune-epochs": 1}), "test", START).metrics
    with torch.no_grad():
        tensors: dict[str, torch.Tensor] = {name: torch.from_numpy(array) for name, array in START.items()}
        z = _representations(tensors, DATA.x)
        p = (z @ tensors["fc3.weight"].T + tensors["fc3.bias"]).softmax(dim=1)
        p[torch.arange(9), DATA.y] -= 1
        bias = -0.1 * p.mean(dim=0) @ tensors["fc3.weight"]  # one step from 0 on all examples
    assert metrics["loss"] == pytest.approx(_loss(bias.numpy()), rel=1e-4)
    assert metrics["loss"] < metrics["loss_global"]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="blocks"):
        Runs(tmp_path, KEYS)("refused", model="linear")
    with pytest.raises(RunError, match="own strategy"):
        perform(_client(tmp_path), "train", START)
    for key, value in {"penalty": -1.0, "momentum": 0.0}.items():
        with pytest.raises(ConfigurationError, match=f"feddbe.{key}"):
            settings(**{**KEYS, f"feddbe.{key}": value})
