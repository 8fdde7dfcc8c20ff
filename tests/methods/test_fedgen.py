"""FedGen: the clients' loss against NumPy, the generator's step against an ensemble of heads, its limit FedAvg."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, softmax
from torch import nn
from torch.nn.functional import cross_entropy

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.fedgen import FREQUENCIES
from florilegium.clients.hyper.classwise import FedGenHyper
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import torch_draws, torch_generator
from florilegium.common.settings import Value
from florilegium.models.generator import build_generator, diversity_loss
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import task_of
from florilegium.strategies.core.server_step import ServerStep
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.fedgen import FedGen
from florilegium.strategies.folder.metrics_file import read_metrics
from tests.runs import Runs
from tests.support import make_client, perform, settings, with_network

CLASSES, FEATURES, INPUTS, NOISE, WIDTH = 4, 3, 5, 2, 6
LABELS = [0, 0, 2, 0, 1, 2]
KEYS: dict[str, Value] = {
    "method": "fedgen", "fedgen.noise-size": NOISE, "fedgen.generator-width": WIDTH, "batch-size": 6, "local-epochs": 1,
    "learning-rate": 0.1,
}  # fmt: skip


def _network(seed: int = 1) -> nn.Sequential:
    with torch_draws(seed, "test"):
        return nn.Sequential(OrderedDict(body=nn.Linear(INPUTS, FEATURES), head=nn.Linear(FEATURES, CLASSES)))


def _examples() -> Examples:
    x = np.random.default_rng(1).normal(size=(len(LABELS), INPUTS)).astype(np.float32)
    return Examples(torch.from_numpy(x), torch.tensor(LABELS))


def _generator_arrays(*, deaf: bool = False) -> Arrays:
    """Return a generator's arrays; ``deaf``: its features do not depend on the noise."""
    arrays = get_arrays(build_generator(CLASSES, NOISE, WIDTH, FEATURES, 1))
    arrays["hidden.1.running_mean"] += 0.1
    if deaf:
        arrays["hidden.0.weight"][:, :NOISE] = 0
    return arrays


def _sent(model: Arrays, generator: Arrays, frequencies: list[float]) -> Arrays:
    beside = {BESIDE + name: array for name, array in generator.items()}
    return model | beside | {BESIDE + FREQUENCIES: np.array(frequencies, np.float32)}


def test_a_clients_loss(tmp_path: Path) -> None:
    """Only class 3 is drawn from p̂, and the features do not depend on the noise, so that nothing is random."""
    network, generator = _network(), _generator_arrays(deaf=True)
    start, y = get_arrays(network), np.array(LABELS)
    keys = KEYS | {"fedgen.generated-weight": 3.0, "fedgen.latent-weight": 5.0, "fedgen.decay": 0.5}
    client = make_client(_examples(), network, folder=tmp_path, **keys)
    answer = perform(client, "train", _sent(start, generator, [0, 0, 0, 0.3]), round=2)

    def head(z: np.ndarray) -> np.ndarray:
        return z @ start["head.weight"].T + start["head.bias"]

    def generated(labels: np.ndarray) -> np.ndarray:
        h = generator["hidden.0.weight"][:, NOISE + labels].T
        h = (h - generator["hidden.1.running_mean"]) / np.sqrt(generator["hidden.1.running_var"] + 1e-5)
        return np.maximum(h, 0) @ generator["output.weight"].T + generator["output.bias"]

    x = _examples().x.numpy()
    log_p = log_softmax(head(x @ start["body.weight"].T + start["body.bias"]), axis=1)
    q = softmax(head(generated(y)), axis=1)
    own = -log_p[np.arange(6), y].mean()
    drawn = -log_softmax(head(generated(np.full(6, 3))), axis=1)[:, 3].mean()
    divergence = (q * (np.log(q) - log_p)).sum(axis=1).mean()
    # In round 2, α and β have decayed once.
    assert answer.metrics["loss"] == pytest.approx(own + 1.5 * drawn + 2.5 * divergence, rel=1e-5)
    # The head's bias has moved along the derivatives by the logits; q is a constant target.
    p, made = np.exp(log_p), softmax(head(generated(np.full(6, 3))), axis=1)
    slope = (p - np.eye(CLASSES)[y]) + 1.5 * (made - np.eye(CLASSES)[3]) + 2.5 * (p - q)
    np.testing.assert_allclose(answer.arrays["head.bias"], start["head.bias"] - 0.1 * slope.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(answer.arrays[BESIDE + FREQUENCIES], [3 / 6, 1 / 6, 2 / 6, 0], rtol=1e-6)
    assert answer.arrays.keys() == start.keys() | {BESIDE + FREQUENCIES}


def test_generated_features_train_the_classes_that_a_client_lacks(tmp_path: Path) -> None:
    network = _network()
    client = make_client(_examples(), network, folder=tmp_path, **KEYS, **{"fedgen.latent-weight": 0.0})
    start = get_arrays(network)
    after = perform(client, "train", _sent(start, _generator_arrays(deaf=True), [0, 0, 0, 1]), round=2).arrays
    plain = make_client(_examples(), _network(), folder=tmp_path, **{**KEYS, "method": "fedavg"})
    usual = perform(plain, "train", start, round=2).arrays
    assert after["head.bias"][3] > start["head.bias"][3] > usual["head.bias"][3]
    # Generated features enter the head only, and the body sees what it sees in FedAvg.
    np.testing.assert_array_equal(after["body.weight"], usual["body.weight"])


@pytest.mark.parametrize(("weight", "number"), [(0.0, 2), (1.0, 1)], ids=["no losses", "first round"])
def test_without_generated_features_it_is_fedavg(weight: float, number: int, tmp_path: Path) -> None:
    keys = KEYS | {"fedgen.generated-weight": weight, "fedgen.latent-weight": weight, "local-epochs": 3}
    start = get_arrays(_network())
    client = make_client(_examples(), _network(), folder=tmp_path, **keys)
    after = perform(client, "train", _sent(start, _generator_arrays(), [0.25] * 4), round=number).arrays
    plain = make_client(_examples(), _network(), folder=tmp_path, **{**keys, "method": "fedavg"})
    usual = perform(plain, "train", start, round=number).arrays
    assert all((after[name] == array).all() for name, array in usual.items())


def test_diversity_is_a_mean_over_pairs() -> None:
    rng = np.random.default_rng(1)
    ε, z = rng.normal(size=(5, NOISE)), rng.normal(size=(5, FEATURES))
    expected = np.exp(-(cdist(ε, ε, "sqeuclidean") / NOISE * cdist(z, z, "cityblock") / FEATURES).mean())
    assert diversity_loss(torch.from_numpy(ε), torch.from_numpy(z)).item() == pytest.approx(expected)


def _server(network: Arrays | None = None, **keys: Any) -> Any:
    strategy = object.__new__(FedGen)
    strategy.federation = with_network(get_arrays(_network()) if network is None else network)
    strategy.hyper = FedGenHyper(noise_size=NOISE, generator_width=WIDTH, generator_batch=8, **keys)
    strategy.settings = settings(method="fedgen")
    strategy.task = task_of(strategy.settings)
    strategy.step = ServerStep(strategy.settings)
    return strategy


def _outcome(model: Arrays, heads: list[Arrays], weights: list[float], frequencies: np.ndarray) -> Outcome:
    """Return the sums of clients that have trained only their heads."""
    changes = {
        name: np.asarray(sum(w * (head.get(name, array) - array) for w, head in zip(weights, heads, strict=True)))
        for name, array in model.items()
    }
    changes[BESIDE + FREQUENCIES] = (np.array(weights)[:, None] * (frequencies - 1 / CLASSES)).sum(axis=0)
    return Outcome(["0", "1"], changes, {"weight": np.array(weights)})


def test_the_generator_learns_from_the_ensemble_of_heads() -> None:
    """One step of Adam, which moves every parameter by the learning rate, against the gradient of equation 4."""
    strategy = _server(generator_steps=1, generator_learning_rate=0.01)
    model = get_arrays(_network())
    strategy.server_part(model)
    weights, frequencies = [1.0, 3.0], np.array([[1, 0, 0, 0], [0, 0, 0.5, 0.5]])
    networks = [_network(2), _network(3)]
    heads = [{n: a for n, a in get_arrays(network).items() if n.startswith("head")} for network in networks]
    before = build_generator(CLASSES, NOISE, WIDTH, FEATURES, 1)
    strategy.learn(SimpleNamespace(number=4), model, _outcome(model, heads, weights, frequencies))

    p̂ = np.array([0.25, 0, 0.375, 0.375], np.float32)
    np.testing.assert_allclose(strategy.beside[BESIDE + FREQUENCIES], p̂)
    draws = torch_generator(1, "generated", 4)
    y = torch.multinomial(torch.from_numpy(p̂), 8, replacement=True, generator=draws)
    ε = torch.randn(8, NOISE, generator=draws)
    z = before(ε, y)
    logits = sum(w / 4 * network.head(z) for w, network in zip(weights, networks, strict=True))
    slopes = torch.autograd.grad(cross_entropy(logits, y) + diversity_loss(ε, z), [*before.parameters()])
    for (name, parameter), slope in zip(before.named_parameters(), slopes, strict=True):
        expected = parameter.detach() - 0.01 * slope / (slope.abs() + 1e-8)
        np.testing.assert_allclose(strategy.beside[BESIDE + name], expected.numpy(), atol=2e-4, err_msg=name)


def test_generated_features_come_to_be_taken_for_their_class() -> None:
    strategy = _server(generator_steps=200, generator_learning_rate=0.01)
    model = get_arrays(network := _network())
    strategy.server_part(model)
    strategy.learn(SimpleNamespace(number=1), model, _outcome(model, [model, model], [1, 1], np.full((2, 4), 0.25)))
    made = build_generator(CLASSES, NOISE, WIDTH, FEATURES, 1)
    set_arrays(made, {n: strategy.beside[BESIDE + n] for n in get_arrays(made)})
    z, _ = made.eval().draw(y := torch.arange(CLASSES).repeat(50), torch.Generator().manual_seed(1))
    assert (network.head(z).argmax(dim=1) == y).float().mean() > 0.9


def test_a_generator_that_diverges_ends_the_run() -> None:
    strategy = _server(generator_learning_rate=1e30)
    model = get_arrays(_network())
    strategy.server_part(model)
    outcome = _outcome(model, [model, model], [1, 1], np.full((2, 4), 0.25))
    with pytest.raises(RunError, match=r"lower fedgen\.generator-learning-rate"):
        strategy.learn(SimpleNamespace(number=1), model, outcome)


def test_noise_on_frequencies_does_no_harm() -> None:
    strategy = _server(generator_steps=1)
    model = get_arrays(_network())
    strategy.server_part(model)
    noisy = np.array([[-1, 0.5, 0, 0], [-1, 0.5, 0, 0]])
    strategy.learn(SimpleNamespace(number=1), model, _outcome(model, [model, model], [1, 1], noisy))
    np.testing.assert_allclose(strategy.beside[BESIDE + FREQUENCIES], [0, 0.5, 0, 0])
    strategy.learn(SimpleNamespace(number=2), model, _outcome(model, [model, model], [1, 1], noisy - 3))
    np.testing.assert_array_equal(strategy.beside[BESIDE + FREQUENCIES], 0.25)


def test_frequencies_that_no_client_can_have_do_not_end_the_run() -> None:
    model = get_arrays(_network())
    strategy = _server()
    strategy.server_part(model)
    false = np.array([[3e38, 0.1, 0.1, 0.1], [3e38, 3e38, 0.1, 0.1]])
    strategy.learn(SimpleNamespace(number=1), model, _outcome(model, [model, model], [1, 1], false))
    np.testing.assert_allclose(strategy.beside[BESIDE + FREQUENCIES], [1, 1, 0.1, 0.1], rtol=1e-5)


def test_without_frequencies_the_earlier_ones_stay() -> None:
    strategy = _server(generator_steps=1)
    model = get_arrays(_network())
    strategy.server_part(model)
    outcome = _outcome(model, [model, model], [1, 1], np.zeros((2, 4)))
    del outcome.arrays[BESIDE + FREQUENCIES]  # arrays beside the model are optional
    strategy.learn(SimpleNamespace(number=1), model, outcome)
    np.testing.assert_array_equal(strategy.beside[BESIDE + FREQUENCIES], 0.25)


def test_networks_that_end_otherwise_are_refused() -> None:
    arrays = {"conv.weight": np.zeros((2, 2, 3, 3)), "out.weight": np.zeros((2, 2, 1, 1))}
    with pytest.raises(ConfigurationError, match="single dense layer"):
        _server(arrays).server_part(arrays)


def test_a_checkpoint_holds_the_generator_and_its_optimizer() -> None:
    """A server that is restored after a round goes on as the one that was not stopped."""
    servers = _server(generator_steps=3), _server(generator_steps=3)
    model = get_arrays(_network())
    outcome = _outcome(model, [model, model], [1, 1], np.full((2, 4), 0.25))
    for server in servers:
        server.server_part(model)
    servers[0].learn(SimpleNamespace(number=1), model, outcome)
    arrays, facts = servers[0].state()
    servers[1].restore({name: array.copy() for name, array in arrays.items()}, facts)
    outcome.arrays[BESIDE + FREQUENCIES] = np.zeros(4)  # the change of p̂
    for server in servers:
        server.learn(SimpleNamespace(number=2), model, outcome)
    states = [server.state()[0] for server in servers]
    assert states[0].keys() == states[1].keys()
    assert all((states[0][name] == array).all() for name, array in states[1].items())


def test_unseen_clients_tune_the_global_model(tmp_path: Path) -> None:
    keys: dict[str, Value] = {
        "method": "fedgen", "num-clients": 6, "participation": 0.5, "local-epochs": 1, "unseen-fraction": 0.34,
        "finetune-epochs": 2, "rounds": 2, "evaluate-every": 0,
    }  # fmt: skip
    figures = read_metrics(Runs(tmp_path, keys)("run"))[-1]["unseen"]
    assert figures["accuracy"] > 0.8 > figures["accuracy_global"]
