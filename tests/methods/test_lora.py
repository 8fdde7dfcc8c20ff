"""Federated LoRA: exact means, limits in which methods become others, unequal ranks, what travels, what is refused."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor, nn

from florilegium.apps.methods.registry import METHODS
from florilegium.apps.runs.personal import reopened
from florilegium.clients.core.export import load_model
from florilegium.clients.core.wire import Reply, unpack
from florilegium.clients.hetlora import prunable
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.built import build_network
from florilegium.models.low_rank import CORRECTION, A, B, layers_of
from florilegium.models.parameters import Arrays, get_arrays, whole
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, mostly_long, perform, settings

Shape = tuple[int, ...]
OUTPUTS = 12
"""Outputs of the adapted layers, fewer than their 64 inputs."""


class Mixed(nn.Module):
    """Two dense layers side by side."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(inputs, OUTPUTS), nn.Linear(inputs, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (b, 12) for inputs (b, n)."""
        return torch.tanh(self.query(x)) + self.value(x)


def tiny(shape: Shape, classes: int) -> nn.Module:
    """Return the network of these tests."""
    return nn.Sequential(
        OrderedDict(flat=nn.Flatten(), body=Mixed(math.prod(shape)), classifier=nn.Linear(OUTPUTS, classes))
    )


MODEL: dict[str, Value] = {
    "model": f"{__name__}:tiny", "adapter.targets": "query,value", "adapter.rank": 4, "adapter.alpha": 6.0,
}  # fmt: skip
SCALE = 6.0 / 4
KEYS: dict[str, Value] = {
    **MODEL, "num-clients": 4, "samples-per-client": 40, "participation": 1.0, "rounds": 2, "local-epochs": 1,
    "learning-rate": 0.1, "batch-size": 20, "evaluate-every": 0,
}  # fmt: skip
UNEQUAL: dict[str, Value] = {"ranks.levels": "1,0.5,0.25", "num-clients": 6}
RANKED = ["flora", "fedex-lora", "flexlora", "hetlora", "hlora"]
LORA = ["fedit", "ffa-lora", "fedsa-lora", *RANKED]
STRONG: dict[str, Value] = {"local-epochs": 10}
"""Training after which clients' matrices differ."""
PLAIN_HETLORA: dict[str, Value] = {"ranks.sparsity": False, "ranks.decay": 1.0}


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _network(**keys: Value) -> nn.Sequential:
    chosen = settings(**{**MODEL, "method": "fedit", **keys})
    return build_network(chosen, (1, 8, 8), 10, chosen.seed)


FROZEN = {name: tensor.detach().numpy() for name, tensor in whole(_network()).items()}


def _effective(arrays: Arrays) -> dict[str, NDArray[np.float64]]:
    """Return the weights that the adapted layers compute with, (12, 64): W + Δ + s·B·A."""
    found = {}
    for layer in ("body_query.weight", "body_value.weight"):
        base = FROZEN[f"{layer.removesuffix('.weight').replace('_', '.')}.base_layer.weight"].astype(np.float64)
        a, b = arrays.get(A + layer, FROZEN[A + layer]), arrays[B + layer]
        found[layer] = base + arrays.get(CORRECTION + layer, 0.0) + SCALE * b.astype(np.float64) @ a
    return found


def _trained(run: Runs) -> dict[int, list[tuple[float, Arrays, Arrays]]]:
    """Return by round the weight of each client's reply, what it was sent, and its arrays after training."""
    found: dict[int, list[tuple[float, Arrays, Arrays]]] = {}
    for request, reply in zip(run.grid.sent, run.grid.received, strict=True):
        if request.metadata.message_type != "train":
            continue
        config: Any = request.content["config"]
        sent, read = unpack(request.content["arrays"]), Reply.unpack(reply.content)  # type: ignore[arg-type]
        for row, weight in enumerate(read.metrics["weight"]):
            if config["reduce"] == "stack":
                own = {name: stack[row] for name, stack in read.arrays.items()}
            else:  # of a node with a single client
                assert len(read.clients) == 1
                own = {name: sent[name] + change / weight for name, change in read.arrays.items()}
            found.setdefault(config["round"], []).append((weight, sent, own))
    return found


def _mean(values: list[tuple[float, Any]]) -> Any:
    return sum(weight * value for weight, value in values) / sum(weight for weight, _ in values)


def _mean_of_products(replies: list[tuple[float, Arrays, Arrays]]) -> dict[str, NDArray[np.float64]]:
    """Return the mean of the weights that each client's layers compute with after training."""
    each = [
        (w, _effective(own | {name: array for name, array in sent.items() if name.startswith(CORRECTION)}))
        for w, sent, own in replies
    ]
    return {layer: _mean([(w, weights[layer]) for w, weights in each]) for layer in each[0][1]}


def _check_same(found: dict[str, Any], expected: dict[str, Any], atol: float) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=atol, err_msg=name)


class TestExactMeans:
    @pytest.mark.parametrize("keys", [{}, UNEQUAL], ids=["equal ranks", "unequal ranks"])
    @pytest.mark.parametrize("method", ["flora", "fedex-lora"])
    def test_a_round_gives_the_mean_of_the_full_products(self, run: Runs, method: str, keys: Any) -> None:
        path = run("run", method=method, **keys)
        replies = _trained(run)
        if keys:
            assert {len(sent["A.body_query.weight"]) for _, sent, _ in replies[1]} == {4, 2, 1}
        _check_same(_effective(read_checkpoint(path).arrays), _mean_of_products(replies[2]), 1e-5)
        first = replies[2][0][1]  # the first round's result, as a client of whole rank is sent it
        if len(first["A.body_query.weight"]) == 4:
            _check_same(_effective(first), _mean_of_products(replies[1]), 1e-5)

    def test_fedits_mean_is_not_exact(self, run: Runs) -> None:
        path = run("run", nodes=4, method="fedit", **STRONG)
        found, exact = _effective(read_checkpoint(path).arrays), _mean_of_products(_trained(run)[2])
        assert max(np.abs(found[layer] - exact[layer]).max() for layer in exact) > 1e-3

    def test_ffa_loras_mean_is_exact_and_a_never_travels(self, run: Runs) -> None:
        path = run("run", nodes=4, method="ffa-lora")
        replies = _trained(run)
        _check_same(_effective(read_checkpoint(path).arrays), _mean_of_products(replies[2]), 1e-6)
        for _, sent, own in replies[1] + replies[2]:
            assert not [name for name in (*sent, *own) if name.startswith(A)]

    def test_the_matrices_of_flora_start_anew(self, run: Runs) -> None:
        path = run("run", method="flora")
        second, third = _trained(run)[2][0][1], read_checkpoint(path).arrays
        first = {name: array for name, array in _trained(run)[1][0][1].items() if name.startswith(A)}
        for arrays in (second, third):
            for layer in layers_of(arrays):
                assert not arrays[B + layer].any()
                assert np.abs(arrays[A + layer]).max() <= 1 / 8  # PEFT's bound, 1/√64
                assert arrays[A + layer].std() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.15)
        for name, array in first.items():
            assert not np.array_equal(array, second[name])
            assert not np.array_equal(second[name], third[name])

    @pytest.mark.parametrize("method", RANKED)
    def test_other_arrays_are_averaged(self, run: Runs, method: str) -> None:
        path = run("run", method=method, rounds=1, **UNEQUAL)
        for name in ("classifier.weight", "classifier.bias"):
            expected = _mean([(w, own[name].astype(np.float64)) for w, _, own in _trained(run)[1]])
            np.testing.assert_allclose(read_checkpoint(path).arrays[name], expected, atol=1e-7)


class TestLimits:
    @pytest.mark.parametrize("method", RANKED)
    def test_a_single_client_has_the_weights_of_fedit(self, run: Runs, method: str) -> None:
        keys: dict[str, Value] = {"num-clients": 1, "rounds": 1, "min-success": 0.0}
        plain = read_checkpoint(run("plain", method="fedit", **keys)).arrays
        found = read_checkpoint(run("run", method=method, **keys, **PLAIN_HETLORA)).arrays
        _check_same(_effective(found), _effective(plain), 1e-6)
        for name in ("classifier.weight", "classifier.bias"):
            np.testing.assert_allclose(found[name], plain[name], atol=1e-6)

    @pytest.mark.parametrize("method", ["fedex-lora", "hetlora"])
    def test_a_single_client_stays_with_fedit(self, run: Runs, method: str) -> None:
        keys: dict[str, Value] = {"num-clients": 1, "rounds": 3}
        plain = read_checkpoint(run("plain", method="fedit", **keys)).arrays
        found = read_checkpoint(run("run", method=method, **keys, **PLAIN_HETLORA)).arrays
        for name, array in plain.items():
            np.testing.assert_allclose(found[name], array, atol=1e-6)

    def test_hetlora_of_equal_ranks_is_fedit(self, run: Runs) -> None:
        plain = read_checkpoint(run("plain", method="fedit", rounds=3)).arrays
        found = read_checkpoint(run("run", method="hetlora", rounds=3, **PLAIN_HETLORA)).arrays
        _check_same(found, plain, 1e-6)

    @pytest.mark.parametrize("method", ["flexlora", "hlora"])
    def test_at_full_rank_the_mean_is_exact(self, run: Runs, method: str) -> None:
        path = run("run", method=method, **{"adapter.rank": OUTPUTS, "adapter.alpha": SCALE * OUTPUTS})
        _check_same(_effective(read_checkpoint(path).arrays), _mean_of_products(_trained(run)[2]), 1e-6)

    @pytest.mark.parametrize("method", ["flexlora", "hlora"])
    def test_at_lower_rank_the_error_is_that_of_the_last_singular_values(self, run: Runs, method: str) -> None:
        path = run("run", method=method, **UNEQUAL, **STRONG)
        found, exact = _effective(read_checkpoint(path).arrays), _mean_of_products(_trained(run)[2])
        for layer, weights in exact.items():
            base = FROZEN[f"{layer.removesuffix('.weight').replace('_', '.')}.base_layer.weight"]
            values = np.linalg.svd(weights - base, compute_uv=False)
            assert values[4] > 1e-3  # there is an error
            assert np.linalg.norm(found[layer] - weights) == pytest.approx(np.linalg.norm(values[4:]), rel=1e-3)

    def test_clients_of_lower_rank_get_the_best_approximation(self, run: Runs) -> None:
        for method in ("flexlora", "hlora"):
            run(method, method=method, **UNEQUAL, **STRONG)
            exact = _mean_of_products(_trained(run)[1])
            for _, sent, _ in _trained(run)[2]:
                rank = len(sent["A.body_query.weight"])
                for layer, weights in _effective(sent).items():
                    base = FROZEN[f"{layer.removesuffix('.weight').replace('_', '.')}.base_layer.weight"]
                    values = np.linalg.svd(exact[layer] - base, compute_uv=False)
                    error = np.linalg.norm(weights - exact[layer])
                    assert error == pytest.approx(np.linalg.norm(values[rank:]), rel=1e-3)

    def test_hlora_computes_with_flexloras_weights(self, run: Runs) -> None:
        found = [read_checkpoint(run(m, method=m, rounds=1, **UNEQUAL)).arrays for m in ("hlora", "flexlora")]
        _check_same(_effective(found[0]), _effective(found[1]), 1e-6)
        for layer in layers_of(found[0]):
            b, a = found[0][B + layer], found[1][A + layer]
            np.testing.assert_allclose(b.T @ b, np.eye(4), atol=1e-5)  # B = U
            np.testing.assert_allclose(a @ a.T, np.eye(4), atol=1e-5)  # A = Vᵀ


class TestUnequalRanks:
    @pytest.mark.parametrize("method", RANKED)
    def test_parts_of_the_clients_own_rank_travel(self, run: Runs, method: str) -> None:
        path = run("run", method=method, rounds=1, **UNEQUAL)
        summary = json.loads((path / "summary.json").read_text())
        up = down = 0
        for _, sent, own in _trained(run)[1]:
            rank = len(sent["A.body_query.weight"])
            matrices = 2 * rank * (64 + OUTPUTS)
            head = 10 * OUTPUTS + 10
            up += 4 * (matrices + head)
            down += 4 * (matrices + head + (2 * 64 * OUTPUTS if CORRECTION + "body_query.weight" in sent else 0))
            assert own.keys() == {name for name in sent if not name.startswith(CORRECTION)}
        assert (summary["bytes_up"], summary["bytes_down"]) == (up, down)

    def test_evaluations_tell_of_each_rank(self, run: Runs) -> None:
        path = run("run", method="flexlora", **UNEQUAL, **{"evaluate-every": 2, "unseen-fraction": 0.34})
        ranks = json.loads((path / "summary.json").read_text())["ranks"]
        assert {*ranks} <= {"4", "2", "1"}
        assert sum(one["clients"] for one in ranks.values()) == 6
        head, *rows = (path / "clients.csv").read_text().splitlines()
        assert {row.split(",")[head.split(",").index("rank")] for row in rows} == {*ranks}

    def test_what_a_client_lacks_stays_zero(self) -> None:
        network = _network()
        received = {
            name: array[:2] if name.startswith(A) else array[:, :2] if name.startswith(B) else array
            for name, array in get_arrays(network).items()
        }
        client = make_client(_examples(), network, method="flexlora", **MODEL, **{"local-epochs": 3})
        found = perform(client, "train", received).arrays
        assert found["B.body_query.weight"].shape == (OUTPUTS, 2)
        assert found["B.body_query.weight"].all()
        inside = get_arrays(network)
        assert not inside["A.body_query.weight"][2:].any()
        assert not inside["B.body_query.weight"][:, 2:].any()

    def test_private_training_gives_no_client_a_higher_rank(self, tmp_path: Path) -> None:
        network = _network()
        received = {
            name: array[:2] if name.startswith(A) else array[:, :2] if name.startswith(B) else array
            for name, array in get_arrays(network).items()
        }
        keys: dict[str, Value] = {"privacy.unit": "example", "privacy.noise-multiplier": 1.0}
        perform(make_client(_examples(), network, folder=tmp_path, method="flora", **MODEL, **keys), "train", received)
        inside = get_arrays(network)
        assert inside["B.body_query.weight"][:, :2].all()
        assert not inside["A.body_query.weight"][2:].any()
        assert not inside["B.body_query.weight"][:, 2:].any()

    def test_a_device_refuses_a_higher_rank_than_it_holds(self) -> None:
        network = _network()
        client = make_client(_examples(), network, method="flexlora", **MODEL)
        client.capacity = 0.6  # ⌈0.6·4⌉ = 3
        arrays = get_arrays(network)
        with pytest.raises(RunError, match="asked for matrices of rank 4, this device holds 3"):
            perform(client, "train", arrays)
        arrays |= {name: a[:3] if name.startswith(A) else a[:, :3] for name, a in arrays.items() if name[1] == "."}
        perform(client, "train", arrays)

    @pytest.mark.parametrize("method", RANKED)
    def test_devices_train_the_ranks_that_they_hold(self, run: Runs, tmp_path: Path, method: str) -> None:
        federation, dataset = federate(settings(**{**KEYS, "method": method}))
        nodes: list[dict[str, Any]] = []
        for client, capacity in enumerate((1.0, 0.5, 0.2)):
            write_device(federation, dataset, client, tmp_path / f"data{client}")
            names = {"client-id": f"d{client}", "data-path": str(tmp_path / f"data{client}")}
            nodes.append({**names, "state-dir": str(tmp_path / "state"), "capacity": capacity})
        path = run("run", nodes=nodes, method=method, rounds=1, **{"ranks.decay": 1.0, "num-clients": 3})
        assert not (path / "failures.jsonl").exists()
        assert sorted(len(sent["A.body_query.weight"]) for _, sent, _ in _trained(run)[1]) == [1, 2, 4]
        head, *rows = [row.split(",") for row in (path / "clients.csv").read_text().splitlines()]
        assert [row[head.index("rank")] for row in rows] == ["4", "2", "1"]
        model, _ = load_model(tmp_path / "state" / "run" / "d2")
        held = get_arrays(model)
        assert not held["B.body_query.weight"][:, 1:].any()

    def test_a_client_is_as_large_as_its_rank(self, run: Runs) -> None:
        with reopened(run("run", method="flexlora", rounds=1, **UNEQUAL)) as again:
            for client in again.strategy.trainable():
                rank = again.strategy.size(client)  # type: ignore[attr-defined]
                numbers = 2 * rank * (64 + OUTPUTS) + 10 * OUTPUTS + 10
                assert again.strategy.network_bytes(client) == 4 * numbers

    def test_flexlora_fills_up_what_a_mean_of_low_rank_lacks(self, run: Runs) -> None:
        path = run("run", method="flexlora", rounds=1, **{"num-clients": 1, "ranks.levels": "0.5"})
        found = read_checkpoint(path).arrays
        for layer in layers_of(found):
            assert not found[B + layer][:, 2:].any()
            np.testing.assert_allclose(found[A + layer] @ found[A + layer].T, np.eye(4), atol=1e-5)

    def test_hlora_sends_no_more_than_there_is(self, run: Runs) -> None:
        """The only client has rank 2, so that the first mean has rank 2, for a client of rank 4 too."""
        path = run("run", method="hlora", rounds=1, **{"num-clients": 1, "ranks.levels": "0.5"})
        found = read_checkpoint(path).arrays
        for layer in layers_of(found):
            assert not found[A + layer][2:].any()
            assert found[A + layer][:2].all()
        run("whole", method="hlora", rounds=2, **{"num-clients": 1, "ranks.levels": "1", "init": "run"})
        ((_, sent, _),) = _trained(run)[1]
        assert sent["A.body_query.weight"].shape == (2, 64)
        assert sent["B.body_query.weight"].shape == (OUTPUTS, 2)

    def test_hlora_drops_small_components(self, run: Runs) -> None:
        path = run("run", method="hlora", rounds=1, **{"ranks.tolerance": 0.2})
        exact, found = _mean_of_products(_trained(run)[1]), read_checkpoint(path).arrays
        for layer in layers_of(found):
            base = FROZEN[f"{layer.removesuffix('.weight').replace('_', '.')}.base_layer.weight"]
            values = np.linalg.svd(exact[layer] - base, compute_uv=False)
            kept = min(4, int(np.sum(values > 0.2 * values[0])))
            assert int(found[A + layer].any(axis=1).sum()) == kept

    def test_what_nobody_has_changed_stays(self, run: Runs) -> None:
        for method in ("flexlora", "hlora"):
            path = run(method, method=method, rounds=1, **{"learning-rate": 1e-50})
            found = read_checkpoint(path).arrays
            for layer in layers_of(found):
                assert not found[B + layer].any()
                assert found[A + layer].any(axis=1).all()  # else it could never be trained


class TestHetLoRA:
    def test_clients_count_by_the_norms_of_their_products(self, run: Runs) -> None:
        path = run("run", method="hetlora", rounds=1, **UNEQUAL, **{"ranks.decay": 1.0})
        replies = _trained(run)[1]
        norms = [
            math.sqrt(sum(np.sum((own[B + layer] @ own[A + layer]) ** 2) for layer in layers_of(own)))
            for _, _, own in replies
        ]
        found = read_checkpoint(path).arrays
        for name in ("A.body_query.weight", "B.body_value.weight"):
            expected = np.zeros(found[name].shape)
            for norm, (_, _, own) in zip(norms, replies, strict=True):
                expected[tuple(map(slice, own[name].shape))] += norm / sum(norms) * own[name]
            np.testing.assert_allclose(found[name], expected, atol=1e-6)

    @pytest.mark.parametrize(("penalty", "size"), [(0.0, 0.001), (1.0, 0.1)])
    def test_a_client_prunes_what_training_has_made_smaller(self, penalty: float, size: float) -> None:
        network = _network()
        arrays = get_arrays(network)
        rng = np.random.default_rng(1)
        arrays |= {n: rng.normal(0, size, a.shape).astype(np.float32) for n, a in arrays.items() if n.startswith(B)}
        keys: dict[str, Value] = {
            "method": "hetlora", "ranks.decay": 0.5, "ranks.penalty": penalty, "learning-rate": 0.01,
            "local-steps": 5, "batch-size": 12,
        }  # fmt: skip
        answer = perform(make_client(_examples(), network, **MODEL, **keys), "train", arrays)
        shrunk = prunable(get_arrays(network), 2) < prunable(arrays, 2)
        assert shrunk == (penalty > 0)
        assert answer.metrics["rank"] == (2 if shrunk else 4)
        assert answer.arrays["A.body_query.weight"][2:].any() != shrunk
        assert answer.arrays["B.body_query.weight"][:, 2:].any() != shrunk

    def test_the_penalty_is_that_of_automatic_differentiation(self) -> None:
        network = _network()
        arrays = get_arrays(network)
        rng = np.random.default_rng(2)
        arrays |= {n: rng.normal(0, 0.1, a.shape).astype(np.float32) for n, a in arrays.items() if n.startswith(B)}
        keys: dict[str, Value] = {
            "method": "hetlora", "ranks.decay": 0.8, "ranks.penalty": 0.3, "learning-rate": 0.1, "local-steps": 1,
            "batch-size": 12,
        }  # fmt: skip
        perform(make_client(_examples(), network, **MODEL, **keys), "train", arrays)
        found = get_arrays(network)  # before it is pruned
        perform(make_client(_examples(), network, **MODEL, **{**keys, "ranks.penalty": 0.0}), "train", arrays)
        plain = get_arrays(network)
        tensors = {n: torch.from_numpy(a.copy()).requires_grad_() for n, a in arrays.items() if n[1] == "."}
        penalty = sum(tensors[A + layer][3:].norm() * tensors[B + layer][:, 3:].norm() for layer in layers_of(arrays))
        penalty.backward()  # type: ignore[union-attr]
        for name, tensor in tensors.items():
            assert tensor.grad is not None
            np.testing.assert_allclose(plain[name] - found[name], 0.1 * 0.3 * tensor.grad, atol=1e-6)

    def test_a_pruned_client_is_sent_its_new_rank(self, run: Runs) -> None:
        keys: dict[str, Value] = {"ranks.decay": 0.5, "ranks.penalty": 30.0, "learning-rate": 0.01, "rounds": 3}
        path = run("run", method="hetlora", **keys)
        pruned = read_checkpoint(path).facts["own"]["pruned"]
        assert pruned
        assert {1, 2} >= {*pruned.values()}
        replies = _trained(run)
        assert {len(sent["A.body_query.weight"]) for _, sent, _ in replies[1]} == {4}
        assert {len(sent["A.body_query.weight"]) for _, sent, _ in replies[3]} & {1, 2}

    def test_a_resumed_run_knows_who_has_pruned(self, run: Runs) -> None:
        keys: dict[str, Value] = {"ranks.decay": 0.5, "ranks.penalty": 30.0, "learning-rate": 0.01, "rounds": 4}
        whole, broken = run.whole_and_broken(4, method="hetlora", **keys, **{"evaluate-every": 1})
        first, second = (read_checkpoint(path) for path in (whole, broken))
        assert read_checkpoint(whole).facts["own"]["pruned"]
        assert first.facts["own"] == second.facts["own"]
        assert all(np.array_equal(array, second.arrays[name]) for name, array in first.arrays.items())

    @pytest.mark.parametrize("told", [0.0, 1e9, math.nan])
    def test_a_rank_that_cannot_be_is_not_believed(self, run: Runs, told: float) -> None:
        def lie(message: Message) -> Message | None:
            config: Any = message.content.get("config", {})
            if message.metadata.message_type != "train" or "0" not in config.get("clients", ()):
                return None
            arrays = {n: a[None] for n, a in unpack(message.content["arrays"]).items()}  # type: ignore[arg-type]
            numbers = {"num-examples": 40.0, "weight": 40.0, "bytes-down": 1.0, "bytes-up": 1.0, "rank": told}
            reply = Reply(["0"], arrays, {name: [value] for name, value in numbers.items()}, {})
            return Message(reply.pack(), reply_to=message)

        path = run("run", nodes=4, intercept=lie, method="hetlora", rounds=1, **{"min-success": 0.5})
        assert "0" not in read_checkpoint(path).facts["own"]["pruned"]


class TestFedSALoRA:
    @pytest.mark.parametrize("head", ["personal", "shared"])
    def test_b_stays_with_the_client(self, run: Runs, head: str) -> None:
        run("run", nodes=4, method="fedsa-lora", **{"fedsa-lora.head": head})
        expected = {"A.body_query.weight", "A.body_value.weight"}
        expected |= {"classifier.weight", "classifier.bias"} if head == "shared" else set()
        for _, sent, own in _trained(run)[2]:
            assert sent.keys() == own.keys() == expected

    def test_a_is_the_mean(self, run: Runs) -> None:
        path = run("run", nodes=4, method="fedsa-lora")
        for name, array in read_checkpoint(path).arrays.items():
            expected = _mean([(w, own[name].astype(np.float64)) for w, _, own in _trained(run)[2]])
            np.testing.assert_allclose(array, expected, atol=1e-6)


class TestHostileReplies:
    @pytest.mark.parametrize("method", RANKED)
    def test_matrices_of_another_rank_are_not_used(self, run: Runs, method: str) -> None:
        def lie(message: Message) -> Message | None:
            config: Any = message.content.get("config", {})
            if message.metadata.message_type != "train" or "0" not in config.get("clients", ()):
                return None
            count = len(config["clients"])
            network = get_arrays(_network(**{"adapter.rank": 8}))
            arrays = {name: np.stack([array] * count) for name, array in network.items()}
            numbers = {"num-examples": 40.0, "weight": 40.0, "bytes-down": 1.0, "bytes-up": 1.0}
            reply = Reply(config["clients"], arrays, {name: [v] * count for name, v in numbers.items()}, {})
            return Message(reply.pack(), reply_to=message)

        path = run("run", intercept=lie, method=method, rounds=1, **{"min-success": 0.1})
        assert "its arrays have shapes" in (path / "failures.jsonl").read_text()

    def test_a_client_counts_no_more_than_its_examples(self, run: Runs) -> None:
        def lie(message: Message) -> Message | None:
            config: Any = message.content.get("config", {})
            if message.metadata.message_type != "train" or "0" not in config.get("clients", ()):
                return None
            sent = unpack(message.content["arrays"])  # type: ignore[arg-type]
            arrays = {n: a[None] + 1 for n, a in sent.items() if not n.startswith(CORRECTION)}
            numbers = {"num-examples": 40.0, "weight": 1e9, "bytes-down": 1.0, "bytes-up": 1.0}
            reply = Reply(["0"], arrays, {name: [value] for name, value in numbers.items()}, {})
            return Message(reply.pack(), reply_to=message)

        path = run("run", nodes=4, intercept=lie, method="flexlora", rounds=1)
        expected = _mean([(min(w, 40.0), own["classifier.bias"]) for w, _, own in _trained(run)[1]])
        np.testing.assert_allclose(read_checkpoint(path).arrays["classifier.bias"], expected, atol=1e-6)

    def test_an_update_that_is_too_long_is_not_used(self, run: Runs) -> None:
        def lie(message: Message) -> Message | None:
            config: Any = message.content.get("config", {})
            if message.metadata.message_type != "train" or "0" not in config.get("clients", ()):
                return None
            sent = unpack(message.content["arrays"])  # type: ignore[arg-type]
            arrays = {n: a[None] + 100 for n, a in sent.items() if not n.startswith(CORRECTION)}
            numbers = {"num-examples": 40.0, "weight": 40.0, "bytes-down": 1.0, "bytes-up": 1.0}
            reply = Reply(["0"], arrays, {name: [value] for name, value in numbers.items()}, {})
            return Message(reply.pack(), reply_to=message)

        keys: dict[str, Value] = {"min-success": 0.5, "max-update-norm": 50.0}
        path = run("run", nodes=4, intercept=lie, method="flora", rounds=1, **keys)
        failures = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
        assert [(one["client"], "max-update-norm" in one["reason"]) for one in failures] == [("0", True)]
        assert len(_trained(run)[1]) == 4
        assert np.abs(read_checkpoint(path).arrays["classifier.weight"]).max() < 10


class TestRefusals:
    @pytest.mark.parametrize("method", LORA)
    @pytest.mark.parametrize("kind", ["ia3", "head"])
    def test_methods_of_lora_need_lora(self, run: Runs, method: str, kind: str) -> None:
        with pytest.raises(ConfigurationError, match=f"adapter.kind: method '{method}' sets it to 'lora'.*'{kind}'"):
            run("run", method=method, **{"adapter.kind": kind})

    @pytest.mark.parametrize(
        ("method", "key", "value"),
        [
            ("flora", "adapter.fixed", "A"),
            ("fedsa-lora", "adapter.fixed", "A"),
            ("flexlora", "adapter.dora", True),
            ("hlora", "server-learning-rate", 0.5),
        ],
    )
    def test_keys_that_methods_set_themselves(self, run: Runs, method: str, key: str, value: Value) -> None:
        with pytest.raises(ConfigurationError, match=f"{key}: method '{method}' sets it to"):
            run("run", method=method, **{key: value})

    def test_a_server_optimizer(self, run: Runs) -> None:
        with pytest.raises(ConfigurationError, match="server-optimizer, server-momentum: method 'flora'"):
            run("run", method="flora", **{"server-momentum": 0.9})

    @pytest.mark.parametrize(
        ("keys", "said"),
        [({}, "adapter.kind, adapter.fixed: method 'flora'"), ({"adapter.kind": "lora"}, "adapter.correction: method")],
    )
    def test_what_a_method_that_sets_nothing_needs(
        self, run: Runs, keys: Any, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(METHODS.own, "flora", replace(METHODS["flora"], implies={}))  # type: ignore[arg-type]
        more = keys or {"adapter.targets": ""}
        with pytest.raises(ConfigurationError, match=said):
            run("run", method="flora", **more)

    @pytest.mark.parametrize("levels", ["", "1,0", "2"])
    def test_levels(self, run: Runs, levels: str) -> None:
        with pytest.raises(ConfigurationError, match=r"ranks\.levels: "):
            run("run", method="hlora", **{"ranks.levels": levels})


@pytest.mark.parametrize("method", mostly_long(LORA, "hetlora"))
def test_resume_and_packing(run: Runs, method: str) -> None:
    keys: dict[str, Value] = {"method": method, "rounds": 4, "evaluate-every": 2, "participation": 0.75}
    run.check_resume_and_packing(**{**keys, **(UNEQUAL if method in RANKED else {}), "ranks.decay": 0.5})


def _examples() -> Examples:
    """Return twelve images of three classes."""
    generator = torch.Generator().manual_seed(3)
    return Examples(torch.randn(12, 1, 8, 8, generator=generator), torch.arange(12) % 3)
