"""Large models: what is held of them in memory, counted; and that sums, steps and messages are those of small ones."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from florilegium.clients.core import wire
from florilegium.clients.core.compression.low_rank import LowRank
from florilegium.clients.core.compression.quantise import Quantise
from florilegium.clients.core.compression.scheme import Scheme
from florilegium.clients.core.compression.top_k import TopK
from florilegium.clients.core.reduce import Reduction
from florilegium.clients.core.reports import ALWAYS
from florilegium.clients.core.secure_layout import Layout, Scale
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Reply, Request, Work, flat, unpack
from florilegium.clients.layers.compression import Compression, Messages
from florilegium.common import files, spool
from florilegium.common.files import check_tensors, write_tensors
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays, moved, norm
from florilegium.privacy.secure_sum.masks import Vector
from florilegium.strategies.core.server_step import ServerStep
from florilegium.strategies.exchange.exchange import Outcome, collect
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.flower_inside import identify
from tests.support import settings

LAYERS, WIDTH = 8, 1 << 18
WEIGHTS = (3.0, 5.0, 2.0)


@pytest.fixture(params=[1, 1 << 40], ids=["large", "small"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether all arrays are taken to be large."""
    for module in (spool, wire, files):
        monkeypatch.setattr(module, "LARGE", request.param)
    identify()
    return bool(request.param == 1)


def _model(seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {f"layer{n}": rng.standard_normal(WIDTH, np.float32) for n in range(LAYERS)}


def _peak(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what ``work`` returns, and the most that it held in memory beside what was there, in models."""
    tracemalloc.start()
    try:
        found = work()
        return found, tracemalloc.get_traced_memory()[1] / (4 * LAYERS * WIDTH)
    finally:
        tracemalloc.stop()


def _message(index: int, model: Arrays) -> Message:
    asked = Message(Request([str(index)], "train", "delta", Work(1)).pack(flat(model)), 1, "train")
    update = {name: np.float32(WEIGHTS[index]) * array for name, array in _model(index + 1).items()}
    numbers = {"num-examples": [WEIGHTS[index]], "weight": [WEIGHTS[index]], "bytes-up": [1.0], "bytes-down": [1.0]}
    return Message(Reply([str(index)], update, numbers, {}).pack(), reply_to=asked)


def test_the_server_holds_a_new_model_beside_the_old_one(large: bool) -> None:
    """The replies of three nodes, their sum in double precision and its mean would be seven models more."""
    model, clients = _model(), ["0", "1", "2"]
    replies = [_message(index, model) for index in range(3)]

    def round() -> Arrays:
        outcome = collect(
            clients, {n: [c] for n, c in enumerate(clients)}, replies, Expected(changes_of=model), deployed=False
        )
        means = outcome.means([*model])
        return {name: moved(array, means[name], 1.0) for name, array in model.items()}

    found, peak = _peak(round)
    assert peak < 1.2 if large else peak > 4
    for name, array in model.items():
        total = sum(np.float64(np.float32(w) * _model(k + 1)[name]) for k, w in enumerate(WEIGHTS))
        assert found[name].tobytes() == (array + total / sum(WEIGHTS)).astype(np.float32).tobytes()


def test_a_node_adds_up_its_clients_without_memory_for_them(large: bool) -> None:
    model, trained = _model(), [_model(seed) for seed in (1, 2)]

    def reply() -> Any:
        reduction = Reduction("delta", model)
        for weight, arrays in zip(WEIGHTS, trained, strict=False):
            reduction.add(arrays, weight)
        return Reply(["0", "1"], reduction.result(), {}, {}).pack()

    content, peak = _peak(reply)
    assert peak < 0.2 if large else peak > 2
    for name, array in unpack(content["arrays"]).items():
        sent = model[name].astype(float)
        total = 3.0 * (trained[0][name] - sent) + 5.0 * (trained[1][name] - sent)
        assert array.tobytes() == total.astype(np.float32).tobytes()


def test_secure_sums_need_no_memory_for_vectors(large: bool) -> None:
    """A client's update, its integers and masks, and on the server the sum of them and its mean."""
    model, mask, numbers = _model(), [(bytes(32), 1)], {"loss": 1.0}
    scale = Scale(3, sum(WEIGHTS), uniform=False, norm=1e4, range=1.0, coarse=True)
    trained = [_model(seed) for seed in (1, 2, 3)]
    layout = Layout.of(model, numbers)

    def client(index: int) -> Any:
        own = Reduction("delta", model)
        own.add(trained[index], WEIGHTS[index])
        vector = scale.encode(layout, dict(own.sums()), WEIGHTS[index], WEIGHTS[index], numbers, WEIGHTS[index])
        vector.add_masks(mask)
        return Reply([str(index)], {"wide": vector.wide, "narrow": vector.narrow}, {}, {}).pack()

    replies, peaks = zip(*(_peak(lambda n=n: client(n)) for n in range(3)), strict=True)
    assert max(peaks) < 0.2 if large else min(peaks) > 3

    def server() -> Arrays:
        total = Vector.zeros(*scale.sizes(layout))
        for content in replies:
            found = Reply.unpack(content, copy=False).arrays
            total.add(Vector(found["wide"], found["narrow"]))
        total.add_masks([(seed, -sign) for seed, sign in 3 * mask])
        sums = scale.decode(layout, total)
        assert norm(sums.arrays) < 1e4 * sum(WEIGHTS)
        return Outcome([], dict(sums.arrays), {}, divisor=sums.weight).means([*model])

    means, peak = _peak(server)
    assert peak < 0.2 if large else peak > 2
    for name, array in model.items():
        one = [
            np.rint(w * (new[name].astype(float) - array) / scale.unit())
            for w, new in zip(WEIGHTS, trained, strict=True)
        ]
        assert means[name].tobytes() == (sum(one) * scale.unit() / sum(WEIGHTS)).tobytes()


@pytest.mark.parametrize(
    ("scheme", "feeds_back"), [(Quantise(8), False), (TopK(0.01), True), (LowRank(1), True)], ids=["q", "k", "r"]
)
def test_compression_needs_memory_for_an_array_at_a_time(
    scheme: Scheme, feeds_back: bool, large: bool, tmp_path: Path
) -> None:
    """Client: update, what it still owes, message, residual; server: restored update, and the sum in double precision.

    Of top-k there are at most a rounded array, its sorted absolute values, and the restored one: an eighth each.
    """
    model, arrays = _model(), {name: array.reshape(512, -1) for name, array in _model(1).items()}
    model = {name: array.reshape(512, -1) for name, array in model.items()}
    rest: Arrays = {name: np.zeros_like(array) for name, array in arrays.items()}
    for round in (1, 2):
        request = Request(["0"], "train", "delta", Work(round), arrays=model, used=[round - 1])
        state = ClientState(tmp_path, round, [], 0, "0")

        def client(request: Request = request, state: ClientState = state) -> RecordDict:
            update, messages = Reduction("delta", model).change(arrays), Messages()
            layer = Compression(scheme, request, 1, 1e6, feeds_back=feeds_back)
            messages.add(layer.change(0, update, state), 2.0)
            state.commit()
            return Reply(["0"], messages.result(), {key: [2.0] for key in ALWAYS}, {}).pack()

        reply, peak = _peak(client)
        assert peak < 0.6 if large else peak > 2
        asked = Message(RecordDict(), 1, "train")
        expected = Expected(changes_of=model, scheme=scheme)
        answer, peak = _peak(partial(expected.read, Message(reply, reply_to=asked), ["0"]))
        assert peak < 0.6 if large else peak > 1.9
        for name, array in arrays.items():
            owed = rest[name] + (array.astype(float) - model[name])
            if feeds_back:
                rest[name] = (owed - answer.arrays[name] / 2).astype(np.float32)
                stored = ClientState(tmp_path, round, [], 0, "0").load("residualtrain")
                assert stored is not None
                np.testing.assert_allclose(stored[name], rest[name], atol=1e-5)
            else:
                np.testing.assert_allclose(answer.arrays[name] / 2, owed, atol=0.05)


@pytest.mark.parametrize("optimizer", ["sgd", "fedadam", "fedyogi", "fedadagrad"])
def test_moments_of_the_server_optimizer_need_no_memory(optimizer: str, large: bool) -> None:
    betas = "0.9" if optimizer == "fedadagrad" else "0.9,0.99"
    keys: dict[str, Value] = {"server-optimizer": optimizer, "server-adaptivity": 0.01}
    keys |= (
        {"server-momentum": 0.9}
        if optimizer == "sgd"
        else {"server-betas": betas, "server-bias-correction": optimizer == "fedadam"}
    )
    step, m, v = ServerStep(settings(**keys)), np.zeros(WIDTH), np.zeros(WIDTH)
    for t in (1, 2, 3):
        update: Arrays = {name: array.astype(np.float64) for name, array in _model(t).items()}
        found, peak = _peak(partial(step.direction, update))
        if t > 1:
            assert peak < 0.3 if large else peak >= 2
        Δ = update["layer3"]
        if optimizer == "sgd":
            m = expected = 0.9 * m + Δ
        else:
            m = 0.9 * m + (1 - 0.9) * Δ
            v = {
                "fedadam": 0.99 * v + (1 - 0.99) * Δ**2, "fedadagrad": v + Δ**2,
                "fedyogi": v - (1 - 0.99) * Δ**2 * np.sign(v - Δ**2),
            }[optimizer]  # fmt: skip
            corrected = optimizer == "fedadam"
            mean, square = (m / (1 - 0.9**t), v / (1 - 0.99**t)) if corrected else (m, v)
            expected = mean / (np.sqrt(square) + 0.01)
        assert found["layer3"].tobytes() == expected.tobytes()


def test_messages_and_checkpoints_need_no_copy(large: bool, tmp_path: Any) -> None:
    model, file = _model(), tmp_path / "file"

    def checkpoint() -> dict[str, str]:
        write_tensors(file, model, {"a": "b"})
        return check_tensors(file)

    _, sent = _peak(lambda: flat(model))
    told, written = _peak(checkpoint)
    assert told == {"a": "b"}
    assert sent < 0.01 if large else sent >= 1
    assert written < 2.1 / LAYERS  # it is read back array by array


def test_the_mean_of_a_secret_weight_is_by_the_expected_one() -> None:
    outcome = Outcome(["0"], {"w": np.array([6.0]), "other": np.array([1.0])}, {"weight": np.array([2.0])}, divisor=3.0)
    assert outcome.means(["w"])["w"].tolist() == [2.0]
    assert outcome.arrays["other"].tolist() == [1.0]
