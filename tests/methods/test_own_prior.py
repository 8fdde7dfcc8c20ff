"""Ditto and PeFLL with class priors: steps written out, limits, and what is kept and sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.metrics_file import read_metrics
from tests.runs import Runs
from tests.support import make_client, perform

KEYS: dict[str, Value] = {
    "model": "mlp", "local-epochs": 1, "batch-size": 8, "learning-rate": 0.1, "momentum": 0.0,
}  # fmt: skip
NETWORK = build("mlp", (1, 8, 8), 10, 1)
START, OWN = get_arrays(NETWORK), get_arrays(build("mlp", (1, 8, 8), 10, 2))
METHODS = ("ditto-prior", "pefll-prior")
LABELS = [0, 0, 0, 0, 0, 3, 3, 7]


def _examples(labels: list[int]) -> Examples:
    x = torch.randn(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return Examples(x, torch.tensor(labels))


def _client(folder: Path, method: str, data: Examples | None = None, **keys: Value) -> Any:
    own = {f"{method}.smoothing": 0.5} if method in METHODS else {}
    return make_client(data or _examples(LABELS), NETWORK, folder=folder, **{**KEYS, "method": method, **own, **keys})


def _term() -> Tensor:
    """ln π_k + ln C, with half an example of each class added."""
    π = (np.bincount(LABELS, minlength=10) + 0.5) / (8 + 10 * 0.5)
    return torch.tensor(np.log(π) + np.log(10), dtype=torch.float32)


def _gradients(arrays: dict[str, Any]) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the network of these arrays, and the gradients of the cross-entropy of its moved logits."""
    network, data = build("mlp", (1, 8, 8), 10, 1), _examples(LABELS)
    set_arrays(network, arrays)
    nn.functional.cross_entropy(network(data.x) + _term(), data.y).backward()
    return network, {name: w.grad for name, w in network.named_parameters() if w.grad is not None}


def test_dittos_models_descend_the_loss_of_the_clients_prior(tmp_path: Path) -> None:
    """w − η∇F(w), and v − η(∇F(v) + λ(v − w)); neither has the prior in it."""
    client = _client(tmp_path, "ditto-prior", **{"ditto-prior.regularization": 2.0})
    client.state.save(OWN)
    sent = perform(client, "train", START).arrays
    for arrays, found, λ in ((START, sent, 0.0), (OWN, client.state.load(), 2.0)):
        network, gradients = _gradients(arrays)
        assert gradients.keys() == found.keys() == START.keys()
        for name, w in network.named_parameters():
            wanted = w.detach() - 0.1 * (gradients[name] + λ * (w.detach() - torch.from_numpy(START[name])))
            np.testing.assert_allclose(found[name], wanted.numpy(), rtol=1e-4, atol=1e-6)


def test_generated_models_descend_the_loss_of_the_clients_prior(tmp_path: Path) -> None:
    """Δθ = −η(∇F(θ) + 2λ_θ θ), without the prior."""
    Δθ = perform(_client(tmp_path, "pefll-prior", **{"pefll-prior.model-penalty": 0.25}), "adapt", START).arrays
    network, gradients = _gradients(START)
    for name, w in network.named_parameters():
        wanted = -0.1 * (gradients[name] + 0.5 * w.detach())
        np.testing.assert_allclose(Δθ[name], wanted.numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_predictions_are_those_of_the_clients_prior(method: str, tmp_path: Path) -> None:
    client = _client(tmp_path, method)
    if method == "ditto-prior":
        client.state.save(START)
    perform(client, "test", START)
    x = _examples(LABELS).x
    with torch.no_grad():
        np.testing.assert_allclose(
            client.predictor(x), build("mlp", (1, 8, 8), 10, 1)(x) + _term(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("method", "plain", "phase"), [("ditto-prior", "ditto", "train"), ("pefll-prior", "pefll", "adapt")]
)
def test_equal_classes_change_nothing(method: str, plain: str, phase: str, tmp_path: Path) -> None:
    equal = _examples([*range(10)] * 2)
    found = perform(_client(tmp_path / "a", method, equal), phase, START).arrays
    for name, array in perform(_client(tmp_path / "b", plain, equal), phase, START).arrays.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_it_learns_and_serves_unseen_and_unlabeled_clients(method: str, tmp_path: Path) -> None:
    run = Runs(tmp_path, {
        "method": method, "dataset": "digits", "model": "mlp", "num-clients": 8, "partitioner": "pathological",
        "classes-per-client": 2, "participation": 1.0, "rounds": 3, "local-epochs": 1, "evaluate-every": 3,
        "unseen-fraction": 0.25, "seed": 3,
    })  # fmt: skip
    with_labels = method == "pefll-prior"  # whose embedding looks at them
    *_, last = read_metrics(run("run", **{"labeled-fraction": 1.0 if with_labels else 0.5}))
    assert last["seen"]["accuracy"] > last["seen"]["accuracy_global"]
    groups = {"seen", "unseen"} if with_labels else {"seen", "unseen", "unlabeled"}
    assert groups <= last.keys()
