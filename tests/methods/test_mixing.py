"""APFL, FedALA: one round against the papers' equations, limits, what is tested, clients never seen."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from florilegium.clients.apfl import ALPHA
from florilegium.clients.fedala import WEIGHTS
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from tests.support import make_client, perform, settings

KEYS: dict[str, Value] = {"model": "mlp", "local-epochs": 2, "batch-size": 16, "learning-rate": 0.1, "momentum": 0.0}
NETWORK = build("mlp", (1, 8, 8), 10, 1)
START = get_arrays(NETWORK)


def _examples(count: int = 12) -> Examples:
    generator = torch.Generator().manual_seed(1)
    return Examples(torch.randn(count, 1, 8, 8, generator=generator), torch.randint(4, (count,), generator=generator))


def _client(method: str, folder: Path, examples: Examples | None = None, **keys: Value) -> Any:
    return make_client(examples or _examples(), NETWORK, folder=folder, **{**KEYS, "method": method, **keys})


def _drawn(seed: int) -> Arrays:
    """Return other arrays for the network, near its initial ones."""
    rng = np.random.default_rng(seed)
    return {name: (a + 0.1 * rng.normal(size=a.shape)).astype(np.float32) for name, a in START.items()}


def _assert_equal(first: Arrays, second: Arrays) -> None:
    assert first.keys() == second.keys()
    assert all(np.array_equal(array, second[name]) for name, array in first.items())


def _assert_close(first: Arrays, second: Arrays) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], rtol=1e-4, atol=1e-6, err_msg=name)


class TestAPFL:
    @pytest.mark.parametrize("adapt", ["round", "step", "never"])
    def test_steps_are_those_of_the_paper(self, adapt: str, tmp_path: Path) -> None:
        """Two steps on all examples: w − η∇f(w), v − ηα∇f(v̄), α − η⟨v − w, ∇f(v̄)⟩; in round 2, η has halved."""
        keys: dict[str, Value] = {"learning-rate": 0.2, "learning-rate-decay": 0.5, "decay-rounds": 1}
        client, data, η = _client("apfl", tmp_path, **{**keys, "apfl.adapt": adapt}), _examples(), 0.1
        w, v, α = _drawn(1), _drawn(2), 0.3
        client.state.save(v)
        client.state.save({ALPHA: np.array([α], np.float32)}, ALPHA)
        answer = perform(client, "train", w, round=2)

        def gradient(arrays: Arrays) -> Arrays:
            tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in arrays.items()}
            cross_entropy(functional_call(NETWORK, tensors, (data.x,)), data.y).backward()
            return {name: tensor.grad.numpy() for name, tensor in tensors.items() if tensor.grad is not None}

        for step in range(2):
            mixed = gradient({name: α * v[name] + (1 - α) * w[name] for name in w})
            slope = sum(float(((v[name] - w[name]) * mixed[name]).sum()) for name in w)
            own = gradient(w)
            v, w = ({n: a - η * f * g[n] for n, a in m.items()} for m, f, g in ((v, α, mixed), (w, 1, own)))
            if adapt == "step" or (adapt == "round" and step == 0):
                α = min(1.0, max(0.0, α - η * slope))
        _assert_close(answer.arrays, w)
        _assert_close(client.state.load(), v)
        assert answer.metrics[ALPHA] == pytest.approx(α, rel=1e-4)
        assert client.state.load(ALPHA)[ALPHA][0] == pytest.approx(α, rel=1e-4)
        assert (answer.metrics[ALPHA] == np.float32(0.3)) == (adapt == "never")

    @pytest.mark.parametrize("adapt", ["step", "never"])
    def test_steps_of_pfllib(self, adapt: str, tmp_path: Path) -> None:
        """Two steps on all examples: each model its own; then α along the gradients from before, and v the mixture."""
        keys: dict[str, Value] = {"apfl.rule": "pfllib", "apfl.adapt": adapt}
        client, data, η = _client("apfl", tmp_path, **keys), _examples(), 0.1
        w, v, α = _drawn(1), _drawn(2), 0.3
        client.state.save(v)
        client.state.save({ALPHA: np.array([α], np.float32)}, ALPHA)
        answer = perform(client, "train", w)
        received = w

        def gradient(arrays: Arrays) -> Arrays:
            tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in arrays.items()}
            cross_entropy(functional_call(NETWORK, tensors, (data.x,)), data.y).backward()
            return {name: tensor.grad.numpy() for name, tensor in tensors.items() if tensor.grad is not None}

        for _ in range(2):
            own, common = gradient(v), gradient(w)
            v, w = ({n: a - η * g[n] for n, a in m.items()} for m, g in ((v, own), (w, common)))
            if adapt == "step":
                slope = sum(float(((v[n] - w[n]) * (α * own[n] + (1 - α) * common[n])).sum()) for n in w)
                α = min(1.0, max(0.0, α - η * (slope + 0.02 * α)))
        mixture = {name: α * v[name] + (1 - α) * w[name] for name in w}
        _assert_close(answer.arrays, w)
        _assert_close(client.state.load(), mixture)
        assert answer.metrics[ALPHA] == pytest.approx(α, rel=1e-4)
        set_arrays(client.model, received)
        assert client.personalise()
        _assert_close(get_arrays(client.model), mixture)

    @pytest.mark.parametrize(("slope", "limit"), [(-1.0, 1.0), (1.0, 0.0)])
    def test_the_weight_stays_between_0_and_1(self, slope: float, limit: float, tmp_path: Path) -> None:
        client, w = _client("apfl", tmp_path, **{"learning-rate": 50.0, "local-epochs": 1}), _drawn(1)
        tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in w.items()}
        cross_entropy(functional_call(NETWORK, tensors, (_examples().x,)), _examples().y).backward()
        client.state.save({n: a + slope * 1e-2 * tensors[n].grad.numpy() for n, a in w.items()})  # type: ignore[union-attr]
        assert perform(client, "train", w).metrics[ALPHA] == limit

    def test_weight_0_is_fedavg_and_1_is_local_training(self, tmp_path: Path) -> None:
        keys: dict[str, Value] = {"batch-size": 5, "momentum": 0.9, "max-grad-norm": 1.0, "apfl.adapt": "never"}
        none, all_own = (_client("apfl", tmp_path / f"{α}", **keys, **{"apfl.alpha": α}) for α in (0.0, 1.0))
        plain, local = _client("fedavg", tmp_path / "avg", **keys), _client("local", tmp_path / "local", **keys)
        for round in (1, 2):
            answers = [perform(client, "train", _drawn(round), round=round) for client in (plain, none, all_own)]
            for answer in answers[1:]:
                _assert_equal(answer.arrays, answers[0].arrays)
                assert answer.metrics["loss"] == answers[0].metrics["loss"]
            perform(local, "train", {}, round=round)
            _assert_equal(all_own.state.load(), local.state.load())
        for α, arrays in ((none, _drawn(3)), (all_own, local.state.load())):
            perform(α, "test", _drawn(3))
            _assert_equal(get_arrays(NETWORK), arrays)

    def test_frozen_parameters_are_the_network_s(self, tmp_path: Path) -> None:
        """They may be those of an earlier run, which the client's own model has not started from."""
        w, frozen = _drawn(1), ["fc1.1.weight", "fc1.1.bias"]
        shared = {name: array for name, array in w.items() if name not in frozen}
        try:
            NETWORK[0].requires_grad_(False)
            client = _client("apfl", tmp_path, **{"apfl.alpha": 1.0, "apfl.adapt": "never"})
            assert client.initial.keys() == shared.keys()
            set_arrays(NETWORK, w)
            perform(client, "train", shared)
            v = client.state.load()
            assert v.keys() == shared.keys()
            alone = make_client(_examples(), NETWORK, folder=tmp_path / "alone", **{**KEYS, "method": "fedavg"})
            _assert_equal(v, perform(alone, "train", client.initial).arrays)
            perform(client, "test", shared)
        finally:
            NETWORK[0].requires_grad_(True)
        _assert_equal(get_arrays(NETWORK), {**w, **v})

    def test_running_statistics_of_the_personal_model_are_its_own(self, tmp_path: Path) -> None:
        """α = 1 is local training with batch norm, too."""
        arrays = []
        for method, keys in (("apfl", {"apfl.alpha": 1.0, "apfl.adapt": "never"}), ("local", {})):
            own: dict[str, Value] = {**KEYS, "method": method, **keys}
            client = make_client(_examples(), build("cnn-bn", (1, 8, 8), 10, 1), folder=tmp_path / method, **own)
            zeros = {name: np.zeros_like(array) for name, array in client.initial.items()}
            perform(client, "train", zeros)
            arrays.append(client.state.load())
        _assert_equal(*arrays)

    def test_the_mixture_is_tested_and_new_clients_have_none(self, tmp_path: Path) -> None:
        client, w, v = _client("apfl", tmp_path, **{"apfl.alpha": 0.25}), _drawn(1), _drawn(2)
        assert "accuracy_global" not in perform(client, "test", w).metrics
        client.state.save(v)
        assert "accuracy_global" in perform(client, "test", w).metrics
        _assert_close(get_arrays(NETWORK), {name: 0.25 * v[name] + 0.75 * w[name] for name in w})
        keys: dict[str, Value] = {"finetune-epochs": 2}
        tuned = [perform(_client(m, tmp_path / m, **keys), "test", w).metrics for m in ("apfl", "fedavg")]
        assert tuned[0] == tuned[1]

    def test_text(self, tmp_path: Path) -> None:
        """The LSTM takes the mixed parameters, not its own."""
        network = build("char-lstm", (5,), 6, 1)
        examples = Examples(torch.randint(20, (3, 5)), torch.tensor([0, 1, 5]))
        keys: dict[str, Value] = {**KEYS, "method": "apfl", "apfl.alpha": 1.0, "local-steps": 1}
        client = make_client(examples, network, folder=tmp_path, **keys)
        own = get_arrays(network)
        received = {name: np.zeros_like(array) for name, array in own.items()}
        perform(client, "train", received)
        tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in own.items()}
        cross_entropy(functional_call(network, tensors, (examples.x,)), examples.y).backward()
        moved = client.state.load()
        for name, tensor in tensors.items():
            assert tensor.grad is not None
            moves = (own[name] - moved[name]) / client.settings.learning_rate
            np.testing.assert_allclose(moves, tensor.grad.numpy(), rtol=1e-2, atol=1e-4)


def _head_gradient(z: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of the mean cross-entropy of a dense layer, by the formula: (p − 1_y)ᵀz."""
    scores = z @ weight.T + bias
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p.T @ z / len(y), p.mean(axis=0)


def _loss(z: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> float:
    """Return the mean cross-entropy of a dense layer."""
    scores = z @ weight.T + bias
    top = scores.max(axis=1, keepdims=True)
    logs = scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
    return float(-logs[np.arange(len(y)), y].mean())


def _learned(
    data: Examples, received: Arrays, own: Arrays, W: Arrays, η: float, epochs: int, losses: list[float] | None = None
) -> Arrays:
    """Return FedALA's W after some epochs of one batch each; add the loss of each to ``losses``."""
    with torch.no_grad():
        tensors = {name: torch.from_numpy(array) for name, array in received.items()}
        z = functional_call(NETWORK[:-1], {n: t for n, t in tensors.items() if "fc3" not in n}, (data.x,)).numpy()
    W = {name: array.astype(np.float64) for name, array in W.items()}
    for _ in range(epochs):
        mixed = [own[name] + (received[name] - own[name]) * W[name] for name in W]
        slopes = _head_gradient(z.astype(np.float64), data.y.numpy(), *mixed)
        if losses is not None:
            losses.append(_loss(z.astype(np.float64), data.y.numpy(), *mixed))
        for (name, weight), slope in zip(W.items(), slopes, strict=True):
            W[name] = np.clip(weight - η * slope * (received[name] - own[name]), 0, 1)
    return W


class TestFedALA:
    LAST = ("fc3.weight", "fc3.bias")

    def _with_own(self, folder: Path, W: Arrays | None = None, **keys: Value) -> tuple[Any, Arrays, Arrays]:
        """Return a client that has trained, the model it receives, and the last block that it kept."""
        client, own = _client("fedala", folder, **keys), {name: _drawn(2)[name] for name in self.LAST}
        client.state.save(own)
        if W is not None:
            client.state.save(W, WEIGHTS)
        return client, _drawn(1), own

    def _assert_mixed(self, received: Arrays, own: Arrays, W: Arrays) -> None:
        """Check that the network has the received body and the mixed last block."""
        mixed = {name: own[name] + (received[name] - own[name]) * W[name] for name in own}
        _assert_close(get_arrays(NETWORK), received | mixed)

    def test_weights_take_one_step_per_round_and_are_kept(self, tmp_path: Path) -> None:
        W = {name: np.full(START[name].shape, 0.5, np.float32) for name in self.LAST}
        W["fc3.bias"][:5] = 1
        W["fc3.bias"][5:] = 0
        client, received, own = self._with_own(
            tmp_path, W, **{"fedala.sample": 1.0, "fedala.weight-learning-rate": 8.0}
        )
        expected = _learned(_examples(), received, own, W, 8.0, 1)
        assert {0.0, 1.0} <= {*expected["fc3.bias"].tolist()}
        assert max(np.abs(expected[name] - W[name]).max() for name in W) > 0.05
        perform(client, "test", received)
        self._assert_mixed(received, own, expected)
        _assert_equal(client.state.load(WEIGHTS), W)  # a test changes nothing
        perform(client, "train", received)
        _assert_close(client.state.load(WEIGHTS), {n: a.astype(np.float32) for n, a in expected.items()})
        trained = get_arrays(NETWORK)
        _assert_equal(client.state.load(), {name: trained[name] for name in self.LAST})

    @pytest.mark.parametrize(("tolerance", "epochs"), [(1e9, 10), (1e-12, 13)])
    def test_weights_are_first_learned_until_their_loss_stands(
        self, tolerance: float, epochs: int, tmp_path: Path
    ) -> None:
        keys: dict[str, Value] = {"fedala.sample": 1.0, "fedala.tolerance": tolerance, "fedala.first-epochs": 13}
        client, received, own = self._with_own(tmp_path, **keys)
        ones = {name: np.ones_like(own[name]) for name in own}
        perform(client, "test", received)
        self._assert_mixed(received, own, _learned(_examples(), received, own, ones, 1.0, epochs))

    def test_the_last_ten_losses_alone_say_whether_weights_have_converged(self, tmp_path: Path) -> None:
        """The tolerance lies between the deviations that end after 13 and after 14 epochs."""
        received, own = _drawn(1), {name: _drawn(2)[name] for name in self.LAST}
        ones = {name: np.ones_like(own[name]) for name in own}
        losses: list[float] = []
        _learned(_examples(), received, own, ones, 1.0, 14, losses)
        before, after = np.std(losses[3:13]), np.std(losses[4:14])
        assert np.std(losses) > before > 1.01 * after > 1e-3  # so that no earlier window, and not all losses, are below
        keys: dict[str, Value] = {"fedala.sample": 1.0, "fedala.tolerance": float(np.sqrt(before * after))}
        client, *_ = self._with_own(tmp_path, **keys, **{"fedala.first-epochs": 40})
        perform(client, "test", received)
        self._assert_mixed(received, own, _learned(_examples(), received, own, ones, 1.0, 14))

    def test_weights_of_examples_count(self, tmp_path: Path) -> None:
        """Weights 0 and 2 of six examples each: the mean loss is that of the six with weight 2."""
        data, ones = _examples(), {name: np.ones_like(START[name]) for name in self.LAST}
        weighted = Examples(data.x, data.y, weights=2 * (torch.arange(12) < 6).float())
        received, own = _drawn(1), {name: _drawn(2)[name] for name in self.LAST}
        client = _client("fedala", tmp_path, weighted, **{"fedala.sample": 1.0, "fedala.weight-learning-rate": 8.0})
        client.state.save(own)
        client.state.save(ones, WEIGHTS)
        perform(client, "test", received)
        self._assert_mixed(received, own, _learned(data.rows(slice(6)), received, own, ones, 8.0, 1))

    @pytest.mark.parametrize(("count", "used"), [(2, 1), (3, 2)])
    def test_a_share_of_the_examples_is_used(self, count: int, used: int, tmp_path: Path) -> None:
        """Half of them, rounded up."""
        data, ones = _examples(count), {name: np.ones_like(START[name]) for name in self.LAST}
        keys: dict[str, Value] = {"fedala.sample": 0.5, "fedala.weight-learning-rate": 0.5}
        client = _client("fedala", tmp_path, data, **keys)
        received, own = _drawn(1), {name: _drawn(2)[name] for name in self.LAST}
        client.state.save(own)
        client.state.save(ones, WEIGHTS)
        perform(client, "train", received)
        found = client.state.load(WEIGHTS)
        chosen = [torch.tensor(rows) for rows in combinations(range(count), used)]
        choices = [_learned(data.rows(rows), received, own, ones, 0.5, 1) for rows in chosen]
        assert any(all(np.allclose(found[n], one[n], atol=1e-5) for n in found) for one in choices)

    def test_weights_of_1_are_fedavg(self, tmp_path: Path) -> None:
        keys: dict[str, Value] = {"batch-size": 5, "fedala.weight-learning-rate": 0.0}
        ala, plain = _client("fedala", tmp_path / "ala", **keys), _client("fedavg", tmp_path / "avg", **keys)
        for round in (1, 2, 3):
            answers = [perform(client, "train", _drawn(round), round=round).arrays for client in (ala, plain)]
            _assert_equal(*answers)

    def test_learning_weights_leaves_batch_norm_as_it_is(self, tmp_path: Path) -> None:
        network, answers = build("cnn-bn", (1, 8, 8), 10, 1), []
        start = get_arrays(network)
        for method in ("fedala", "fedavg"):
            keys: dict[str, Value] = {"fedala.weight-learning-rate": 0.0, "fedala.blocks": 0}
            client = make_client(_examples(), network, folder=tmp_path / method, **{**KEYS, "method": method, **keys})
            perform(client, "train", start)
            answers.append(perform(client, "train", start, round=2).arrays)
        _assert_equal(*answers)

    @pytest.mark.parametrize(("blocks", "mixed"), [(1, {"fc3"}), (2, {"fc2", "fc3"}), (0, {"fc1", "fc2", "fc3"})])
    def test_the_last_blocks_are_mixed(self, blocks: int, mixed: set[str], tmp_path: Path) -> None:
        client = _client("fedala", tmp_path, **{"fedala.blocks": blocks})
        perform(client, "train", _drawn(1))
        perform(client, "test", _drawn(2), round=2)
        changed = {
            name.split(".")[0] for name, a in get_arrays(NETWORK).items() if not np.array_equal(a, _drawn(2)[name])
        }
        assert changed == mixed

    def test_a_frozen_last_block_is_not_mixed(self, tmp_path: Path) -> None:
        """Nothing is left to mix, so that training is FedAvg's."""
        try:
            NETWORK[-1].requires_grad_(False)
            ala, plain = _client("fedala", tmp_path / "ala"), _client("fedavg", tmp_path / "avg")
            for round in (1, 2):
                _assert_equal(*(perform(client, "train", START, round=round).arrays for client in (ala, plain)))
        finally:
            NETWORK[-1].requires_grad_(True)

    def test_new_clients_have_the_global_model(self, tmp_path: Path) -> None:
        assert "accuracy_global" not in perform(_client("fedala", tmp_path), "test", _drawn(1)).metrics
        keys: dict[str, Value] = {"finetune-epochs": 2}
        tuned = [perform(_client(m, tmp_path / m, **keys), "test", _drawn(1)).metrics for m in ("fedala", "fedavg")]
        assert tuned[0] == tuned[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("apfl.alpha", 1.5), ("apfl.adapt", "always"), ("fedala.blocks", -1), ("fedala.sample", 0.0),
        ("fedala.tolerance", 0.0), ("fedala.first-epochs", 0),
    ],
)  # fmt: skip
def test_wrong_values(key: str, value: Value) -> None:
    with pytest.raises(ConfigurationError, match=key):
        settings(method=key.split(".")[0], **{key: value})
