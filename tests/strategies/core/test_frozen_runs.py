"""Runs of networks with frozen parameters, which neither travel nor are stored with others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from safetensors.numpy import load_file, save_file

from florilegium.apps import client_app
from florilegium.apps.runs.personal import personalise
from florilegium.clients.core.export import load_model
from florilegium.clients.core.wire import unpack
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.files import read_tensors, write_tensors
from florilegium.common.settings import Value
from florilegium.models.frozen import FILE, hash_of
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, arrays_of, frozen, get_arrays, num_bytes, parts_of, trained, whole
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.core.initial import Start
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import BUFFER, Checkpoint, read_checkpoint, read_frozen
from tests.grid import FIRST_NODE
from tests.runs import Runs, timeless
from tests.support import config, mostly_long, settings

SHAPE, CLASSES, CLIENTS = (1, 8, 8), 10, 3
KEYS: dict[str, Value] = {
    "num-clients": CLIENTS, "samples-per-client": 90, "participation": 1.0, "local-epochs": 1, "batch-size": 32,
    "rounds": 2, "evaluate-every": 1, "model": "tests.models.foreign:frozen_body",
}  # fmt: skip


def _name(function: str) -> str:
    return f"tests.models.foreign:{function}"


def _network(function: str, seed: int = 1) -> torch.nn.Module:
    return build(_name(function), SHAPE, CLASSES, seed)


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    return Runs(tmp_path, KEYS)


def _stored(path: Path) -> dict[str, Arrays]:
    """Return the arrays of all files of a run but that of its frozen parameters."""
    return {str(file): load_file(file) for file in path.rglob("*.safetensors") if file.name != FILE}


# ---------------------------------------------------------------------------------------------- what travels

METHODS: dict[str, dict[str, Value]] = {
    "fedavg": {}, "fedper": {}, "ditto": {}, "scaffold": {}, "local": {}, "fedrep": {}, "apfl": {}, "fedamp": {},
    "fedfomo": {}, "apple": {}, "feddyn": {}, "fedala": {}, "moon": {}, "fedproto": {}, "fedgen": {}, "fedrod": {},
    "fedcp": {}, "gpfl": {}, "feddbe": {}, "pfedfda": {}, "cfl": {}, "knn-per": {}, "lg-fedavg": {}, "fedsr": {},
    "fediir": {}, "ifca": {"ifca.clusters": 2}, "fedbabu": {"finetune-epochs": 1}, "pfedme": {"finetune-epochs": 1},
    "ppfe": {"ppfe.stage-rounds": "1,1", "ppfe.personal-blocks": "0,1", "ppfe.ranks": ""},
    "fedl2p": {"fedl2p.pretraining-rounds": 1, "finetune-epochs": 1, "validation-fraction": 0.2},
}  # fmt: skip
LAYERS: dict[str, dict[str, Value]] = {
    "secure": {"secure-aggregation": True, "max-update-norm": 5.0},
    "compressed": {"compression.scheme": "top-k"},
    "vectorised": {"vectorise": CLIENTS},
    "example privacy": {"privacy.unit": "example", "privacy.noise-multiplier": 1.0, "privacy.clip-norm": 1.0},
    "client privacy": {"privacy.unit": "client", "privacy.noise-multiplier": 1.0, "weighting": "uniform"},
    "buffered": {"mode": "buffered", "fleet.speed": 100.0, "buffer.size": 2},
    "server optimizer": {"server-optimizer": "fedadam"},
}
ALL = {method: {"method": method, **keys} for method, keys in METHODS.items()}
ALL |= {layer: {"method": "fedavg", **keys} for layer, keys in LAYERS.items()}


@pytest.mark.parametrize("name", mostly_long(ALL, "fedavg", "ditto", "scaffold", "fedamp", "secure", "client privacy"))
def test_what_is_frozen_is_neither_sent_nor_stored_with_others(run: Runs, name: str) -> None:
    path = run("run", model=_name("AdaptedTransformer"), **ALL[name])
    network = _network("AdaptedTransformer")
    fixed = arrays_of(frozen(network))
    assert all(np.array_equal(array, fixed[one]) for one, array in read_frozen(path).items())
    assert read_frozen(path).keys() == fixed.keys()
    for file, arrays in _stored(path).items():
        assert not [one for one in arrays if one.endswith(tuple(fixed))], file
    for message in [*run.grid.sent, *run.grid.received]:
        for record in ("arrays", "scatter"):
            if record in message.content:
                names = unpack(message.content[record])  # type: ignore[arg-type]
                assert not [one for one in names if one.endswith(tuple(fixed))]
    asked = [message for message in run.grid.sent if "config" in message.content]
    assert asked
    assert {message.content["config"]["frozen"] for message in asked} == {hash_of(fixed)}
    assert not (path / "failures.jsonl").exists()


@pytest.mark.parametrize("function", ["AdaptedTransformer", "frozen_body", "probe"])
def test_each_way_costs_the_bytes_of_what_is_trained(run: Runs, function: str) -> None:
    path = run("run", model=_name(function))
    size = num_bytes(get_arrays(_network(function)))
    assert size == sum(4 * parameter.numel() for parameter in trained(_network(function)).values())
    assert size < num_bytes(arrays_of(whole(_network(function)))) / 1.5
    last = read_metrics(path)[-1]
    assert last["bytes_down"] == last["bytes_up"] == 2 * CLIENTS * size


def test_a_network_without_frozen_parameters_has_none_of_this(run: Runs) -> None:
    path = run("run", model="mlp")
    assert not (path / FILE).exists()
    assert "frozen" not in read_checkpoint(path).facts
    assert not any("frozen" in message.content.get("config", {}) for message in run.grid.sent)
    assert not any(message.content for message in run.grid.sent if message.metadata.message_type == "query.roster")


def test_results_depend_neither_on_packing_nor_on_resuming(run: Runs) -> None:
    run.check_resume_and_packing(model=_name("AdaptedTransformer"), rounds=4)


def test_a_head_on_a_frozen_body_is_trained_by_each_client_alone(run: Runs) -> None:
    """FedPer shares the body; if that is frozen, nothing is, and clients learn what they learn alone."""
    figures = [
        [line["seen"] for line in read_metrics(run(method, method=method, model=_name("probe")))]
        for method in ("fedper", "local")
    ]
    assert figures[0] == figures[1]
    assert read_metrics(run.folder / "fedper")[-1]["bytes_up"] == 0


# ------------------------------------------------------------------------------------------- models and checkpoints


@pytest.mark.parametrize("method", ["ditto", "fedper"])
def test_a_written_model_is_whole(run: Runs, tmp_path: Path, method: str) -> None:
    path = run("run", method=method)
    folder = personalise(path, tmp_path / "model", "0")
    model, _ = load_model(folder)
    found, built = arrays_of(whole(model)), arrays_of(whole(_network("frozen_body")))
    assert found.keys() == built.keys()
    assert {name for name in built if np.array_equal(found[name], built[name])} == {*frozen(_network("frozen_body"))}


def _as_earlier(path: Path, change: Callable[[Arrays], Arrays] = lambda arrays: arrays) -> None:
    """Let a run be one of a version that stored frozen parameters with each model."""
    fixed = change(read_frozen(path))
    (path / FILE).unlink()
    (file,) = path.glob("checkpoint/*.safetensors")
    arrays, metadata = read_tensors(file)
    facts = json.loads(metadata["facts"])
    facts["order"] = [*fixed, *facts["order"]]
    del facts["frozen"]
    arrays |= {f"arrays/{name}": array for name, array in fixed.items()}
    if facts["buffer"]:  # the models of clients that are busy
        facts["buffer"]["names"] = [*fixed, *facts["buffer"]["names"]]
        models = {one.split(":")[0] for one in arrays if one.startswith(f"state/{BUFFER}")}
        assert models
        arrays |= {f"{model}:{name}": array for model in models for name, array in fixed.items()}
    write_tensors(file, arrays, metadata | {"facts": json.dumps(facts)})
    for state in path.glob("clients/*/state-*.safetensors"):
        write_tensors(state, read_tensors(state)[0] | fixed)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "buffered"])
def test_a_run_of_an_earlier_version_goes_on(run: Runs, name: str) -> None:
    whole_run = run("whole", rounds=3, **ALL[name])
    run("old", rounds=2, **ALL[name])
    _as_earlier(run.folder / "old")
    old = run("old", rounds=3, resume="old", **ALL[name])
    assert timeless(old)[-1]["seen"] == timeless(whole_run)[-1]["seen"]
    assert read_frozen(old).keys() == read_frozen(whole_run).keys()
    for file, arrays in _stored(old / "checkpoint").items():
        assert not [one for one in arrays if one.endswith(tuple(read_frozen(old)))], file
    model, _ = load_model(personalise(old, run.folder / "model", "0"))
    assert np.array_equal(arrays_of(whole(model))["0.1.weight"], read_frozen(old)["0.1.weight"])


def test_a_finished_run_of_an_earlier_version_is_opened(run: Runs) -> None:
    """Its clients read frozen parameters, which no seed gives, from a file that it does not have yet."""
    run("first", model=_name("unfrozen_probe"))
    old = run("old", model=_name("probe"), init="first", rounds=1)
    fixed = read_frozen(old)
    _as_earlier(old)
    model, _ = load_model(personalise(old, run.folder / "model", "0"))
    assert fixed
    assert all(np.array_equal(arrays_of(whole(model))[name], array) for name, array in fixed.items())


def test_a_checkpoint_of_this_version_may_have_names_that_end_alike(tmp_path: Path) -> None:
    """A method's own state is not taken for frozen parameters: those are not in it."""
    network, fixed = parts_of(_network("probe"))
    start = Start(settings(model=_name("probe")), tmp_path, network, fixed)
    alike = {f"beside/{name}": array + n for n, (name, array) in enumerate(fixed.arrays.items())}
    checkpoint = Checkpoint(1, {"1.bias": network["1.bias"]}, alike, {"frozen": fixed.hash})
    assert start.own(checkpoint, "run").state.keys() == alike.keys()
    earlier = replace(checkpoint, arrays=network, state={}, facts={})
    assert start.own(earlier, "run").arrays.keys() == fixed.others


def test_a_run_resumed_before_its_first_checkpoint_holds_what_is_frozen(run: Runs) -> None:
    """Also if an earlier version began it, which wrote no file of them."""

    def stop(message: Message) -> None:
        if message.metadata.message_type == "train":
            raise KeyboardInterrupt

    run("first", model=_name("unfrozen_probe"))
    keys: dict[str, Value] = {"model": _name("probe"), "init": "first"}
    with pytest.raises(KeyboardInterrupt):
        run("run", intercept=stop, **keys)
    fixed = read_frozen(run.folder / "run")
    (run.folder / "run" / FILE).unlink()
    path = run("run", resume="run", **keys)
    assert fixed
    assert hash_of(read_frozen(path)) == hash_of(fixed)
    assert not (path / "failures.jsonl").exists()


def test_states_with_other_frozen_parameters_are_refused(run: Runs) -> None:
    run("old", method="ditto", rounds=2)
    path = run.folder / "old"
    for state in path.glob("clients/1/state-*.safetensors"):
        own = read_tensors(state)[0]
        write_tensors(state, own | {name: array + 1 for name, array in read_frozen(path).items()})
    run("old", method="ditto", rounds=3, resume="old")
    failures = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    assert {one["client"] for one in failures} == {"1"}
    assert all("has other values of the frozen parameter '0.1." in one["reason"] for one in failures)


def test_a_changed_file_of_frozen_parameters_is_noticed(run: Runs) -> None:
    path = run("run")
    write_tensors(path / FILE, {name: array + 1 for name, array in read_frozen(path).items()})
    with pytest.raises(
        RunError, match=r"has trained with frozen parameters of hash .*, the file frozen.safetensors in"
    ):
        run("run", rounds=3, resume="run")
    (path / FILE).write_bytes(b"no tensors")
    with pytest.raises(RunError, match=r"frozen\.safetensors is damaged"):
        run("run", rounds=3, resume="run")


# ------------------------------------------------------------------------------- parameters that init names


def test_what_an_earlier_run_trained_is_what_is_frozen_now(run: Runs) -> None:
    first = run("first", model=_name("unfrozen_probe"), rounds=2)
    learned = read_checkpoint(first).arrays
    again = run("again", model=_name("probe"), rounds=0, init="first")
    assert read_metrics(again)[-1]["seen"] == read_metrics(first)[-1]["seen"]  # the same model
    second = run("second", model=_name("probe"), rounds=1, init="first", method="ditto")
    fixed = read_frozen(second)
    assert fixed.keys() == {*frozen(_network("probe"))}
    assert all(np.array_equal(array, learned[name]) for name, array in fixed.items())
    assert not any(np.array_equal(array, whole(_network("probe"))[name]) for name, array in fixed.items())
    model, _ = load_model(personalise(second, run.folder / "model", "0"))
    assert np.array_equal(arrays_of(whole(model))["0.1.weight"], learned["0.1.weight"])
    sent = [message for message in run.grid.sent if message.metadata.message_type == "train"]
    assert all({*unpack(message.content["arrays"])} == {"1.weight", "1.bias"} for message in sent)  # type: ignore[arg-type]
    # What is frozen there can be trained again, from the same values.
    third = run("third", model=_name("unfrozen_probe"), rounds=0, init="second")
    both = fixed | read_checkpoint(second).arrays
    assert all(np.array_equal(array, both[name]) for name, array in read_checkpoint(third).arrays.items())


def test_a_file_of_parameters_gives_the_frozen_ones(run: Runs, tmp_path: Path) -> None:
    pretrained = arrays_of(whole(_network("probe", seed=7)))
    save_file(pretrained, tmp_path / "net.safetensors")
    path = run("run", model=_name("probe"), rounds=1, init=str(tmp_path / "net.safetensors"))
    assert all(np.array_equal(array, pretrained[name]) for name, array in read_frozen(path).items())
    resumed = run("run", rounds=2, model=_name("probe"), resume="run", init=str(tmp_path / "net.safetensors"))
    assert all(np.array_equal(array, pretrained[name]) for name, array in read_frozen(resumed).items())
    save_file({name: array for name, array in pretrained.items() if name != "0.1.bias"}, tmp_path / "part.safetensors")
    with pytest.raises(ConfigurationError, match=r"does not fit the network: 0\.1\.bias is missing"):
        run("other", model=_name("probe"), init=str(tmp_path / "part.safetensors"))


# ----------------------------------------------------------------------------------------------------- devices


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the configuration of a device for each client."""
    federation, dataset = federate(settings(num_clients=CLIENTS, partitioner="iid"))
    for i in range(CLIENTS):
        write_device(federation, dataset, i, tmp_path / "data" / str(i))
    return [
        {"client-id": f"d{i}", "data-path": str(tmp_path / "data" / str(i)), "state-dir": str(tmp_path / f"state{i}")}
        for i in range(CLIENTS)
    ]


def _asked(run: Runs) -> list[bool]:
    """Return for each roster query whether it had frozen parameters."""
    return ["arrays" in one.content for one in run.grid.sent if one.metadata.message_type == "query.roster"]


def test_devices_are_given_once_what_they_cannot_build(run: Runs, nodes: list[dict[str, Any]]) -> None:
    keys: dict[str, Value] = {"model": _name("probe"), "rounds": 1, "init": "first"}
    run("first", model=_name("unfrozen_probe"))
    second = run("second", nodes=nodes, **keys)
    assert _asked(run) == [False] * CLIENTS + [True] * CLIENTS
    assert not (second / "failures.jsonl").exists()
    named = hash_of(read_frozen(second))
    files = [Path(node["state-dir"]) / "_frozen" / f"{named}.safetensors" for node in nodes]
    assert all(hash_of(load_file(file)) == named for file in files)
    for node in nodes:
        (model,) = Path(node["state-dir"]).glob(f"second/{node['client-id']}/model.safetensors")
        assert np.array_equal(load_file(model)["0.1.weight"], read_frozen(second)["0.1.weight"])
    run("third", nodes=nodes, **keys)  # another run with the same
    assert _asked(run) == [False] * CLIENTS


def test_devices_build_what_the_seed_gives(run: Runs, nodes: list[dict[str, Any]]) -> None:
    path = run("run", nodes=nodes, model=_name("probe"))
    assert _asked(run) == [False] * CLIENTS
    assert not (path / "failures.jsonl").exists()
    assert not list(Path(nodes[0]["state-dir"]).glob("_frozen"))


def test_a_device_with_other_frozen_parameters_is_refused(run: Runs, nodes: list[dict[str, Any]]) -> None:
    def lie(message: Message) -> Message | None:
        """Reply to the roster query as a device would whose file of pretrained parameters is another."""
        if message.metadata.message_type != "query.roster" or message.metadata.dst_node_id == FIRST_NODE:
            return None
        reply = client_app.app(message, Context(1, FIRST_NODE + 1, nodes[1], RecordDict(), options))
        reply.content["roster"]["frozen"] = "0123456789abcdef"  # type: ignore[index]
        return reply

    keys: dict[str, Value] = {"model": _name("probe"), "num-clients": 2, "start-timeout": 0.1}
    options = config(**{**KEYS, **keys, "runs-dir": str(run.folder)})
    with pytest.raises(
        RunError, match=r"node 101 \(client d1\) has other frozen parameters in its network \(hash 0123"
    ):
        run("run", nodes=nodes[:2], intercept=lie, **keys)


def test_a_node_does_not_train_on_other_frozen_parameters(run: Runs) -> None:
    def change(message: Message) -> None:
        if message.metadata.message_type == "train":
            message.content["config"]["frozen"] = "0123456789abcdef"  # type: ignore[index]

    with pytest.raises(RunError):
        run("run", intercept=change, rounds=1)
    lines = [json.loads(line) for line in (run.folder / "run" / "failures.jsonl").read_text().splitlines()]
    reason = r"trains with frozen parameters of hash 0123456789abcdef, but this node builds those of hash"
    assert all(
        reason.replace("trains with", "trains 'tests.models.foreign:frozen_body' with") in one["reason"]
        for one in lines
    )
