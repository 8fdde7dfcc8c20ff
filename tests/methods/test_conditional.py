"""FedCP and GPFL: a round of two steps against the papers' formulas, what clients predict with, saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, layer_norm

from florilegium.clients.core.export import load_model, save_model
from florilegium.clients.core.wire import Reply
from florilegium.clients.families.accompanied import beside
from florilegium.clients.fedcp import BANDWIDTHS
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.conditioned import Guidance, Policy, build_guidance, build_policy
from florilegium.models.discrepancy import discrepancy
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, perform

KEYS: dict[str, Value] = {"model": "mlp", "learning-rate": 0.5, "batch-size": 12, "local-epochs": 1, "momentum": 0.0}
RUN: dict[str, Value] = {
    "model": "mlp", "num-clients": 4, "unseen-fraction": 0.25, "rounds": 2, "local-epochs": 1, "batch-size": 32,
    "evaluate-every": 1, "finetune-epochs": 1,
}  # fmt: skip
Named = dict[str, Tensor]


def _examples(n: int = 12, classes: int = 4) -> Examples:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 1, 8, 8, generator=generator)
    return Examples(x, torch.randint(classes, (n,), generator=generator))


def _client(method: str, folder: Path, examples: Examples | None = None, **keys: Value) -> Any:
    return make_client(examples or _examples(), build("mlp", (1, 8, 8), 10, 1), folder=folder, method=method,
                       **{**KEYS, **keys})  # fmt: skip


def _sent(method: str) -> Arrays:
    """Return what the server sends, other values than clients begin with."""
    network = get_arrays(build("mlp", (1, 8, 8), 10, 2))
    if method == "fedcp":
        return network | beside(build_policy(32, 1))
    return {n: a for n, a in network.items() if not n.startswith("fc3")} | beside(build_guidance(10, 32, 1))


def _tensors(arrays: Arrays) -> Named:
    return {n.removeprefix("beside."): torch.from_numpy(a).double().requires_grad_() for n, a in arrays.items()}


def _features(w: Named, x: Tensor) -> Tensor:
    hidden = torch.relu(x.double().flatten(1) @ w["fc1.1.weight"].T + w["fc1.1.bias"])
    return torch.relu(hidden @ w["fc2.0.weight"].T + w["fc2.0.bias"])


def _stepped(loss: Tensor, w: Named, rate: float) -> Arrays:
    """Return the tensors after a gradient step."""
    gradients = torch.autograd.grad(loss, list(w.values()))
    return {n: (p - rate * g).detach().numpy() for (n, p), g in zip(w.items(), gradients, strict=True)}


def _head(client: Any, arrays: Arrays) -> None:
    """Give a client a head of its own, as if it had trained before."""
    rng = np.random.default_rng(0)
    client.state.save({n: a + rng.normal(0, 0.3, a.shape).astype("f4") for n, a in arrays.items()})


def _assert_close(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-6, err_msg=name)


def test_discrepancy_is_the_mean_of_kernels_over_all_pairs() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(4, 3)), rng.normal(1, 2, size=(5, 3))

    def mean(u: Any, v: Any) -> float:
        return float(np.mean([[sum(np.exp(-((a - b) ** 2).sum() / (2 * s)) for s in (1, 7)) for b in v] for a in u]))

    expected = mean(x, x) + mean(y, y) - 2 * mean(x, y)
    assert discrepancy(torch.from_numpy(x), torch.from_numpy(y), (1, 7)).item() == pytest.approx(expected)


class TestFedCP:
    def test_a_round_of_two_steps(self, tmp_path: Path) -> None:
        """v and the received features stay what they were when the round began."""
        keys: dict[str, Value] = {"fedcp.discrepancy": 200.0, "local-epochs": 2, "learning-rate": 0.05}
        client, sent, examples = _client("fedcp", tmp_path, **keys), _sent("fedcp"), _examples()
        own = {n: a for n, a in sent.items() if n.startswith("fc3")}
        _head(client, own)
        head = {f"own.{n}": a for n, a in client.state.load().items()}
        answer = perform(client, "train", sent)
        w, shared = _tensors({n: a for n, a in sent.items() if n not in own} | head), _tensors(own)
        v = w["own.fc3.weight"].detach().sum(dim=0)
        received = _features(w, examples.x).detach()
        for _ in range(2):
            h = _features(w, examples.x)
            a = (v / v.norm() * h) @ w["layers.0.weight"].T + w["layers.0.bias"]
            a = torch.relu(layer_norm(a, (64,), w["layers.1.weight"], w["layers.1.bias"]))
            r = torch.softmax(torch.stack([a[:, :32], a[:, 32:]]), dim=0)[0]
            logits = (r * h) @ w["own.fc3.weight"].T + w["own.fc3.bias"]
            logits = logits + ((1 - r) * h) @ shared["fc3.weight"].T + shared["fc3.bias"]
            loss = cross_entropy(logits, examples.y) + 200 * discrepancy(h, received, BANDWIDTHS)
            after = _stepped(loss, w, 0.05)
            w = _tensors(after)
        kept = {n.removeprefix("own."): after.pop(n) for n in head}
        _assert_close(client.state.load(), kept)
        returned = {n.removeprefix("beside."): array for n, array in answer.arrays.items()}
        _assert_close(returned, after | {n: (array + own[n]) / 2 for n, array in kept.items()})

    def test_the_discrepancy_holds_features_where_they_were(self, tmp_path: Path) -> None:
        sent, examples = _sent("fedcp"), _examples()
        before = _features(_tensors(sent), examples.x)
        moved = []
        for λ in (0.0, 50.0):
            keys: dict[str, Value] = {"fedcp.discrepancy": λ, "local-epochs": 8}
            answer = perform(_client("fedcp", tmp_path / str(λ), **keys), "train", sent)
            moved.append((_features(_tensors(answer.arrays), examples.x) - before).norm().item())
        assert moved[1] < 0.7 * moved[0]

    def test_gumbel_noise_is_drawn_for_each_client_and_round(self, tmp_path: Path) -> None:
        keys: list[dict[str, Value]] = [{"fedcp.gumbel": gumbel, "local-epochs": 2} for gumbel in (False, True)]
        answers = [
            perform(_client("fedcp", tmp_path / str(i), **keys[i > 0]), "train", _sent("fedcp"), round=n)
            for i, n in ((0, 1), (1, 1), (2, 1), (3, 2))
        ]
        losses = [answer.metrics["loss"] for answer in answers]
        assert losses[1] == losses[2]
        assert len(set(losses)) == 3

    def test_logistic_noise_is_gumbel_noise_on_both_numbers(self) -> None:
        """The mean of r over many draws, against PyTorch's own Gumbel softmax."""
        policy, generator = Policy(2), torch.Generator().manual_seed(1)
        inputs = torch.tensor([[0.5, -1.0]]).expand(10_000, 2)
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(1)
            noise = torch.rand(inputs.shape, generator=generator).logit(1e-6)
            a = policy.layers(inputs).view(-1, 2, 2)
            expected = torch.nn.functional.gumbel_softmax(a, dim=1)[:, 0]
            torch.testing.assert_close(policy(inputs, noise).mean(0), expected.mean(0), atol=0.02, rtol=0)

    def test_a_new_client_gives_both_parts_of_its_features_to_the_shared_head(self, tmp_path: Path) -> None:
        client, sent, examples = _client("fedcp", tmp_path), _sent("fedcp"), _examples()
        metrics = perform(client, "test", sent).metrics
        w = _tensors(sent)
        logits = _features(w, examples.x) @ w["fc3.weight"].T + w["fc3.bias"]
        assert metrics["loss_global"] == pytest.approx(cross_entropy(logits, examples.y).item(), rel=1e-5)
        doubled = cross_entropy(logits + w["fc3.bias"], examples.y)
        assert metrics["loss"] == pytest.approx(doubled.item(), rel=1e-5)


class TestGPFL:
    @pytest.mark.parametrize("kept", [True, False])
    def test_a_round_of_two_steps(self, kept: bool, tmp_path: Path) -> None:
        """Conditions and the received embeddings stay what they were when the round began; the first head is θ₀'s."""
        keys: dict[str, Value] = {"gpfl.magnitude": 0.7, "gpfl.decay": 0.3, "local-epochs": 2}
        client, sent, examples = _client("gpfl", tmp_path, **keys), _sent("gpfl"), _examples()
        first = {n: a for n, a in client.initial.items() if n.startswith("fc3")}
        if kept:
            _head(client, first)
        head = {f"own.{n}": a for n, a in (client.state.load() or first).items()}
        set_arrays(client.model, get_arrays(build("mlp", (1, 8, 8), 10, 3)))  # as another client has left it
        answer = perform(client, "train", sent)
        w = _tensors(sent | head)

        def valve(h: Tensor, c: Tensor) -> Tensor:
            def part(name: str) -> Tensor:
                z = torch.relu(w[f"valve.{name}.0.weight"] @ c + w[f"valve.{name}.0.bias"])
                return layer_norm(z, (32,), w[f"valve.{name}.2.weight"], w[f"valve.{name}.2.bias"])

            return torch.relu(h * (part("scale") + 1) + part("shift"))

        received, losses = w["embeddings"].detach(), []
        counts = np.bincount(examples.y.numpy(), minlength=10)
        for _ in range(2):
            h = _features(w, examples.x)
            f_p = valve(h, torch.from_numpy(counts / 12) @ received)
            f_g = valve(h, received.mean(dim=0))
            cosines = torch.nn.functional.cosine_similarity(f_g[:, None], w["embeddings"][None], dim=2)
            loss = cross_entropy(f_p @ w["own.fc3.weight"].T + w["own.fc3.bias"], examples.y)
            loss = loss + cross_entropy(cosines, examples.y)
            loss = loss + 0.7 * (f_g - received[examples.y]).square().sum(dim=1).sqrt().mean()
            decayed = sum(p.square().sum() for n, p in w.items() if n.startswith(("embeddings", "valve")))
            after = _stepped(loss + 0.15 * decayed, w, 0.5)
            losses.append(loss.item())
            w = _tensors(after)
        _assert_close(client.state.load(), {n.removeprefix("own."): after.pop(n) for n in head})
        _assert_close({n.removeprefix("beside."): array for n, array in answer.arrays.items()}, after)
        assert answer.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)

    def test_a_client_without_a_head_takes_the_nearest_embedding(self, tmp_path: Path) -> None:
        client, sent, examples = _client("gpfl", tmp_path), _sent("gpfl"), _examples()
        metrics = perform(client, "test", sent).metrics
        assert "accuracy_global" not in metrics
        guidance = Guidance(10, 32)
        guidance.load_state_dict({n: t.detach().float() for n, t in _tensors(sent).items() if not n.startswith("fc")})
        embeddings = guidance.embeddings
        f = guidance.valve(_features(_tensors(sent), examples.x).float(), embeddings.mean(dim=0))
        angles = torch.nn.functional.cosine_similarity(f[:, None], embeddings[None], dim=2).arccos()
        expected = (angles.argmin(dim=1) == examples.y).float().mean().item()
        assert metrics["accuracy"] == pytest.approx(expected)

    def test_fine_tuning_gives_it_a_head(self, tmp_path: Path) -> None:
        client = _client("gpfl", tmp_path, **{"finetune-epochs": 30})
        metrics = perform(client, "test", _sent("gpfl")).metrics
        assert metrics["accuracy"] > metrics["accuracy_global"]


@pytest.mark.parametrize(("method", "trained"), [("fedcp", True), ("gpfl", True), ("gpfl", False)])
def test_a_saved_model_predicts_as_the_client_did(method: str, trained: bool, tmp_path: Path) -> None:
    client, sent, examples = _client(method, tmp_path), _sent(method), _examples()
    if trained:
        perform(client, "train", sent)
    perform(client, "test", sent)
    model, _ = load_model(save_model(tmp_path / "model", client.predictor, "0", "run", client.settings))
    torch.testing.assert_close(model(examples.x), client.predictor(examples.x))


@pytest.mark.parametrize("method", ["fedcp", "gpfl"])
class TestBoth:
    def test_a_client_with_one_example(self, method: str, tmp_path: Path) -> None:
        client = _client(method, tmp_path, _examples(1))
        assert np.isfinite(perform(client, "train", _sent(method)).metrics["loss"])

    def test_a_run(self, method: str, tmp_path: Path) -> None:
        """The server's module is the mean of the clients' ones; clients never seen have figures."""
        run = Runs(tmp_path, {**RUN, "method": method})
        path = run("run")
        start = {"fedcp": beside(build_policy(32, 1)), "gpfl": beside(build_guidance(10, 32, 1))}[method]
        state = read_checkpoint(path).state
        assert state.keys() == start.keys()
        assert any(not np.array_equal(state[name], array) for name, array in start.items())
        unseen = read_metrics(path)[-1]["unseen"]
        assert unseen["accuracy"] > unseen["accuracy_global"]  # fine-tuned

    def test_the_server_averages_modules(self, method: str, tmp_path: Path) -> None:
        run = Runs(tmp_path, {**RUN, "method": method, "rounds": 1, "evaluate-every": 0, "finetune-epochs": 0})
        state, replies = read_checkpoint(run("run")).state, []
        for sent, message in zip(run.grid.sent, run.grid.received, strict=True):
            if sent.metadata.message_type == "train":
                replies.append(Reply.unpack(message.content))
        weight = sum(sum(reply.metrics["weight"]) for reply in replies)
        assert weight > 3  # numbers of examples
        start = {"fedcp": beside(build_policy(32, 1)), "gpfl": beside(build_guidance(10, 32, 1))}[method]
        for name, array in start.items():
            mean = sum(reply.arrays[name].astype(float) for reply in replies) / weight
            np.testing.assert_allclose(state[name], array + mean, rtol=1e-5, atol=1e-7, err_msg=name)

    def test_a_network_without_a_classifier_of_its_own(self, method: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="blocks"):
            Runs(tmp_path, {**RUN, "method": method})("refused", model="linear")
