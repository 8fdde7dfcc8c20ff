"""FedAdagrad, FedAdam, FedYogi, FedDyn, FedNova, MOON: one step or round in NumPy, the limits, what is refused."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdagrad, FedAdam, FedYogi
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from florilegium.clients.core.optimizers import SGD
from florilegium.clients.core.wire import Reply
from florilegium.clients.fednova import normaliser, sum_of_weights
from florilegium.clients.hyper.federated import FedNovaHyper
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.core.server_step import ServerStep
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, perform, settings

KEYS: dict[str, Value] = {
    "model": "linear", "num-clients": 6, "participation": 0.5, "rounds": 2, "local-epochs": 1, "learning-rate": 0.1,
    "batch-size": 16, "weighting": "uniform", "evaluate-every": 0,
}  # fmt: skip
UNEVEN: dict[str, Value] = {"partitioner": "dirichlet", "alpha": 0.3}


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _model(path: Path) -> Arrays:
    return dict(read_checkpoint(path).arrays)


def _assert_same(one: Path, other: Path) -> None:
    for name, array in _model(one).items():
        np.testing.assert_array_equal(array, _model(other)[name])


def _examples(count: int = 7, seed: int = 1) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(count, 1, 8, 8, generator=generator), torch.randint(10, (count,), generator=generator))


class TestServerSteps:
    @pytest.mark.parametrize("optimizer", ["fedadagrad", "fedadam", "fedyogi"])
    def test_three_steps_by_hand(self, optimizer: str) -> None:
        """Algorithm 2 of Reddi et al., a number at a time; β₁ = 0 for Adagrad; Yogi's v rises and falls."""
        step = ServerStep(settings(**{"server-optimizer": optimizer, "server-adaptivity": 0.01}))
        m, v = [0.0, 0.0], [0.0, 0.0]
        for Δ in ([0.5, -2.0], [0.001, -3.0], [0.2, 0.0]):
            expected = []
            for i, d in enumerate(Δ):
                if optimizer == "fedadagrad":
                    m[i], v[i] = d, v[i] + d * d
                else:
                    m[i] = 0.9 * m[i] + 0.1 * d
                    if optimizer == "fedadam":
                        v[i] = 0.99 * v[i] + 0.01 * d * d
                    else:
                        v[i] += 0.01 * d * d * (1 if v[i] < d * d else -1)
                expected.append(m[i] / (v[i] ** 0.5 + 0.01))
            found = step.direction({"w": np.array(Δ)})["w"]
            np.testing.assert_allclose(found, expected, rtol=1e-12)

    @pytest.mark.parametrize("corrected", [False, True])
    @pytest.mark.parametrize("optimizer", ["fedadagrad", "fedadam", "fedyogi"])
    def test_keys_of_the_moments(self, optimizer: str, corrected: bool) -> None:
        """β₁ = 0.8, β₂ = 0.95 and τ as given, a number at a time; FedAdagrad's v is a sum, which has no bias."""
        betas = "0.8" if optimizer == "fedadagrad" else "0.8,0.95"
        keys = {"server-betas": betas, "server-adaptivity": 1e-8, "server-bias-correction": corrected}
        step, m, v = ServerStep(settings(**{"server-optimizer": optimizer, **keys})), 0.0, 0.0
        for t, Δ in enumerate([0.5, -0.01, 0.3], start=1):
            m = 0.8 * m + 0.2 * Δ
            if optimizer == "fedadagrad":
                v += Δ * Δ
            elif optimizer == "fedadam":
                v = 0.95 * v + 0.05 * Δ * Δ
            else:
                v += 0.05 * Δ * Δ * (1 if v < Δ * Δ else -1)
            m_hat, v_hat = (m / (1 - 0.8**t), v / (1 - 0.95**t)) if corrected else (m, v)
            expected = m_hat / ((v if optimizer == "fedadagrad" else v_hat) ** 0.5 + 1e-8)
            np.testing.assert_allclose(step.direction({"w": np.array([Δ])})["w"], [expected], rtol=1e-12)

    @pytest.mark.parametrize(
        ("theirs", "optimizer", "betas"),
        [(FedAdagrad, "fedadagrad", "0"), (FedAdam, "fedadam", "0.7,0.9"), (FedYogi, "fedyogi", "0.7,0.9")],
    )
    def test_flowers_optimizers_take_the_same_steps(self, theirs: Any, optimizer: str, betas: str) -> None:
        """With rounds from 0, since Flower's FedAdam corrects with the number t + 1 of a round t, and without τ."""
        decays = {} if optimizer == "fedadagrad" else {"beta_1": 0.7, "beta_2": 0.9}
        flower = theirs(initial_parameters=ndarrays_to_parameters([np.zeros(2)]), eta=0.3, tau=1e-12, **decays)
        corrected = optimizer == "fedadam"
        step = ServerStep(settings(**{
            "server-optimizer": optimizer, "server-betas": betas, "server-adaptivity": 1e-12,
            "server-bias-correction": corrected,
        }))  # fmt: skip
        w = np.zeros(2)
        for round_, Δ in enumerate(np.array([[0.5, -2.0], [0.4, 0.1], [0.02, 1.5]])):
            result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([w + Δ]), 1, {})
            parameters, _ = flower.aggregate_fit(round_, [(None, result)], [])
            w = w + 0.3 * step.direction({"w": Δ})["w"]
            np.testing.assert_allclose(parameters_to_ndarrays(parameters)[0], w, rtol=1e-6)

    @pytest.mark.parametrize(("last", "shorter"), [(1, 0.742), (2, 0.635), (10, 0.472), (100, 0.798), (500, 0.997)])
    def test_flowers_fedadam_beside_the_papers(self, last: int, shorter: float) -> None:
        """With Flower's own numbers of rounds and the same Δ in each, its steps over those of Algorithm 2."""
        flower = FedAdam(
            initial_parameters=ndarrays_to_parameters([np.zeros(1)]), eta=0.3, beta_1=0.9, beta_2=0.99, tau=1e-12
        )
        step = ServerStep(settings(**{"server-optimizer": "fedadam", "server-adaptivity": 1e-12}))
        w, Δ = np.zeros(1), np.array([0.5])
        for round_ in range(1, last + 1):
            result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([w + Δ]), 1, {})
            parameters, _ = flower.aggregate_fit(round_, [(None, result)], [])
            (after,) = parameters_to_ndarrays(parameters)
            moved, w = after - w, after
            ours = 0.3 * step.direction({"w": Δ})["w"]
        assert float(moved[0] / ours[0]) == pytest.approx(shorter, abs=1e-3)
        assert shorter == pytest.approx(np.sqrt(1 - 0.99 ** (last + 1)) / (1 - 0.9 ** (last + 1)), abs=1e-3)

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"server-betas": "0.9,0.99"}, "server-optimizer 'sgd' has none"),
            ({"server-optimizer": "fedadam", "server-betas": "0.9"}, "needs 2 of 0 to below 1, such as '0.9,0.99'"),
            ({"server-optimizer": "fedyogi", "server-betas": "0.9,1"}, "needs 2 of 0 to below 1"),
            ({"server-optimizer": "fedadagrad", "server-betas": "0.9,0.9"}, "needs 1 of 0 to below 1, such as '0.0'"),
            ({"server-optimizer": "fedadam", "server-betas": "a,b"}, "not a comma-separated list of numbers"),
            ({"server-bias-correction": True}, "server-optimizer 'sgd' is not corrected"),
        ],
    )
    def test_wrong_moments_are_refused(self, keys: dict[str, Value], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            settings(**keys)

    @pytest.mark.parametrize(("optimizer", "warned"), [("fedadam", True), ("sgd", False)])
    def test_fedavgs_learning_rate_is_warned_of(
        self, optimizer: str, warned: bool, run: Runs, caplog: pytest.LogCaptureFixture
    ) -> None:
        run("run", rounds=1, **{"server-optimizer": optimizer})
        assert ("server-learning-rate is 1" in caplog.text) == warned

    @pytest.mark.parametrize("optimizer", ["sgd", "fedadagrad", "fedadam", "fedyogi"])
    def test_a_restored_step_goes_on_bit_for_bit(self, optimizer: str) -> None:
        plain = optimizer == "sgd"
        options = settings(**{
            "server-optimizer": optimizer, "server-bias-correction": not plain,
            "server-momentum": 0.9 if plain else 0.0,
        })  # fmt: skip
        rng = np.random.default_rng(1)
        whole, other = ServerStep(options), ServerStep(options)
        for _ in range(3):
            whole.direction({"a": rng.normal(size=3), "b": rng.normal(size=2)})
        other.restore(whole.state())
        update = {"a": rng.normal(size=3), "b": rng.normal(size=2)}
        one, same = whole.direction(update), other.direction(update)
        assert all(np.array_equal(one[name], same[name]) for name in update)


DYNAMIC: dict[str, Value] = {**KEYS, "method": "feddyn", "feddyn.alpha": 0.3}


class TestFedDyn:
    def test_a_clients_steps_and_memory(self, tmp_path: Path) -> None:
        """Two full-batch steps by autograd: the gradient, minus g_k, plus α(θ − θ^{t−1})."""
        α, η = 0.3, 0.1
        examples, model = _examples(), build("linear", (1, 8, 8), 10, 1)
        client = make_client(examples, model, folder=tmp_path, **{**DYNAMIC, "batch-size": 7, "local-steps": 2})
        start = get_arrays(model)
        rng = np.random.default_rng(1)
        g = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in start.items()}
        client.state.save(g)
        answer = perform(client, "train", start).arrays
        w = {name: torch.tensor(array) for name, array in start.items()}
        for _ in range(2):
            w = {name: θ.requires_grad_() for name, θ in w.items()}
            loss = cross_entropy(torch.func.functional_call(model, w, examples.x), examples.y)
            slopes = dict(zip(w, torch.autograd.grad(loss, [*w.values()]), strict=True))
            w = {
                name: (θ - η * (slopes[name] - torch.tensor(g[name]) + α * (θ - torch.tensor(start[name])))).detach()
                for name, θ in w.items()
            }
        for name, θ in w.items():
            np.testing.assert_allclose(answer[name], θ.numpy(), rtol=1e-4, atol=1e-5)
            expected = g[name] - α * (answer[name] - start[name])
            np.testing.assert_allclose(client.state.load()[name], expected, rtol=1e-5, atol=1e-6)

    def test_h_is_the_mean_of_all_clients_memories(self, run: Runs) -> None:
        """h = Σ n_k·g_k / Σ n_k over all clients, 0 for those that never took part."""
        path = run("run", **{**DYNAMIC, **UNEVEN, "weighting": "examples", "rounds": 2})
        newest = {folder.name: load_file(sorted(folder.glob("state-*"))[-1]) for folder in (path / "clients").iterdir()}
        assert 3 <= len(newest) < 6
        header, *rows = [line.split(",") for line in (path / "clients.csv").read_text().splitlines()]
        n = {row[0]: float(row[header.index("train_examples")]) for row in rows}
        for name, h in read_checkpoint(path).state.items():
            mean = sum(n[client] * g[name] for client, g in newest.items()) / sum(n.values())
            np.testing.assert_allclose(h, mean, rtol=1e-3, atol=1e-6)

    def test_running_statistics_have_no_h(self, run: Runs) -> None:
        state = read_checkpoint(run("run", **{**DYNAMIC, "model": "cnn-bn", "rounds": 1})).state
        model = build("cnn-bn", (1, 8, 8), 10, 1)
        assert {*state} == {name for name, _ in model.named_parameters()} < {*get_arrays(model)}

    def test_first_round_with_a_small_alpha_is_twice_fedavgs_step(self, run: Runs) -> None:
        """α → 0: clients train as in FedAvg, and −h/α is the sum of all updates, whatever α is."""
        keys: dict[str, Value] = {"rounds": 1, "participation": 1.0}
        plain, ours = (
            _model(run("plain", **keys)),
            _model(run("dyn", method="feddyn", **keys, **{"feddyn.alpha": 1e-9})),
        )
        start = get_arrays(build("linear", (1, 8, 8), 10, 1))
        for name, w in start.items():
            np.testing.assert_allclose(ours[name] - w, 2 * (plain[name] - w), atol=1e-6)

    @pytest.mark.parametrize(
        "keys", [{"server-optimizer": "fedadam"}, {"server-momentum": 0.9}, {"server-learning-rate": 0.5}]
    )
    def test_it_has_a_server_step_of_its_own(self, run: Runs, keys: dict[str, Value]) -> None:
        with pytest.raises(ConfigurationError, match="'feddyn' has a server step of its own"):
            run("refused", method="feddyn", **keys)


class TestFedNova:
    @pytest.mark.parametrize(("ρ", "ημ"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.2), (0.9, 0.002)])
    def test_weights_of_gradients(self, ρ: float, ημ: float) -> None:
        """‖a‖₁: unit impulses, one per step, added up over the suite's own SGD; and the paper's closed forms."""
        τ, weights = 6, []
        for impulse in range(τ):
            w = torch.zeros(1, dtype=torch.float64)
            optimizer = SGD([w], 1.0, ρ, 0.0)
            for step in range(τ):
                w.grad = torch.full_like(w, float(step == impulse)) + ημ * w
                optimizer.step()
            weights.append(-float(w))
        found = sum_of_weights(τ, ρ, ημ)
        assert min(weights) > 0
        assert found == pytest.approx(sum(weights), rel=1e-12)
        if not ημ:
            assert found == pytest.approx((τ - ρ * (1 - ρ**τ) / (1 - ρ)) / (1 - ρ))
        elif not ρ:
            assert found == pytest.approx((1 - (1 - ημ) ** τ) / ημ)

    def test_the_proximal_term_counts_with_the_rounds_learning_rate(self) -> None:
        """η = 0.1/4 in round 3; 33 examples are 2·3 steps: (1 − (1 − ημ)^τ)/(ημ) with ημ = 0.05."""
        keys: dict[str, Value] = {**KEYS, "learning-rate-decay": 0.5, "decay-rounds": 1, "local-epochs": 2}
        found = normaliser(settings(method="fednova", **keys), FedNovaHyper(mu=2.0), 33, 3)
        assert found == pytest.approx((1 - 0.95**6) / 0.05)

    @pytest.mark.parametrize("weighting", ["uniform", "examples"])
    def test_a_round_of_uneven_clients(self, run: Runs, weighting: str) -> None:
        """x + τ_eff Σ p_i Δ_i/‖a_i‖₁, of the same clients' updates in FedAvg, which their replies contain."""
        keys: dict[str, Value] = {**UNEVEN, "rounds": 1, "participation": 1.0, "momentum": 0.5, "weighting": weighting}
        start, updates = get_arrays(build("linear", (1, 8, 8), 10, 1)), []
        run("plain", **{**keys, "aggregation": "median"})  # nodes then send each client's update
        for sent, message in zip(run.grid.sent, run.grid.received, strict=True):
            if sent.metadata.message_type == "train":
                reply = Reply.unpack(message.content)
                for i, count in enumerate(reply.metrics["num-examples"]):
                    updates.append((count, {name: array[i] for name, array in reply.arrays.items()}))
        assert len(updates) == 6
        path = run("nova", method="fednova", **keys)
        p = np.array([count if weighting == "examples" else 1.0 for count, _ in updates])
        a = [sum(sum(0.5**j for j in range(k + 1)) for k in range(-int(-count // 16))) for count, _ in updates]
        assert len({*a}) > 2
        for name, x in start.items():
            d = sum(w * Δ[name] / norm for w, norm, (_, Δ) in zip(p, a, updates, strict=True)) / p.sum()
            np.testing.assert_allclose(_model(path)[name], x + np.average(a, weights=p) * d, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize(
        ("own", "theirs"),
        [({"momentum": 0.9}, {"momentum": 0.9}), ({"fednova.mu": 0.5}, {"method": "fedprox", "fedprox.mu": 0.5})],
    )
    def test_equal_numbers_of_steps_are_fedavg_bit_for_bit(
        self, run: Runs, own: dict[str, Value], theirs: dict[str, Value]
    ) -> None:
        keys: dict[str, Value] = {**UNEVEN, "local-steps": 5, "weighting": "examples"}
        _assert_same(run("avg", **keys, **theirs), run("nova", **keys, **{"method": "fednova", **own}))

    def test_running_statistics_are_averaged_plainly(self, tmp_path: Path) -> None:
        keys = {**KEYS, "model": "cnn-bn", "batch-size": 4}
        trained = {}
        for method, arguments in (("fedavg", {}), ("fednova", {"steps": 5.0})):  # the client takes two steps
            model = build("cnn-bn", (1, 8, 8), 10, 1)
            client = make_client(_examples(8), model, folder=tmp_path, **{**keys, "method": method})
            start = get_arrays(model)
            trained[method] = perform(client, "train", start, **arguments).arrays
        for name, y in trained["fedavg"].items():
            expected = y if "running" in name else start[name] + 2.5 * (y - start[name])
            np.testing.assert_allclose(trained["fednova"][name], expected, rtol=1e-4, atol=1e-5)

    def test_fixed_number_of_steps(self, run: Runs) -> None:
        """τ_eff = 10 of 5 steps: twice FedAvg's update."""
        keys: dict[str, Value] = {"local-steps": 5, "rounds": 1}
        plain = _model(run("plain", **keys))
        ours = _model(run("nova", method="fednova", **keys, **{"fednova.effective-steps": 10.0}))
        for name, x in get_arrays(build("linear", (1, 8, 8), 10, 1)).items():
            np.testing.assert_allclose(ours[name] - x, 2 * (plain[name] - x), atol=1e-6)

    @pytest.mark.parametrize(
        ("keys", "match"),
        [
            ({"optimizer": "adam"}, "optimizer: 'fednova' needs 'sgd'"),
            ({"fednova.mu": 10.0}, r"fednova\.mu: .* must be below 1"),
            ({"privacy.unit": "client"}, r"set fednova\.effective-steps"),
        ],
    )
    def test_what_it_refuses(self, run: Runs, keys: dict[str, Value], match: str) -> None:
        with pytest.raises(ConfigurationError, match=match):
            run("refused", method="fednova", **keys)

    def test_stock_strategies_send_no_number_of_steps(self, tmp_path: Path) -> None:
        model = build("linear", (1, 8, 8), 10, 1)
        client = make_client(_examples(), model, folder=tmp_path, method="fednova", **KEYS)
        with pytest.raises(RunError, match="own strategy"):
            client.fit([*get_arrays(model).values()], {})


CONTRASTIVE: dict[str, Value] = {
    **KEYS, "model": "mlp", "method": "moon", "moon.mu": 2.0, "moon.temperature": 0.4,
}  # fmt: skip


class TestMoon:
    def _client(self, examples: Examples, folder: Path, **keys: Value) -> Any:
        model = build("mlp", (1, 8, 8), 10, 1)
        return make_client(examples, model, folder=folder, **{**CONTRASTIVE, "batch-size": 7, "local-steps": 1, **keys})

    def test_the_loss_is_that_of_the_paper(self, tmp_path: Path) -> None:
        """Two full-batch steps in plain torch, from a received model and another that the client has kept."""
        examples = _examples()
        client = self._client(examples, tmp_path, **{"local-steps": 2})
        received, previous = (get_arrays(build("mlp", (1, 8, 8), 10, seed)) for seed in (1, 2))
        client.state.save({name: array for name, array in previous.items() if not name.startswith("fc3")})
        found = perform(client, "train", received)
        x = examples.x.flatten(1).double()

        def tensors(arrays: Arrays) -> list[Tensor]:
            return [torch.tensor(array).double() for array in arrays.values()]

        def represent(w: list[Tensor]) -> Tensor:
            return torch.relu(torch.relu(x @ w[0].T + w[1]) @ w[2].T + w[3])

        z_glob, z_prev, w = represent(tensors(received)), represent(tensors(previous)), tensors(received)
        for _ in range(2):
            w = [p.requires_grad_() for p in w]
            z = represent(w)
            near, far = ((z * o).sum(dim=1) / (z.norm(dim=1) * o.norm(dim=1)) / 0.4 for o in (z_glob, z_prev))
            contrast = -torch.log(near.exp() / (near.exp() + far.exp())).mean()
            loss = cross_entropy(z @ w[4].T + w[5], examples.y) + 2.0 * contrast
            w = [(p - 0.1 * s).detach() for p, s in zip(w, torch.autograd.grad(loss, w), strict=True)]
        for array, p in zip(found.arrays.values(), w, strict=True):
            np.testing.assert_allclose(array, p.numpy(), rtol=1e-4, atol=1e-5)

    def test_the_first_training_is_fedavgs_and_its_body_is_kept(self, tmp_path: Path) -> None:
        client, plain = self._client(_examples(), tmp_path), self._client(_examples(), tmp_path, method="fedavg")
        start = get_arrays(client.model)
        expected = perform(plain, "train", start).arrays
        answer = perform(client, "train", start).arrays
        kept = client.state.load()
        assert 0 < len(kept) < len(answer)
        for name, array in answer.items():
            np.testing.assert_array_equal(array, expected[name])
            np.testing.assert_array_equal(kept.get(name, array), array)

    def test_without_the_loss_it_is_fedavg_and_keeps_nothing(self, run: Runs) -> None:
        path = run("moon", **{**CONTRASTIVE, "moon.mu": 0.0})
        _assert_same(run("avg", model="mlp"), path)
        assert not [*path.glob("clients/*/*.safetensors")]

    def test_a_single_last_example_joins_the_batch_before(self, tmp_path: Path) -> None:
        """Batch norm cannot train on one example; five are one batch of four and one more."""
        torch.manual_seed(1)  # else the network's start, and so the margin below, depend on earlier tests
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
        model = nn.Sequential(OrderedDict(body=body, head=nn.Linear(8, 10)))
        client = make_client(_examples(5), model, folder=tmp_path, **{**CONTRASTIVE, "batch-size": 4})
        start = get_arrays(model)
        first = perform(client, "train", start)
        second = perform(client, "train", start, round=2)
        assert second.metrics["loss"] > first.metrics["loss"] + 1  # with μ·ℓ_con, about 2·log 2


@pytest.mark.parametrize("method", ["feddyn", "fednova", "moon"])
def test_unseen_clients_fine_tune_the_global_model(method: str, tmp_path: Path) -> None:
    """Test-time fine-tuning is plain SGD, as in FedAvg, also for a client with a state."""
    examples, found = _examples(), []
    for name in (method, "fedavg"):
        model = build("mlp", (1, 8, 8), 10, 1)
        client = make_client(
            examples, model, folder=tmp_path / name, **{**KEYS, "model": "mlp", "method": name, "finetune-epochs": 2}
        )
        start = get_arrays(model)
        perform(client, "train", start, **({"steps": 3.0} if name == "fednova" else {}))
        found.append(perform(client, "test", start, round=2).metrics)
    assert found[0] == found[1]
    assert found[0]["loss"] < found[0]["loss_global"]
