"""HyperFedZero: a step against the paper's formulas, the penalties, models that depend on inputs, what is refused."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy as shannon
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, softplus

from florilegium.clients.core.export import load_model, save_model
from florilegium.clients.hyperfedzero import make_network
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.common.text import VOCABULARY_SIZE
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.models.settings import NetworkSettings
from florilegium.models.zero_shot import Sizes, build_zero_shot, entropy, imbalance
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.datasets import DATASETS
from florilegium.strategies.folder.metrics_file import read_metrics
from tests.runs import Runs
from tests.support import make_client, perform

KEYS: dict[str, Value] = {
    "method": "hyperfedzero", "model": "linear", "learning-rate": 0.5, "batch-size": 12, "local-epochs": 1,
    "momentum": 0.0, "hyperfedzero.embedding-size": 3, "hyperfedzero.hidden-width": 8,
    "hyperfedzero.chunk-size": 99, "hyperfedzero.chunk-embedding-size": 5, "hyperfedzero.scale": 2.0,
    "hyperfedzero.balance": 0.4, "hyperfedzero.entropy": 0.3,
}  # fmt: skip
RUN: dict[str, Value] = {
    **KEYS, "num-clients": 5, "unseen-fraction": 0.2, "labeled-fraction": 0.75, "rounds": 2, "evaluate-every": 1,
    "learning-rate": 0.05,
}  # fmt: skip


def _examples(n: int = 12, seed: int = 3) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(n, 1, 8, 8, generator=generator), torch.randint(4, (n,), generator=generator))


def _client(folder: Path, examples: Examples | None = None, **keys: Value) -> Any:
    network = build("linear", (1, 8, 8), 10, 1)
    return make_client(examples or _examples(), network, folder=folder, **{**KEYS, **keys})


def _sent(client: Any, seed: int = 1) -> Arrays:
    return get_arrays(make_network(NetworkSettings(model="linear"), DATASETS["digits"], client.hyper, seed))


def _log_embeddings(w: dict[str, Tensor], x: Tensor, z: Tensor | None = None) -> Tensor:
    outputs = x.double().flatten(1) @ w["extractor.fc.1.weight"].T + w["extractor.fc.1.bias"]
    return log_softmax(2 * outputs[:, :3] + (0 if z is None else z * softplus(outputs[:, 3:])), dim=1)


def _logits(w: dict[str, Tensor], x: Tensor, log_e: Tensor) -> Tensor:
    """Return the logits of each example by a network of its own, made chunk by chunk."""
    rows, h = [], {name.removeprefix("hypernetwork."): tensor for name, tensor in w.items()}
    for image, e in zip(x.double(), log_e.exp(), strict=True):
        made = []
        for chunk in h["chunks"]:
            a = torch.relu(h["descriptor.weight"] @ e + h["chunk.weight"] @ chunk + h["chunk.bias"])
            a = torch.relu(h["layers.1.weight"] @ a + h["layers.1.bias"])
            made.append(h["layers.3.weight"] @ a + h["layers.3.bias"])
        θ = torch.cat(made) / (3 * 64) ** 0.5
        assert 650 < len(θ) < 650 + 99  # the last chunk has too much
        rows.append(θ[:640].view(10, 64) @ image.flatten() + θ[640:650])
    return torch.stack(rows)


def _double(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array).double().requires_grad_() for name, array in arrays.items()}


def test_a_step_is_the_gradient_of_the_whole_objective(tmp_path: Path) -> None:
    client = _client(tmp_path)
    sent, examples = _sent(client), _examples()
    answer = perform(client, "train", sent)
    order = torch.randperm(12, generator=client.generator(phase="train"))
    z = torch.randn(12, 3, generator=client.generator("noise", phase="train")).double()
    w, x = _double(sent), examples.x[order]
    log_e = _log_embeddings(w, x, z)
    totals = log_e.exp().sum(dim=0)
    loss = cross_entropy(_logits(w, x, log_e), examples.y[order])
    loss = loss + 0.4 * ((totals - 4) ** 2).mean() / 4 - 0.3 * (log_e.exp() * log_e).sum() / 12
    assert answer.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for (name, parameter), gradient in zip(w.items(), torch.autograd.grad(loss, list(w.values())), strict=True):
        expected = (parameter - 0.5 * gradient).detach().numpy()
        np.testing.assert_allclose(answer.arrays[name], expected, rtol=1e-4, atol=2e-6, err_msg=name)


def test_values_of_the_penalties() -> None:
    one, all_ = torch.full((6, 4), -200.0), torch.full((6, 4), log(0.25))
    one[:, 2] = 0  # numbers below the smallest float, whose logarithm a gradient must not need
    one.requires_grad_()
    assert imbalance(one).item() == pytest.approx(6 * (1 - 1 / 4))
    assert imbalance(all_).item() == pytest.approx(0)
    assert entropy(one).item() == 0
    assert torch.autograd.grad(entropy(one), one)[0].isfinite().all()
    log_e = log_softmax(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), dim=1)
    assert entropy(log_e).item() == pytest.approx(shannon(log_e.exp().numpy(), axis=1).mean(), rel=1e-5)


def test_predictions_are_without_noise_and_labels_and_can_be_saved(tmp_path: Path) -> None:
    x = _examples(70).x
    client = _client(tmp_path, Examples(x, torch.zeros(70, dtype=torch.long)))
    sent = _sent(client)
    metrics = perform(client, "test", sent).metrics
    assert metrics.keys() == {"loss", "accuracy"}
    w = _double(sent)
    expected = _logits(w, x, _log_embeddings(w, x)).detach().numpy()
    saved, _ = load_model(save_model(tmp_path / "model", client.predictor, "0", "run", client.settings))
    for network in (client.predictor, saved):
        network._at_once = 30  # groups of inputs
        np.testing.assert_allclose(network(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_initial_classifiers_have_pytorchs_default_variance() -> None:
    maker = build_zero_shot(NetworkSettings(model="mlp"), (1, 8, 8), 10, Sizes(4, 1, 256, 128, 16), 1.0, 1).hypernetwork
    made = maker(torch.eye(4))
    for tensor, fan_in in zip(made, (64, 64, 64, 64, 32, 32), strict=True):
        if tensor.ndim == 3:
            assert tensor.std().item() == pytest.approx((3 * fan_in) ** -0.5, rel=0.2)
            assert (tensor[0] - tensor[1]).std() > 0.3 * tensor.std()  # other embeddings, other classifiers


def test_unseen_clients_get_models_of_their_distribution(tmp_path: Path) -> None:
    """Half of the clients mark their inputs and use other labels; no linear model fits both kinds."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(4, 1, 8, 8, generator=generator)

    def data(kind: int) -> Examples:
        y = torch.randint(4, (60,), generator=generator)
        x = prototypes[y] + 0.7 * torch.randn(60, 1, 8, 8, generator=generator)
        x[:, :, :, 0] = kind
        return Examples(x, (y + 2 * kind) % 4)

    training, new = [data(kind) for kind in (0, 1)], [data(kind) for kind in (0, 1)]
    accuracies = {}
    for method in ("fedavg", "hyperfedzero"):
        keys: dict[str, Value] = {
            "method": method, "optimizer": "adam", "learning-rate": 0.01, "local-epochs": 2, "hyperfedzero.scale": 8.0,
            "hyperfedzero.balance": 0.01, "hyperfedzero.entropy": 0.1, "hyperfedzero.hidden-width": 32,
        }  # fmt: skip
        clients = [_client(tmp_path, examples, **keys) for examples in (*training, *new)]
        model = clients[0].initial if method == "fedavg" else _sent(clients[0])
        for round in range(1, 21):
            first, second = (perform(client, "train", model, round=round).arrays for client in clients[:2])
            model = {name: (first[name] + second[name]) / 2 for name in model}
        accuracies[method] = np.mean([perform(client, "test", model).metrics["accuracy"] for client in clients[2:]])
    assert accuracies["hyperfedzero"] > accuracies["fedavg"] + 0.2


def test_one_example_and_fine_tuning(tmp_path: Path) -> None:
    client = _client(tmp_path, _examples(1))
    assert np.isfinite(perform(client, "train", _sent(client)).metrics["loss"])
    client = _client(tmp_path, **{"finetune-epochs": 5, "learning-rate": 0.1})
    metrics = perform(client, "test", _sent(client)).metrics
    assert metrics["loss"] < metrics["loss_global"]


def test_a_run_serves_everybody_and_another_goes_on_from_it(tmp_path: Path) -> None:
    run = Runs(tmp_path, RUN)
    first = read_metrics(run("first"))
    assert {"seen", "unseen", "unlabeled"} <= first[-1].keys()
    second = read_metrics(run("second", init="first", rounds=0))
    assert second[-1]["unseen"]["loss"] == pytest.approx(first[-1]["unseen"]["loss"])
    with pytest.raises(ConfigurationError, match=r"init: run 'first' has another extractor"):
        run("third", init="first", **{"hyperfedzero.embedding-size": 4})


def test_networks_with_other_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"model: 'cnn-bn' has layers other than dense"):
        Runs(tmp_path, RUN)("refused", model="cnn-bn")


def test_text(tmp_path: Path) -> None:
    network = build_zero_shot(
        NetworkSettings(model="char-lstm"), (5,), 3, Sizes(2, 0, 4, 4096, 2), 8.0, 1, codes=VOCABULARY_SIZE
    )
    assert network(torch.randint(0, 20, (2, 5))).shape == (2, 3)
