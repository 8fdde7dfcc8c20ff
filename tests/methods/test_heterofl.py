"""HeteroFL and FedRolex: limits, a round by hand, sizes on the wire, hostile replies, devices, what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch.nn.functional import cross_entropy

from florilegium.apps.assembly.node_config import parse_node
from florilegium.apps.runs.personal import reopened
from florilegium.clients.core.export import load_model, save_model
from florilegium.clients.core.wire import Reply, unpack
from florilegium.common.errors import ConfigurationError, DataError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.models.width import narrowed, shapes_at
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.exchange.roster import Member
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import InProcessGrid
from tests.runs import Runs, timeless
from tests.support import make_client, mostly_long, perform, settings

KEYS: dict[str, Value] = {
    "num-clients": 5, "participation": 1.0, "rounds": 2, "local-epochs": 1, "learning-rate": 0.1, "batch-size": 64,
    "evaluate-every": 0, "method": "heterofl",
}  # fmt: skip
HALVES: dict[str, Value] = {"capacity.levels": "0.5,0.25", "capacity.shares": "3,2"}


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _training(run: Runs) -> list[tuple[Arrays, Reply]]:
    """Return the arrays of each request for training, and the reply."""
    pairs = zip(run.grid.sent, run.grid.received, strict=True)
    return [
        (unpack(request.content["arrays"]), Reply.unpack(reply.content))  # type: ignore[arg-type]
        for request, reply in pairs
        if request.metadata.message_type == "train"
    ]


@pytest.mark.parametrize("model", mostly_long(["mlp", "cnn-bn"], "mlp"))
def test_full_capacity_everywhere_is_fedavg_bit_for_bit(run: Runs, model: str) -> None:
    average = run("average", method="fedavg", model=model, **{"server-learning-rate": 0.5})
    for method in ("heterofl", "fedrolex"):
        path = run(method, method=method, model=model, **{"capacity.levels": "1", "server-learning-rate": 0.5})
        for name, array in read_checkpoint(average).arrays.items():
            assert np.array_equal(read_checkpoint(path).arrays[name], array), name
        assert timeless(path) == timeless(average)


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_a_round_is_the_mean_over_the_holders_of_each_entry(run: Runs, method: str) -> None:
    path = run("run", nodes=1, method=method, rounds=1, **HALVES)
    first, after = get_arrays(build("mlp", (1, 8, 8), 10, 1)), read_checkpoint(path).arrays
    (large, mine), (small, theirs) = _training(run)
    assert large["fc2.0.weight"].shape == (16, 32)
    assert small["fc2.0.weight"].shape == (8, 16)
    weights = [sum(reply.metrics["weight"]) for reply in (mine, theirs)]
    for name in ("fc1.1.weight", "fc2.0.weight", "fc2.0.bias", "fc3.weight"):
        expected = first[name].astype(np.float64)
        assert np.array_equal(large[name], first[name][tuple(map(slice, large[name].shape))])
        for place in np.ndindex(expected.shape):
            held = [all(np.less(place, sent[name].shape)) for sent in (large, small)]
            totals = [reply.arrays[name][place] for reply, holds in zip((mine, theirs), held, strict=True) if holds]
            if any(held):
                expected[place] += sum(totals) / sum(
                    weight for weight, holds in zip(weights, held, strict=True) if holds
                )
            else:
                assert after[name][place] == first[name][place]
        np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=1e-7)
    assert (after["fc2.0.weight"] == first["fc2.0.weight"])[16:, :].all()  # nobody holds them
    assert (after["fc2.0.weight"] != first["fc2.0.weight"])[:16, :32].mean() > 0.5


def test_a_whole_network_has_the_mean_statistics_of_those_that_hold_them(run: Runs) -> None:
    """Statistics of capacities lie apart, so that one's differences added to another's made variances negative."""
    path = run("run", nodes=1, model="cnn-bn", rounds=3, seed=7, **{**HALVES, "cohort-size": 3})
    (large, mine), (small, theirs) = _training(run)[-2:]
    sizes = [next(len(a) for name, a in sent.items() if name.endswith("running_var")) for sent in (small, large)]
    assert sizes[0] < sizes[1]  # both capacities took part, after rounds with other clients
    weights = [sum(reply.metrics["weight"]) for reply in (mine, theirs)]
    for name, after in read_checkpoint(path).arrays.items():
        if not name.endswith(("running_mean", "running_var")):
            continue
        few, some = len(small[name]), len(large[name])
        of_large = large[name] * weights[0] + mine.arrays[name]
        of_small = small[name] * weights[1] + theirs.arrays[name]
        np.testing.assert_allclose(after[few:some], of_large[few:] / weights[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(after[:few], (of_large[:few] + of_small) / sum(weights), rtol=1e-5, atol=1e-6)


def test_the_bytes_are_those_of_the_sub_networks(run: Runs) -> None:
    summary = json.loads((run("run", rounds=1, **HALVES) / "summary.json").read_text())
    rows = (run.folder / "run" / "clients.csv").read_text().splitlines()
    column = rows[0].split(",").index("capacity")
    sizes = Counter(float(row.split(",")[column]) for row in rows[1:])
    assert sizes.keys() == {0.5, 0.25}
    numbers = {r: 64 * h + h + h * k + k + k * 10 + 10 for r, h, k in ((0.5, 32, 16), (0.25, 16, 8))}
    assert summary["bytes_down"] == summary["bytes_up"] == 4 * sum(sizes[r] * numbers[r] for r in sizes)
    assert summary["capacities"].keys() == {"0.5", "0.25"}
    assert sum(one["clients"] for one in summary["capacities"].values()) == 5
    assert {"accuracy", "accuracy_full", "loss_full"} <= summary["final"]["seen"].keys()


def test_the_window_of_fedrolex_moves_with_the_round(run: Runs) -> None:
    run("run", nodes=1, method="fedrolex", rounds=3, **{"capacity.levels": "0.25", "learning-rate": 1e-9})
    first = get_arrays(build("mlp", (1, 8, 8), 10, 1))["fc2.0.weight"]
    for number, (sent, _) in enumerate(_training(run)):
        window = first[number : number + 8, number : number + 16]
        np.testing.assert_allclose(sent["fc2.0.weight"], window, atol=1e-6)


def test_replies_of_another_shape_are_not_used(run: Runs) -> None:
    whole = {name: array * 0 for name, array in get_arrays(build("mlp", (1, 8, 8), 10, 1)).items()}

    def lie(message: Message) -> Message | None:
        if message.metadata.message_type != "train" or message.content["config"]["capacity"] != 0.25:  # type: ignore[index]
            return None
        clients = list(message.content["config"]["clients"])  # type: ignore[index,arg-type]
        numbers = {"num-examples": 100.0, "weight": 100.0, "bytes-down": 1.0, "bytes-up": 1.0, "loss": 1.0}
        reply = Reply(clients, whole, {name: [value] * len(clients) for name, value in numbers.items()}, {})
        return Message(reply.pack(), reply_to=message)

    path = run("run", rounds=1, intercept=lie, **HALVES, **{"min-success": 0.1})
    failures = (path / "failures.jsonl").read_text()
    assert "array 'fc1.1.weight' has shape (64, 64), expected (16, 64)" in failures
    clean = run("clean", rounds=1, **{"capacity.levels": "0.5", "capacity.shares": ""})
    assert read_checkpoint(path).arrays.keys() == read_checkpoint(clean).arrays.keys()


@pytest.mark.long
def test_resume_and_packing(run: Runs) -> None:
    keys: dict[str, Value] = {"method": "fedrolex", "rounds": 4, "evaluate-every": 2, "participation": 0.8}
    run.check_resume_and_packing(**keys)


@pytest.mark.long
def test_a_resumed_run_has_the_statistics_of_each_capacity(run: Runs) -> None:
    whole, broken = run.whole_and_broken(3, **{"model": "cnn-bn", "rounds": 3, "evaluate-every": 2})
    first, second = read_checkpoint(whole), read_checkpoint(broken)
    assert first.facts["own"] == second.facts["own"]
    assert len(first.state) == 6 * len(first.facts["own"]["capacities"])  # mean and variance of three layers
    for part in ("arrays", "state"):
        for name, array in getattr(first, part).items():
            assert np.array_equal(getattr(second, part)[name], array)


def test_a_client_is_served_again_by_its_sub_network(run: Runs, tmp_path: Path) -> None:
    path = run("run", model="cnn-bn", rounds=1, **{"unseen-fraction": 0.2})
    with reopened(path) as again:
        strategy: Any = again.strategy
        own = {capacity: {*arrays} for capacity, arrays in strategy.statistics.items()}
        assert set(map(len, own.values())) == {6}  # mean and variance of three layers
        assert own.keys() == {strategy.capacity(client) for client in strategy.trainable()}
        for name, array in strategy.statistics[1.0].items():  # the whole model has those of whole networks alone
            assert np.array_equal(again.checkpoint.arrays[name], array)
        sizes = strategy.by_size(strategy.clients)
        assert len(sizes) > 1
        for members in sizes.values():
            outcome = strategy.measure(again.round, members[:1], again.checkpoint.arrays)
            folder = save_model(tmp_path / members[0], again.host.predictor, members[0], "run", again.settings)
            model, _ = load_model(folder)
            data = again.host._source.data(members[0]).test
            assert float(cross_entropy(model(data.x), data.y)) == pytest.approx(
                float(outcome.metrics["loss"][0]), rel=1e-4
            )


def test_the_masked_loss_trains_on_the_clients_own_classes() -> None:
    generator = torch.Generator().manual_seed(3)
    data = Examples(torch.randn(12, 1, 8, 8, generator=generator), torch.arange(12) % 3)
    network = build("mlp", (1, 8, 8), 10, 1)
    keys: dict[str, Value] = {"method": "heterofl", "capacity.masked-loss": True, "capacity.scaler": False,
                              "local-steps": 1, "batch-size": 12, "learning-rate": 0.1}  # fmt: skip
    start = get_arrays(narrowed(network, shapes_at(network, 0.5)))
    rng = np.random.default_rng(1)
    start = {name: rng.normal(0, 0.3, array.shape).astype(np.float32) for name, array in start.items()}
    found = perform(make_client(data, network, **keys), "train", start, capacity=0.5).arrays
    tensors = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in start.items()}
    hidden = torch.relu(data.x.flatten(1) @ tensors["fc1.1.weight"].T + tensors["fc1.1.bias"])
    hidden = torch.relu(hidden @ tensors["fc2.0.weight"].T + tensors["fc2.0.bias"])
    logits = hidden @ tensors["fc3.weight"].T + tensors["fc3.bias"]
    masked = torch.cat([logits[:, :3], torch.zeros(12, 7)], dim=1)
    (masked.logsumexp(dim=1) - masked[torch.arange(12), data.y]).mean().backward()
    for name, tensor in tensors.items():
        assert tensor.grad is not None
        np.testing.assert_allclose(found[name], start[name] - 0.1 * tensor.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert np.array_equal(found["fc3.weight"][3:], start["fc3.weight"][3:])


def test_the_law_of_capacities_is_drawn_from_seed_and_name(run: Runs) -> None:
    with reopened(run("run", rounds=1, **HALVES)) as again:
        strategy: Any = again.strategy
        drawn = [strategy.capacity(str(client)) for client in range(500)]
        assert drawn[:5] == [strategy.capacity(str(client)) for client in range(5)]
        assert 0.5 < np.mean(np.equal(drawn, 0.5)) < 0.7  # 3 of 5
        strategy.federation.roster.deployed = True
        roster = strategy.federation.roster
        roster.clients = {**roster.clients, "1": Member("1", 9, 9, capacity=0.125)}
        assert strategy.capacity("1") == 0.125
        assert [strategy.unfit(strategy.clients["1"]), strategy.first_channel(7)] == ["", 0]


def test_a_device_holds_no_more_than_it_states() -> None:
    assert parse_node({"data-path": "x", "capacity": 0.25}).capacity == 0.25
    for wrong in (0.0, 1.5):
        with pytest.raises(DataError, match="capacity"):
            parse_node({"data-path": "x", "capacity": wrong})
    network = build("mlp", (1, 8, 8), 10, 1)
    client = make_client(Examples(torch.randn(4, 1, 8, 8), torch.arange(4)), network, method="heterofl")
    client.capacity = 0.25
    for phase, arguments in (("train", {"capacity": 0.5}), ("test", {"capacity": 0.5}), ("full", {})):
        with pytest.raises(RunError, match=r"asked for a network of capacity (0.5|1), this device holds 0.25"):
            perform(client, phase, get_arrays(network), **arguments)
    with pytest.raises(ValueError, match=r"'fc1\.1\.weight' has shape"):
        perform(client, "train", get_arrays(network), capacity=0.25)


def test_devices_train_what_they_state_and_keep_it(run: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, dataset = federate(settings(num_clients=3))
    nodes: list[dict[str, Any]] = []
    for client, capacity in enumerate((1.0, 0.5, 0.3)):
        write_device(federation, dataset, client, tmp_path / f"data{client}")
        names = {"client-id": f"d{client}", "data-path": str(tmp_path / f"data{client}")}
        nodes.append({**names, "state-dir": str(tmp_path / "state"), "capacity": capacity})
    calls: list[str] = []
    push, pull = InProcessGrid.push_messages, InProcessGrid.pull_messages

    def noted_push(grid: InProcessGrid, messages: Iterable[Message]) -> Iterable[str]:
        calls.append("push")
        return push(grid, messages)

    def noted_pull(grid: InProcessGrid, ids: Iterable[str]) -> Iterable[Message]:
        calls.append("pull")
        return pull(grid, ids)

    monkeypatch.setattr(InProcessGrid, "push_messages", noted_push)
    monkeypatch.setattr(InProcessGrid, "pull_messages", noted_pull)
    path = run("run", nodes=nodes, rounds=1, **{"num-clients": 3})
    pending = [len([*own]) for what, own in groupby(calls) if what == "push"]
    assert pending[-3:] == [3, 1, 3]  # training, tests of the whole network, and tests: all capacities at once
    assert sorted(sent["fc2.0.weight"].shape for sent, _ in _training(run)) == [(10, 20), (16, 32), (32, 64)]
    rows = [row.split(",") for row in (path / "clients.csv").read_text().splitlines()]
    table = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert [(row["client"], row["capacity"]) for row in table] == [("d0", "1.0"), ("d1", "0.5"), ("d2", "0.3")]
    assert [row["accuracy_full"] == "nan" for row in table] == [False, True, True]  # only d0 holds the whole network
    model, _ = load_model(tmp_path / "state" / "run" / "d2")
    assert sum(parameter.numel() for parameter in model.parameters()) == 64 * 20 + 20 + 20 * 10 + 10 + 10 * 10 + 10


def test_capacities_start_together_on_devices_and_on_the_virtual_clock(run: Runs) -> None:
    """Every device is as fast; a round takes what the capacity with the most bytes and examples takes."""
    fleet: dict[str, Value] = {"fleet.speed": 50.0, "fleet.speed-sigma": 0.0, "fleet.download": 4.0,
                               "fleet.upload": 0.1, "fleet.bandwidth-sigma": 0.0}  # fmt: skip
    path = run("run", nodes=1, **HALVES, **fleet)
    spent = [
        max(np.multiply(r.metrics["num-examples"], 1 / 50) + np.multiply(r.metrics["bytes-down"], 8 / 4e6)
            + np.multiply(r.metrics["bytes-up"], 8 / 1e5))
        for _, r in _training(run)
    ]  # fmt: skip
    assert len({*spent}) == 2
    rounds = np.cumsum([max(spent[:2]), max(spent[2:])])
    times = [line["simulated_seconds"] for line in read_metrics(path)[:2]]
    assert times == pytest.approx(rounds, abs=2e-3)


@pytest.mark.long
def test_narrow_networks_fit_into_less_memory(run: Runs) -> None:
    """Parameters as received, as trained, and gradients: three times a network."""
    numbers = {r: 64 * h + h + h * k + k + k * 10 + 10 for r, h, k in ((0.5, 32, 16), (0.25, 16, 8))}
    between = 3 * 4 * (numbers[0.5] + numbers[0.25]) / 2e6
    path = run("run", rounds=1, **HALVES, **{"fleet.memory": between, "fleet.memory-sigma": 0.0})
    left_out = json.loads((path / "summary.json").read_text())["left_out"]
    with reopened(path) as again:
        strategy: Any = again.strategy
        assert {*left_out} == {str(i) for i in range(5) if strategy.capacity(str(i)) == 0.5}


def test_methods_that_send_whole_networks_leave_small_devices_out(run: Runs) -> None:
    with reopened(run("run", method="fedavg", rounds=1)) as again:
        assert "capacity 0.5 alone" in again.strategy.unfit(Member("1", 9, 9, capacity=0.5))
        assert again.strategy.unfit(Member("1", 9, 9)) == ""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": "linear"}, "model: 'linear' has no channels .* method 'heterofl' cannot divide it"),
        pytest.param(
            {"model": "resnet20", "method": "fedrolex"}, "'resnet20' does not compute the same", marks=pytest.mark.long
        ),
        ({"server-momentum": 0.9}, "server-momentum: method 'heterofl' averages each entry"),
        ({"aggregation": "median"}, "aggregation: 'median' .*'heterofl': it averages each group"),
        ({"secure-aggregation": True, "max-update-norm": 10.0}, "secure-aggregation: .*a sum for each group"),
        ({"capacity.levels": "1,0"}, "capacity.levels: .*above 0 and at most 1"),
        ({"capacity.levels": ""}, "capacity.levels: .*above 0"),
        ({"capacity.shares": "1,2"}, "capacity.shares: give 3 numbers"),
        ({"capacity.shares": "0,0,0"}, "capacity.shares: give 3 numbers"),
        ({"capacity.shares": "2,-1,0"}, "capacity.shares: give 3 numbers"),
    ],
)  # fmt: skip
def test_what_is_refused(run: Runs, keys: dict[str, Value], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        run("refused", **keys)
    assert not (run.folder / "refused" / "config.toml").exists()
