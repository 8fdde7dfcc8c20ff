"""FedRoD: one step against the paper's equations, limits, personal heads of seen and new clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from florilegium.clients.core.wire import BESIDE
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.blocks import classifier_shape
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.models.personal_heads import build_head_network
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, perform

KEYS: dict[str, Value] = {
    "method": "fedrod", "model": "mlp", "local-epochs": 1, "batch-size": 16, "learning-rate": 0.1, "momentum": 0.0,
}  # fmt: skip
NETWORK = build("mlp", (1, 8, 8), 10, 1)
START = get_arrays(NETWORK)
HYPER: dict[str, Value] = {"fedrod.personal-head": "hypernetwork", "fedrod.hidden-width": 5}


def _examples(labels: list[int]) -> Examples:
    x = torch.randn(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return Examples(x, torch.tensor(labels))


DATA = _examples([0, 0, 0, 0, 0, 3, 3, 7])  # most classes are missing


def _client(folder: Path, data: Examples = DATA, **keys: Value) -> Any:
    return make_client(data, NETWORK, folder=folder, **{**KEYS, **keys})


def _generic() -> tuple[np.ndarray, np.ndarray]:
    """Return features (n, d) and generic logits (n, C) of the initial network."""
    with torch.no_grad():
        tensors = {name: torch.from_numpy(array) for name, array in START.items()}
        z = functional_call(NETWORK[:-1], {n: t for n, t in tensors.items() if "fc3" not in n}, (DATA.x,)).numpy()
    return z, z @ START["fc3.weight"].T + START["fc3.bias"]


def _head_gradient(scores: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the gradient (C, d + 1) of the mean cross-entropy with respect to a dense layer: (p − 1_y)ᵀ(z, 1)/n."""
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    p[np.arange(len(z)), DATA.y.numpy()] -= 1
    return p.T @ np.column_stack([z, np.ones(len(z))]) / len(z)


def test_one_step_is_that_of_the_paper(tmp_path: Path) -> None:
    client, rng = _client(tmp_path), np.random.default_rng(1)
    head = (0.1 * rng.normal(size=(10, 33))).astype(np.float32)
    client.state.save({"head": head})
    answer = perform(client, "train", START)

    tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in START.items()}
    counts = torch.bincount(DATA.y, minlength=10)
    weighted = counts * functional_call(NETWORK, tensors, (DATA.x,)).exp()  # balanced softmax: n_c exp(g_c)
    (-(weighted.gather(1, DATA.y[:, None])[:, 0] / weighted.sum(dim=1)).log().mean()).backward()
    assert answer.arrays.keys() == START.keys()
    for name, tensor in tensors.items():
        assert tensor.grad is not None
        np.testing.assert_allclose(answer.arrays[name], START[name] - 0.1 * tensor.grad.numpy(), rtol=1e-4, atol=1e-6)
    z, g = _generic()
    expected = head - 0.1 * _head_gradient(g + z @ head[:, :-1].T + head[:, -1], z)
    np.testing.assert_allclose(client.state.load()["head"], expected, rtol=1e-4, atol=1e-6)


def test_with_equal_classes_the_generic_model_is_that_of_fedavg(tmp_path: Path) -> None:
    data = _examples([*range(10)] * 2)
    keys: dict[str, Value] = {"batch-size": 7, "momentum": 0.9}
    ours, plain = (perform(_client(tmp_path, data, **keys, method=m), "train", START) for m in ("fedrod", "fedavg"))
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(ours.arrays[name], array, rtol=1e-4, atol=1e-6)


def test_the_sum_of_both_heads_is_tested(tmp_path: Path) -> None:
    client, head = _client(tmp_path), np.random.default_rng(1).normal(size=(10, 33)).astype(np.float32)
    client.state.save({"head": head})
    metrics, (z, g) = perform(client, "test", START).metrics, _generic()
    both = torch.from_numpy(g + z @ head[:, :-1].T + head[:, -1])
    assert metrics["loss"] == pytest.approx(float(cross_entropy(both, DATA.y)), rel=1e-4)
    assert metrics["loss_global"] == pytest.approx(float(cross_entropy(torch.from_numpy(g), DATA.y)), rel=1e-4)


def test_a_new_client_has_the_generic_head_or_trains_one(tmp_path: Path) -> None:
    assert "accuracy_global" not in perform(_client(tmp_path), "test", START).metrics
    metrics = perform(_client(tmp_path, **{"finetune-epochs": 1}), "test", START).metrics
    z, g = _generic()
    head = -0.1 * _head_gradient(g, z)  # one step from 0, with the features and the generic head fixed
    both = torch.from_numpy(g + z @ head[:, :-1].T + head[:, -1])
    assert metrics["loss"] == pytest.approx(float(cross_entropy(both, DATA.y)), rel=1e-4)
    client = _client(tmp_path, **{"finetune-epochs": 1})
    client.state.save({"head": head.astype(np.float32)})
    assert perform(client, "test", START).metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-5)  # trains no more


def _sent(shift: float = 0.0) -> Arrays:
    network = build_head_network(10, 32, 5, 1)
    return START | {BESIDE + name: array + np.float32(shift) for name, array in get_arrays(network).items()}


def test_the_hypernetwork_makes_heads_from_class_frequencies(tmp_path: Path) -> None:
    client, sent = _client(tmp_path, **HYPER), _sent(0.01)
    before = perform(client, "test", sent).metrics
    ν = [sent[BESIDE + f"layers.{n}"].astype(np.float64) for n in ("0.weight", "0.bias", "2.weight", "2.bias")]
    a = np.bincount(DATA.y.numpy(), minlength=10) / len(DATA)
    hidden = np.maximum(ν[0] @ a + ν[1], 0)
    head, (z, g) = (ν[2] @ hidden + ν[3]).reshape(10, 33), _generic()
    scores = g + z @ head[:, :-1].T + head[:, -1]
    assert before["loss"] == pytest.approx(float(cross_entropy(torch.from_numpy(scores), DATA.y)), rel=1e-4)
    answer = perform(client, "train", sent)
    expected = ν[3] - 0.1 * _head_gradient(scores, z).reshape(-1)
    np.testing.assert_allclose(answer.arrays[BESIDE + "layers.2.bias"], expected, rtol=1e-4, atol=1e-6)
    assert client.state.load() is None


def test_the_hypernetwork_is_averaged_and_serves_new_clients(tmp_path: Path) -> None:
    run = Runs(tmp_path, {**KEYS, **HYPER, "num-clients": 4, "rounds": 2, "unseen-fraction": 0.25, "local-steps": 20})
    path = run("hyper")
    figures, start = read_metrics(path)[-1], _sent()
    assert all("accuracy_global" in figures[group] for group in ("seen", "unseen"))
    state = read_checkpoint(path).state
    assert state.keys() == start.keys() - START.keys()
    assert all(not np.array_equal(array, start[name]) for name, array in state.items())


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="blocks"):
        Runs(tmp_path, KEYS)("refused", model="linear")
    with pytest.raises(ConfigurationError, match=r"fedrod: .* must have a bias"):
        classifier_shape({name: array for name, array in START.items() if name != "fc3.bias"}, "fedrod", biased=True)
    with pytest.raises(RunError, match="own strategy"):
        perform(_client(tmp_path, **HYPER), "train", START)
