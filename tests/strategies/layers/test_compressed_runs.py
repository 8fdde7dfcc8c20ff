"""Runs whose clients compress their updates: equal to plain ones where nothing is lost, and exact after failures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from florilegium.apps import client_app
from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.clients.core.compression.quantise import Quantise
from florilegium.clients.core.compression.scheme import COMPRESSED
from florilegium.clients.core.compression.top_k import TopK
from florilegium.clients.core.reports import ALWAYS
from florilegium.clients.core.wire import Reply, Request, Work, unpack
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays, norm
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.flower_inside import ErrorCode
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.fingerprints import cases
from tests.grid import FIRST_NODE
from tests.runs import Runs
from tests.support import config, mostly_long

COMPRESSIBLE = [name for name, method in METHODS.items() if not why_not(method, "compressed updates")]
SMALL: dict[str, Value] = {
    "method": "fedavg", "model": "linear", "num-clients": 4, "participation": 1.0, "rounds": 4, "local-steps": 2,
    "evaluate-every": 2, "weighting": "uniform",
}  # fmt: skip
TOP_K: dict[str, Value] = {"compression.scheme": "top-k", "compression.share": 0.05}
SCHEMES: Mapping[str, dict[str, Value]] = {
    "quantise": {"compression.scheme": "quantise", "compression.bits": 2},
    "top-k": TOP_K,
    "low-rank": {"compression.scheme": "low-rank", "compression.rank": 1},
}


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out small runs."""
    return Runs(tmp_path, SMALL)


def _same(one: Path, other: Path) -> bool:
    first, second = (read_checkpoint(path).arrays for path in (one, other))
    return all(np.array_equal(array, second[name]) for name, array in first.items())


def test_a_share_of_all_entries_is_no_compression(run: Runs) -> None:
    """Bit for bit, where each client is on a node of its own."""
    plain = run("plain", 4)
    assert _same(plain, run("all", 4, **{**TOP_K, "compression.share": 1.0}))
    assert not _same(plain, run("some", 4, **TOP_K))


@pytest.mark.parametrize("scheme", mostly_long(SCHEMES, "top-k"))
def test_a_resumed_run_is_the_whole_one(run: Runs, scheme: str) -> None:
    run.check_resume_and_packing(**SCHEMES[scheme])


def test_bytes_are_counted_as_sent(run: Runs) -> None:
    path = run("counted", 2, **SCHEMES["quantise"])
    replies = [
        unpack(cast(Any, reply.content["arrays"]))
        for reply in run.grid.received
        if not reply.has_error() and reply.metadata.message_type == "train" and "arrays" in reply.content
    ]
    assert all(arrays.keys() == {COMPRESSED} for arrays in replies)
    sent = sum(arrays[COMPRESSED].nbytes for arrays in replies)
    told = [line for line in read_metrics(path) if "bytes_up" in line]
    assert told[-1]["bytes_up"] == sent
    weights, biases = 2 * 2 * 4 + 2 * 640 // 8, 2 * 4 + 2 * 2  # bounds of two buckets and of one, and two bits each
    assert sent == 4 * 4 * (1 + weights + biases)


def test_a_client_whose_reply_is_lost_is_told_so(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply of one node to round 2 is lost after its client has stored a residual."""
    lost, carry_out = FIRST_NODE + 1, client_app.app

    def app(message: Message, context: Context) -> Message:
        reply = carry_out(message, context)
        config = message.content.get("config", {})
        if message.metadata.dst_node_id == lost and "used" in config and config["round"] == 2:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "lost"), reply_to=message)
        return reply

    monkeypatch.setattr(client_app, "app", app)
    path = run("lossy", 4, **TOP_K)
    asked = [
        list(cast(Any, message.content["config"])["used"])
        for message in run.grid.sent
        if message.metadata.dst_node_id == lost and message.metadata.message_type == "train"
    ]
    assert asked == [[0], [1], [1], [3]]
    assert read_checkpoint(path).facts["receipts"]["train"] == dict.fromkeys("0123", 4)


def test_robust_rules_see_each_restored_update(run: Runs) -> None:
    path = run("median", 2, rounds=1, aggregation="median", attackers=1, **SCHEMES["quantise"])
    assert json.loads((path / "summary.json").read_text(encoding="utf-8"))["rounds"] == 1


# ------------------------------------------------------------------------------------ what is believed

SENT: Arrays = {"w": np.zeros((30, 40), np.float32)}


def _reply(arrays: Mapping[str, np.ndarray], clients: int = 2, weight: float = 1.0) -> Message:
    ids = [str(i) for i in range(clients)]
    request = Message(Request(ids, "train", "delta", Work(1)).pack(None), 1, "train")
    numbers = {**dict.fromkeys(ALWAYS, [1.0] * clients), "weight": [weight] * clients}
    return Message(Reply(ids, dict(arrays), numbers, {}).pack(), reply_to=request)


def _messages(size: float, clients: int = 2) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the messages of clients whose updates have norm ``size``, and the updates."""
    updates, messages = [], []
    for seed in range(clients):
        update = np.random.default_rng(seed).normal(size=(30, 40))
        updates.append((update * size / np.linalg.norm(update)).astype(np.float32))
        messages.append(TopK(0.3).compress({"w": updates[-1]}, SENT, np.random.default_rng(1)))
    return np.concatenate(messages), updates


EXPECTED = Expected(changes_of=SENT, scheme=TopK(0.3), longest=2.0)


def test_updates_are_restored_weighted_and_summed() -> None:
    messages, updates = _messages(1.0)
    kept = [np.where(np.abs(u) >= np.sort(np.abs(u), axis=None)[-360], u, 0).astype(float) for u in updates]
    found = EXPECTED.read(_reply({COMPRESSED: messages}, weight=3.0), ["0", "1"]).arrays
    assert np.array_equal(found["w"], 3.0 * kept[0] + 3.0 * kept[1])
    stacked = replace(EXPECTED, stacked=True).read(_reply({COMPRESSED: messages}), ["0", "1"]).arrays
    assert np.array_equal(stacked["w"], np.stack(kept))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: {COMPRESSED: m[:-1]}, "1 bytes too early"),
        (lambda m: {COMPRESSED: np.concatenate([m, m[:3]])}, "3 bytes follow"),
        (lambda m: {COMPRESSED: m.astype(np.int16)}, "not bytes named"),
        (lambda m: {COMPRESSED: m[None]}, "not bytes named"),
        (lambda m: {COMPRESSED: m, "w": np.zeros((30, 40))}, "not bytes named"),
        (lambda m: {"w": np.zeros((30, 40))}, "not bytes named"),
        (lambda m: {COMPRESSED: np.uint8([0, 0])}, "array 'w' has shape None"),
        (lambda m: {COMPRESSED: _messages(20.0)[0]}, r"norm .* \(max-update-norm\)"),
    ],
)  # fmt: skip
def test_what_a_device_sends_is_checked(change: Callable[[np.ndarray], Arrays], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        EXPECTED.read(_reply(change(_messages(1.0)[0])), ["0", "1"])


def test_with_client_privacy_restored_updates_are_clipped() -> None:
    """A bit for each entry makes an update of norm 1 longer; each counts for the norm 1 at most."""
    update = _messages(1.0)[1][0]
    message = Quantise(1).compress({"w": update}, SENT, np.random.default_rng(1))
    expected = Expected(changes_of=SENT, scheme=Quantise(1), longest=1.0)
    with pytest.raises(ValueError, match="an update has norm"):
        expected.read(_reply({COMPRESSED: message}, 1), ["0"])
    clipped = replace(expected, clip=1.0).read(_reply({COMPRESSED: message}, 1), ["0"]).arrays
    assert norm(clipped) == pytest.approx(1.0)


def test_a_private_run_adds_its_noise_to_clipped_updates(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Value] = {
        "privacy.unit": "client", "privacy.sampling": "fixed", "privacy.clip-norm": 0.01, "rounds": 1,
        "privacy.noise-multiplier": 1e-6, "compression.scheme": "quantise", "compression.bits": 1,
    }  # fmt: skip
    sums: list[float] = []
    read = Expected.read

    def seen(self: Expected, reply: Message, ids: Any) -> Reply:
        answer = read(self, reply, ids)
        if self.scheme is not None and self.changes_of is not None:
            sums.append(norm(answer.arrays))
        return answer

    monkeypatch.setattr(Expected, "read", seen)
    run("private", 4, **keys)
    assert sums == pytest.approx([0.01] * 4, rel=1e-6)  # not 0.01 times what a bit makes of it


# ---------------------------------------------------------------------------------------- refused


def test_methods_that_do_not_train_by_updates_are_refused(run: Runs) -> None:
    for method in ("fedamp", "cfl", "local"):
        with pytest.raises(ConfigurationError, match=f"compression.scheme: 'top-k' is not supported with .*'{method}'"):
            run("refused", method=method, **TOP_K)


PRIVATE: dict[str, Value] = {
    "privacy.unit": "client", "privacy.noise-multiplier": 1.0, "privacy.sampling": "fixed",
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"secure-aggregation": True, "max-update-norm": 10.0, "num-clients": 6}, "secure-aggregation"),
        ({**PRIVATE, **TOP_K}, "privacy.unit = 'client'"),
        ({**PRIVATE, "compression.scheme": "low-rank"}, "privacy.unit = 'client'"),
        ({**PRIVATE, "privacy.noise-at": "device"}, "privacy.noise-at = 'device'"),
        ({**PRIVATE, "privacy.clip-quantile": 0.5}, "privacy.clip-quantile"),
        ({**TOP_K, "mode": "buffered", "fleet.speed": 50.0, "buffer.size": 2}, "mode = 'buffered'"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_with_compression_are_refused(run: Runs, keys: dict[str, Value], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"compression.scheme: .* is not supported with {re.escape(named)}"):
        run("refused", **{"compression.scheme": "quantise", **keys})
    assert not (run.folder / "refused" / "config.toml").exists()


@pytest.mark.parametrize("method", mostly_long(COMPRESSIBLE, "scaffold"))
def test_every_method_of_updates_trains_by_compressed_updates(run: Runs, method: str) -> None:
    """No client fails, and what is sent is small; what is sent besides, such as statistics, comes through as it is."""
    keys = {"model": "mlp", **cases()[method], "method": method, "rounds": 3, "evaluate-every": 3}
    plain, small = run("plain", 2, **keys), run("small", 2, **keys, **TOP_K)
    assert not (small / "failures.jsonl").exists()
    up = [[line["bytes_up"] for line in read_metrics(path) if "bytes_up" in line][-1] for path in (plain, small)]
    assert up[1] < 0.8 * up[0]


def test_stock_strategies_are_refused() -> None:
    keys = config(**{**SMALL, **TOP_K})
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), dict(keys))
    request = Message(RecordDict({"config": ConfigRecord({"server-round": 1})}), 1, "train")
    with pytest.raises(RunError, match=r"compression\.scheme: stock strategies do not support it"):
        client_app.app(request, context)
