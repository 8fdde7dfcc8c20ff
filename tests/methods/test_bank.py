"""FedAMP, FedFomo, APPLE: a round against NumPy and autograd, their limits, the bank on disk, clients never seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from florilegium.apps.runs.personal import Reopened, reopened
from florilegium.clients.apple import CORE, INITIAL, RELATIONS
from florilegium.clients.core.wire import BESIDE
from florilegium.clients.fedfomo import AFFINITY, BEFORE
from florilegium.clients.hyper.bank import FedAMPHyper
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.partitions.clientdata import Examples, simulated
from florilegium.partitions.federation import federate
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.fedamp import attention
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs, timeless
from tests.support import make_client, perform

KEYS: dict[str, Value] = {
    "model": "linear", "num-clients": 5, "unseen-fraction": 0.2, "participation": 0.75, "rounds": 2, "local-epochs": 1,
    "learning-rate": 0.1, "batch-size": 32, "evaluate-every": 0,
}  # fmt: skip
ONE_STEP: dict[str, Value] = {"model": "linear", "local-steps": 1, "batch-size": 100, "learning-rate": 0.1}


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


@contextmanager
def _again(path: Path) -> Iterator[tuple[Reopened, dict[str, Arrays]]]:
    """Reopen a run; also give the models in its bank, as the files have them."""
    with reopened(path) as again:
        models = {client: load_file(max((path / "bank" / client).iterdir())) for client in again.strategy.members}  # type: ignore[attr-defined]
        yield again, models


def _flat(model: Arrays) -> NDArray[np.float64]:
    return np.concatenate([model[name].ravel() for name in sorted(model)]).astype(np.float64)


def _examples(count: int = 12) -> Examples:
    generator = torch.Generator().manual_seed(3)
    return Examples(torch.randn(count, 1, 8, 8, generator=generator), torch.arange(count) % 10)


def _others(network: nn.Module, count: int, scale: float = 0.3) -> Arrays:
    """Return ``count`` random models near that of the network, stacked."""
    rng = np.random.default_rng(0)
    return {
        name: (array + scale * rng.normal(size=(count, *array.shape))).astype(np.float32)
        for name, array in get_arrays(network).items()
    }


def _loss(network: nn.Module, model: Arrays, data: Examples) -> float:
    tensors = {name: torch.from_numpy(array) for name, array in model.items()}
    return float(cross_entropy(functional_call(network, tensors, data.x), data.y))


def _gradient(network: nn.Module, model: Arrays, data: Examples) -> Arrays:
    tensors = {name: torch.from_numpy(array.astype(np.float32)).requires_grad_() for name, array in model.items()}
    cross_entropy(functional_call(network, tensors, data.x), data.y).backward()
    return {name: tensor.grad.numpy() for name, tensor in tensors.items() if tensor.grad is not None}


def _weights(network: nn.Module, start: Arrays, models: list[Arrays], judged: Examples) -> NDArray[np.float64]:
    """Return FedFomo's weights of models."""
    before, origin = _loss(network, start, judged), _flat(start)
    return np.array([(before - _loss(network, m, judged)) / np.linalg.norm(_flat(m) - origin) for m in models])


class TestBank:
    def test_the_global_model_is_the_mean_of_the_bank_and_reads_give_what_is_on_disk(self, run: Runs) -> None:
        with _again(run("run", method="fedamp")) as (again, models):
            strategy: Any = again.strategy
            model, clients = again.checkpoint.arrays, list(models)
            assert len(clients) == 4  # three take part in a round
            weights = np.array([strategy.clients[client].train for client in clients])
            assert len({*weights.tolist()}) > 1
            coefficients = np.random.default_rng(0).normal(size=(3, 5))
            mixed = strategy.combine(again.round, model, coefficients)
            dealt = strategy.deal(
                again.round, model, [[clients[2], None], [None, clients[0]], [clients[2], clients[1]]]
            )
            for name, array in model.items():
                bank = np.stack([models[client][name] for client in clients]).astype(np.float64)
                np.testing.assert_allclose(array, np.average(bank, axis=0, weights=weights), rtol=1e-5, atol=1e-7)
                expected = np.tensordot(coefficients, np.concatenate([bank, array[None]]), axes=1)
                np.testing.assert_allclose(mixed[name], expected, rtol=1e-5, atol=1e-6)
                parts = [bank[2], array, array, bank[0], bank[2], bank[1]]
                np.testing.assert_array_equal(dealt[name].reshape(6, *array.shape), np.stack(parts))
            squares = strategy._squares(again.round, clients[:2])
            own = np.stack([_flat(models[client]) for client in clients])
            differences = own[:2, None] - own[None]
            np.testing.assert_allclose(squares, (differences**2).sum(axis=2), rtol=1e-6, atol=1e-9)
            for number, own_model in enumerate(models.values()):  # running statistics are no distance
                own_model["norm.running_var"] = np.full(3, float(number))
            strategy.load = lambda _, client: models[client]
            np.testing.assert_array_equal(strategy._squares(again.round, clients[:2]), squares)

    def test_a_run_that_died_after_newer_models_were_written_ends_alike(self, run: Runs) -> None:
        """Checkpoints after rounds 2 and 4; it dies in round 4, with the models of round 3 on disk."""
        keys: dict[str, Value] = {"method": "fedfomo", "rounds": 4, "checkpoint-every": 2, "fedfomo.models": 2}
        whole, broken = run.whole_and_broken(4, **keys)
        first, second = (read_checkpoint(path) for path in (whole, broken))
        assert first.facts["own"] == second.facts["own"]
        for name, array in first.arrays.items():
            np.testing.assert_array_equal(array, second.arrays[name])
        assert timeless(whole)[-1] == timeless(broken)[-1]
        assert all(len(list(folder.iterdir())) <= 2 for folder in (whole / "bank").iterdir())  # older ones are deleted

    @pytest.mark.parametrize("method", ["fedamp", "fedfomo", "apple"])
    def test_clients_predict_with_their_own_model(self, method: str, tmp_path: Path) -> None:
        network = build("linear", (1, 8, 8), 10, 1)
        client = make_client(_examples(), network, folder=tmp_path, method=method, **ONE_STEP)
        mean, own = get_arrays(network), {name: array[0] for name, array in _others(network, 1).items()}
        client.state.save(own)
        metrics = perform(client, "test", mean).metrics
        assert metrics["loss"] == pytest.approx(_loss(network, own, _examples()), rel=1e-5)
        assert metrics["loss_global"] == pytest.approx(_loss(network, mean, _examples()), rel=1e-5)

    def test_a_missing_file_is_named(self, run: Runs) -> None:
        path = run("run", method="fedamp", rounds=1)
        with _again(path) as (again, models):
            client = next(iter(models))
            for file in (path / "bank" / client).iterdir():
                file.unlink()
            with pytest.raises(RunError, match=f"model of client {client} is missing"):
                again.strategy.load(again.round, client)  # type: ignore[attr-defined]

    @pytest.mark.parametrize("method", ["fedamp", "fedfomo", "apple"])
    def test_a_client_that_fails_changes_nothing(self, method: str, run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        from florilegium.clients.core.base import BaseClient

        descend = BaseClient.descend

        def failing(client: BaseClient, *args: Any, **kwargs: Any) -> float:
            if client.client_id == "0":
                raise RunError("no")
            return descend(client, *args, **kwargs)

        monkeypatch.setattr(BaseClient, "descend", failing)
        keys: dict[str, Value] = {"participation": 1.0, "unseen-fraction": 0.0, "min-success": 0.5, "rounds": 1}
        path = run("run", method=method, **keys)
        assert {*read_checkpoint(path).facts["own"]["members"]} == {"1", "2", "3", "4"}
        assert not (path / "bank" / "0").exists()


class TestFedAMP:
    def test_attention(self) -> None:
        hyper = FedAMPHyper.model_validate({"step-size": 0.5, "scale": 2.0})
        squares = np.array([[0.0, 1.0, 4.0], [4.0, 2.0, 0.0]])
        found = attention(squares, [0, 2], hyper)
        a, b, c = (0.5 * math.exp(-x / 2) / 2 for x in (1.0, 4.0, 2.0))
        np.testing.assert_allclose(found, [[1 - a - b, a, b], [b, c, 1 - b - c]])

    def test_a_large_step_mixes_others_alone(self) -> None:
        found = attention(
            np.array([[0.0, 1.0, 3.0]]), [0], FedAMPHyper.model_validate({"step-size": 1e6, "scale": 2.0})
        )
        e = np.exp([-0.5, -1.5])
        np.testing.assert_allclose(found, [[0.0, *(e / e.sum())]], atol=1e-12)

    @pytest.mark.parametrize("start", ["cloud", "own"])
    def test_a_round_is_that_of_the_paper(self, start: str, run: Runs) -> None:
        """Two full-batch steps, so that the second feels the pull towards u_i."""
        λ, α, σ, η = 0.7, 0.5, 3.0, 0.1
        keys: dict[str, Value] = {
            "local-steps": 2, "local-epochs": 1, "batch-size": 10_000, "fedamp.regularization": λ,
            "fedamp.step-size": α, "fedamp.scale": σ, "fedamp.start": start,
        }  # fmt: skip
        with _again(run("run", method="fedamp", rounds=1, **keys)) as (again, models):
            s, cohort = again.settings, list(models)
            outcome = again.strategy.train_cohort(again.round.numbered(2), again.checkpoint.arrays, cohort)  # type: ignore[attr-defined]
            federation, dataset = federate(s)
            network = build("linear", (1, 8, 8), 10, 1)
            for row, client in enumerate(cohort):
                ξ = {
                    j: α / σ * math.exp(-((_flat(models[client]) - _flat(models[j])) ** 2).sum() / σ)
                    for j in cohort if j != client
                }  # fmt: skip
                ξ[client] = 1 - sum(ξ.values())
                assert 0.05 < ξ[client] < 0.95
                u = {name: sum(ξ[j] * models[j][name] for j in cohort) for name in models[client]}
                w, data = dict(u if start == "cloud" else models[client]), simulated(federation, dataset, int(client))
                for _ in range(2):
                    g = _gradient(network, w, data.train)
                    w = {name: a - η * (g[name] + λ / α * (a - u[name])) for name, a in w.items()}
                for name, array in w.items():
                    np.testing.assert_allclose(outcome.arrays[name][row], array, rtol=1e-4, atol=1e-6)

    def test_without_a_pull_and_from_its_own_model_a_client_trains_alone(self, run: Runs) -> None:
        keys: dict[str, Value] = {"unseen-fraction": 0.0, "participation": 1.0}
        alone = run("alone", method="local", **keys)
        ours = run("ours", method="fedamp", **keys, **{"fedamp.start": "own", "fedamp.regularization": 0.0})
        for client in map(str, range(5)):
            first, second = (load_file(max((p / "clients" / client).glob("state-*"))) for p in (alone, ours))
            for name, array in first.items():
                np.testing.assert_array_equal(array, second[name])

    def test_new_clients_fine_tune_the_mean(self, run: Runs) -> None:
        figures = read_metrics(run("run", method="fedamp", **{"finetune-epochs": 3}))[-1]
        assert figures["unseen"]["accuracy"] > figures["unseen"]["accuracy_global"] + 0.1


class TestFedFomo:
    def _client(self, folder: Path, network: nn.Module, **keys: Value) -> Any:
        return make_client(_examples(), network, folder=folder, method="fedfomo", **{**ONE_STEP, **keys})

    @pytest.mark.parametrize("share", [0.0, 0.25])
    def test_the_step_is_that_of_the_paper(self, share: float, tmp_path: Path) -> None:
        network = build("linear", (1, 8, 8), 10, 1)
        client = self._client(tmp_path, network, **{"fedfomo.validation-share": share})
        stacked = _others(network, 4)
        rows = [{name: array[n] for name, array in stacked.items()} for n in range(4)]
        start, own, received = rows[0], rows[1], rows[2:]
        client.state.save(start, BEFORE)
        client.state.save(own)
        train, judged = client._split
        assert (len(train), len(judged)) == ((12, 12) if share == 0 else (9, 3))
        # The client's own model and the first received one are made to help, the last one to harm.
        good = _gradient(network, start, judged)
        own = {name: start[name] - 0.5 * good[name] for name in start}
        received[0] = {name: start[name] - 0.2 * good[name] for name in start}
        received[1] = {name: start[name] + 0.3 * good[name] for name in start}
        client.state.save(own)
        w = _weights(network, start, [*received, own], judged)
        assert w[0] > 0 > w[1]
        share_of = np.maximum(w, 0) / np.maximum(w, 0).sum()
        expected = {n: sum(s * m[n] for s, m in zip(share_of, (*received, own), strict=True)) for n in start}
        sent = {BESIDE + name: np.stack([model[name] for model in received]) for name in start}
        answer = perform(client, "train", sent)
        np.testing.assert_allclose(answer.arrays[AFFINITY], w[:2], rtol=1e-3)
        g = _gradient(network, expected, train)
        for name, array in expected.items():
            np.testing.assert_allclose(client.state.load(BEFORE)[name], array, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(answer.arrays[name], array - 0.1 * g[name], rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(client.state.load()[name], answer.arrays[name])
        assert answer.num_examples == len(train)

    def test_a_client_stays_where_it_was_if_nothing_helps(self, tmp_path: Path) -> None:
        network = build("linear", (1, 8, 8), 10, 1)
        client = self._client(tmp_path, network)
        start = get_arrays(network)
        gradient = _gradient(network, start, client._split[1])
        worse = {name: array + 0.5 * gradient[name] for name, array in start.items()}
        client.state.save(start, BEFORE)
        client.state.save(worse)
        perform(client, "train", {BESIDE + name: array[None] for name, array in worse.items()})
        for name, array in start.items():
            np.testing.assert_array_equal(client.state.load(BEFORE)[name], array)

    def test_a_model_without_a_finite_loss_does_not_count(self, tmp_path: Path) -> None:
        network = build("linear", (1, 8, 8), 10, 1)
        client = self._client(tmp_path, network)
        start, stacked = get_arrays(network), _others(network, 2)
        gradient = _gradient(network, start, client._split[1])
        for name, array in stacked.items():
            array[0], array[1] = start[name] - 0.2 * gradient[name], 1e38 * np.sign(array[1])
        client.state.save(start, BEFORE)
        answer = perform(client, "train", {BESIDE + name: array for name, array in stacked.items()})
        w = answer.arrays[AFFINITY]
        assert w[0] > 0 == w[1]
        for name, array in stacked.items():
            np.testing.assert_allclose(client.state.load(BEFORE)[name], array[0], rtol=1e-6)

    def test_running_statistics_are_no_distance(self, tmp_path: Path) -> None:
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
        client = self._client(tmp_path, network)
        start = get_arrays(network)
        other = {name: array + np.float32(0.01) for name, array in start.items()}
        other["2.running_mean"] += 5
        gain = client._loss(start) - client._loss(other)
        apart = 0.01 * math.sqrt(sum(parameter.numel() for parameter in network.parameters()))
        np.testing.assert_allclose(client.weigh(start, [other]), [gain / apart], rtol=1e-3)

    def test_the_server_chooses_by_affinity_or_at_random(self, run: Runs) -> None:
        path = run("run", method="fedfomo", participation=1.0, **{"num-clients": 8, "fedfomo.models": 2})
        with _again(path) as (again, models):
            strategy: Any = again.strategy
            assert {len(own) for own in strategy.affinity.values()} == {2}  # from the second of two rounds
            client, *others = models
            strategy.affinity[client] = {other: float(n) for n, other in enumerate(others)}
            strategy.hyper = strategy.hyper.model_copy(update={"exploration": 0.0})
            assert strategy.choices(again.round, [client]) == [[others[-1], others[-2]]]
            strategy.hyper = strategy.hyper.model_copy(update={"exploration": 1.0, "exploration_decay": 0.0})
            seen = [tuple(strategy.choices(again.round.numbered(n), [client])[0]) for n in (1, *range(1, 13))]
            assert seen[0] == seen[1]
            assert len({*seen}) > 5
            assert client not in {c for chosen in seen for c in chosen}
            strategy.hyper = strategy.hyper.model_copy(update={"exploration_decay": 1.0})  # ε = 1 in round 1, then 0
            assert strategy.choices(again.round.numbered(1), [client])[0] == list(seen[0])
            assert strategy.choices(again.round.numbered(2), [client]) == [[others[-1], others[-2]]]
            strategy.hyper = strategy.hyper.model_copy(update={"exploration_decay": 0.2})
            assert strategy.choices(again.round.numbered(6), [client]) == [[others[-1], others[-2]]]  # ε = 0
            strategy.hyper = strategy.hyper.model_copy(update={"models": 1, "exploration": 0.0})
            strategy.affinity = {client: {others[0]: 1.5}}  # further weights are added
            outcome = Outcome([client], {AFFINITY: np.array([[0.25]])}, {})
            asked: Any = SimpleNamespace(
                number=3, ask=lambda *args, **options: outcome, kept=lambda *place: again.round.numbered(3).kept(*place)
            )
            strategy.train_cohort(asked, again.checkpoint.arrays, [client])
            assert strategy.affinity == {client: {others[0]: 1.75}}
            strategy.hyper = strategy.hyper.model_copy(update={"models": 2})
            (new,) = strategy.choices(again.round, [strategy.clients.ids("unseen")[0]])
            assert new[0] is None
            assert len(new) == 2

    def test_a_new_client_combines_received_models_before_a_test(self, tmp_path: Path) -> None:
        network = build("linear", (1, 8, 8), 10, 1)
        client = self._client(tmp_path, network)
        mean, stacked, judged = get_arrays(network), _others(network, 3), client._split[1]
        good = _gradient(network, mean, judged)
        for name, array in stacked.items():
            array[1] = mean[name] - 0.5 * good[name]
        answer = perform(client, "test", mean | {BESIDE + name: array for name, array in stacked.items()})
        rows = [{name: array[n] for name, array in stacked.items()} for n in range(3)]
        w = _weights(network, mean, rows, judged)
        share = np.maximum(w, 0) / np.maximum(w, 0).sum()
        expected = {name: np.tensordot(share, array, axes=1).astype(np.float32) for name, array in stacked.items()}
        assert answer.metrics["loss"] == pytest.approx(_loss(network, expected, _examples()), rel=1e-4)
        assert answer.metrics["loss_global"] == pytest.approx(_loss(network, mean, _examples()), rel=1e-5)

    def test_only_new_clients_with_labels_are_sent_models_before_a_test(self, run: Runs) -> None:
        path = run("run", method="fedfomo", **{"num-clients": 8, "labeled-fraction": 0.8})
        tests = [m.content for m in run.grid.sent if "config" in m.content and m.content["config"]["phase"] == "test"]
        sent = {client for content in tests if "scatter" in content for client in content["config"]["clients"]}
        tested = [row.split(",") for row in (path / "clients.csv").read_text().splitlines()[1:]]
        assert {row[1] for row in tested} == {"seen", "unseen", "unlabeled"}
        members = {*read_checkpoint(path).facts["own"]["members"]}
        assert sent == {row[0] for row in tested if row[1] != "unlabeled"} - members
        assert sent


class TestAPPLE:
    def _client(self, folder: Path, network: nn.Module, **keys: Value) -> Any:
        return make_client(_examples(), network, folder=folder, method="apple", **{**ONE_STEP, **keys})

    @pytest.mark.parametrize("rest", [0, 1])
    def test_the_step_is_that_of_the_paper(self, rest: int, tmp_path: Path) -> None:
        network = build("linear", (1, 8, 8), 10, 1)
        η2, μ = 0.02, 0.6
        keys: dict[str, Value] = {
            "apple.relation-learning-rate": η2, "apple.regularization": μ, "apple.scheduler-rounds": 4,
            "apple.scale-rate": bool(rest),
        }  # fmt: skip
        client = self._client(tmp_path, network, **keys)
        stacked = _others(network, 3 + rest)
        core = {name: array[0] for name, array in stacked.items()}
        client.state.save(core, CORE)
        p, p0 = np.array([0.5, 0.4, -0.1], np.float32), np.array([0.2, 0.3, 0.5], np.float32)
        sent = {BESIDE + name: array[1:] for name, array in stacked.items()}
        sent |= {BESIDE + RELATIONS: p, BESIDE + INITIAL: p0}
        for weight in client.model.parameters():
            weight.grad = torch.ones_like(weight)  # left there by the client before, which has the same network
        answer = perform(client, "train", sent, round=3, count=5)
        η1 = 0.5 if rest else 0.1
        factors = np.array([*p, *[1.0] * rest])
        v = {name: np.tensordot(factors, array, axes=1) for name, array in stacked.items()}
        g, λ = _gradient(network, v, _examples()), 0.5  # (cos(π·2/4) + 1) / 2
        slope = np.array([sum((g[name] * stacked[name][j]).sum() for name in g) for j in range(3)])
        expected = p - η2 * (slope + λ * μ * (p - p0))
        np.testing.assert_allclose(answer.arrays[RELATIONS], expected, rtol=1e-4)
        for name, array in core.items():
            new = array - η1 * p[0] * g[name]
            np.testing.assert_allclose(answer.arrays[name], new, rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(client.state.load(CORE)[name], answer.arrays[name])
            models = np.concatenate([new[None], stacked[name][1:]])
            personal = np.tensordot([*expected, *[1.0] * rest], models, axes=1)
            np.testing.assert_allclose(client.state.load()[name], personal, rtol=1e-4, atol=1e-6)
        assert answer.metrics["loss"] == pytest.approx(
            _loss(network, {n: a.astype(np.float32) for n, a in v.items()}, _examples())
            + λ * μ / 2 * ((p - p0) ** 2).sum(), rel=1e-5
        )  # fmt: skip

    def test_a_new_clients_core_model_is_the_mean(self, tmp_path: Path) -> None:
        """Of four clients two have models, which it receives; what is left is the third, which counts as the mean."""
        network = build("linear", (1, 8, 8), 10, 1)
        client = self._client(tmp_path, network, **{"learning-rate": 1e-12})
        stacked = _others(network, 2)
        p0 = np.array([0.25, 0.375, 0.125], np.float32)
        mean = {name: np.average(array, axis=0, weights=p0[1:]) for name, array in stacked.items()}
        sent = {BESIDE + n: np.concatenate([a, 0.25 * mean[n][None]]).astype(np.float32) for n, a in stacked.items()}
        answer = perform(client, "train", sent | {BESIDE + RELATIONS: p0, BESIDE + INITIAL: p0})
        for name, array in mean.items():
            np.testing.assert_allclose(answer.arrays[name], array, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("scheduler", "expected"), [("cosine", [1.0, 0.75, 0.25, 0.0]), ("exponential", [1.0, 0.1, 0.01, 0.0])]
    )
    def test_schedules(self, scheduler: str, expected: list[float], tmp_path: Path) -> None:
        keys: dict[str, Value] = {"apple.scheduler": scheduler, "apple.scheduler-rounds": 3}
        client = self._client(tmp_path, build("linear", (1, 8, 8), 10, 1), **keys)
        for number, value in enumerate(expected, start=1):
            client.round = number
            assert client.schedule() == pytest.approx(value)

    def test_models_that_are_not_sent_take_part_by_their_sum(self, run: Runs) -> None:
        """While relationships do not move, it makes no difference how many models are sent."""
        keys: dict[str, Value] = {
            "apple.relation-learning-rate": 1e-12, "apple.regularization": 0.0, "rounds": 3, "learning-rate": 0.25,
        }  # fmt: skip
        everything = run("all", method="apple", **keys)
        few = run("few", method="apple", **keys, **{"apple.models": 1})
        first, second = (read_checkpoint(path).arrays for path in (everything, few))
        for name, array in first.items():
            np.testing.assert_allclose(array, second[name], rtol=1e-4, atol=1e-6)
        known = read_checkpoint(few).facts["own"]["relations"]
        assert all(len(own) <= 1 + 2 for own in known.values())  # of round 1 nothing, of two rounds one model each

    def test_every_client_without_a_model_counts_as_the_mean(self, run: Runs) -> None:
        with _again(run("run", method="apple", participation=0.5, rounds=1, **{"num-clients": 8})) as (again, models):
            strategy: Any = again.strategy
            mean, everyone = again.checkpoint.arrays, strategy.trainable()
            assert len(everyone) - len(models) >= 2
            client, other, *_ = models
            p = {name: 0.1 * (1 + place) for place, name in enumerate(everyone)}
            rest = strategy._rest(again.round, mean, [client], [[other]], {client: p})
            for name, array in rest.items():
                kept = [p[j] * models.get(j, mean)[name] for j in everyone if j not in (client, other)]
                np.testing.assert_allclose(array[0], sum(kept), rtol=1e-5, atol=1e-6)

    def test_models_never_received_come_first_and_then_those_of_strong_relationships(self, run: Runs) -> None:
        with _again(run("run", method="apple", participation=1.0, **{"num-clients": 6})) as (again, models):
            strategy: Any = again.strategy
            client, *others = models
            strategy.relations[client] = {client: 0.2, others[0]: 0.1, others[1]: 9.0, others[2]: -40.0}
            p = {other: strategy.relations[client].get(other, 0.1) for other in others}
            assert strategy._choose(9, client, p, 1) == [others[3]]
            assert strategy._choose(9, client, p, 2) == [others[3], others[2]]  # odds of 1.8^40 to 1.8^9
            assert strategy._choose(9, client, p, 4) == others

    @pytest.mark.parametrize(("number", "base"), [(1, 1.5), (9, 3.0)])  # b = 9 rounds · 1 model / 3 members
    def test_other_models_are_drawn_by_their_relationships_whatever_clients_say(
        self, number: int, base: float, run: Runs
    ) -> None:
        with _again(run("run", method="apple", participation=1.0, **{"num-clients": 4})) as (again, models):
            strategy: Any = again.strategy
            others, p = list(models), np.array([0.0, 1.0, -3.0, 2.0][: len(models)])
            drawn = []
            for draw in range(600):
                strategy.relations[f"new-{draw}"] = own = dict(zip(others, p.tolist(), strict=True))
                drawn += strategy._choose(number, f"new-{draw}", own, 1)
            odds = base ** np.abs(p)
            share = np.array([drawn.count(other) for other in others]) / 600
            np.testing.assert_allclose(share, odds / odds.sum(), atol=0.07)
            assert len(others) == 3
            strategy.relations["liar"] = own = dict(zip(others, [3e38, 0.0, 0.0, 0.0], strict=False))
            assert strategy._choose(1, "liar", own, 2)[0] == others[0]

    def test_relationships_take_plain_steps(self, tmp_path: Path) -> None:
        """Weight decay would pull them towards 0 instead of p_0."""
        network = build("linear", (1, 8, 8), 10, 1)
        sent = {BESIDE + name: array[1:] for name, array in _others(network, 2).items()}
        sent |= {BESIDE + name: np.array([0.5, 0.5], np.float32) for name in (RELATIONS, INITIAL)}
        learned = []
        for decay in (0.0, 0.9):
            keys: dict[str, Value] = {"weight-decay": decay, "apple.relation-learning-rate": 0.1}
            client = self._client(tmp_path / str(decay), network, **keys)
            client.state.save({name.removeprefix(BESIDE): array[0] for name, array in sent.items()
                               if name.endswith(("weight", "bias"))}, CORE)  # fmt: skip
            learned.append(perform(client, "train", sent).arrays[RELATIONS])
        np.testing.assert_array_equal(*learned)

    def test_one_client_has_nobody_to_combine_with(self, run: Runs) -> None:
        with pytest.raises(ConfigurationError, match="'apple' combines the models of several clients"):
            run("run", method="apple", **{"num-clients": 1, "unseen-fraction": 0.0, "classes-per-client": 10})
        run("two", method="apple", rounds=1, **{"num-clients": 2, "unseen-fraction": 0.0, "classes-per-client": 10})

    def test_a_single_example_passes_batch_norm(self, tmp_path: Path) -> None:
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
        client = make_client(_examples(1), network, folder=tmp_path, method="apple")
        sent = {BESIDE + name: array[None] for name, array in get_arrays(network).items()}
        halves = np.array([0.5, 0.5], np.float32)
        answer = perform(client, "train", sent | {BESIDE + RELATIONS: halves, BESIDE + INITIAL: halves})
        assert all(np.isfinite(array).all() for array in answer.arrays.values())


def test_robust_aggregation_is_refused_rather_than_ignored(run: Runs) -> None:
    for method in ("fedamp", "fedproto"):
        with pytest.raises(ConfigurationError, match=f"aggregation: 'median' .* method '{method}': .*; use 'mean'"):
            run("run", method=method, aggregation="median")


def test_stock_strategies_send_no_models(tmp_path: Path) -> None:
    network = build("linear", (1, 8, 8), 10, 1)
    for method in ("fedfomo", "apple"):
        client = make_client(_examples(), network, folder=tmp_path, method=method, model="linear")
        with pytest.raises(RunError, match="own strategy"):
            client.fit([*get_arrays(network).values()], {})
