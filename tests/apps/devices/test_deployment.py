"""Real SuperNodes with TLS and keys on loopback: what they learn, who is refused, and what faults do to a run."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from safetensors.numpy import load_file

from florilegium.apps import client_app
from florilegium.apps.devices.stored_runs import kept
from florilegium.clients.core.export import load_model
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.exchange.flower_inside import ErrorCode
from florilegium.strategies.folder.metrics_file import read_evaluations, read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint, read_config
from tests import processes
from tests.grid import run_app
from tests.processes import ROOT
from tests.site import SCRIPTS, Site, site
from tests.support import config, settings

pytestmark = pytest.mark.deployment

CLIENTS = 2
"""Every message starts a process, which takes seconds of a core: few devices, few exchanges."""
FEDERATION: dict[str, Value] = {"partitioner": "classes", "classes-per-client": 4, "num-clients": CLIENTS, "seed": 5}
KEYS: dict[str, Value] = {
    "dataset": "digits", "num-clients": CLIENTS, "seed": 5, "participation": 1.0, "model": "mlp", "local-epochs": 1,
    "batch-size": 16, "evaluate-every": 0, "start-timeout": 600.0,
}  # fmt: skip
METHODS: dict[str, dict[str, Value]] = {
    "ppfe": {"rounds": 1, "ppfe.personal-blocks": "1", "ppfe.stage-rounds": "1", "ppfe.ranks": ""},
    "pefll": {"rounds": 1, "pefll.hidden-width": 8, "pefll.descriptor-size": 4, "local-steps": 3},
    "flowdup": {"rounds": 1, "flowdup.dimensions": 30, "flowdup.features": 7, "flowdup.width": 6},
    "feddp-kmeans": {"rounds": 1, "model": "centers", "kmeans.privacy-unit": "none", "kmeans.reveal-rows": True},
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Devices, each with the data of a simulated client of the same name."""
    folder = tmp_path_factory.mktemp("site")
    federation, dataset = federate(settings(**FEDERATION))
    with site(folder) as started:
        for client in range(CLIENTS):
            write_device(federation, dataset, client, folder / "data" / str(client))
            started.start_node(str(client), folder / "data" / str(client))
        yield started


def _digest(folder: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.parquet")))).hexdigest()


def _assert_same_models(first: Path, second: Path) -> None:
    ours, theirs = (read_checkpoint(path).arrays for path in (first, second))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=[] if method == "ppfe" else pytest.mark.long) for method in METHODS]
)
def test_devices_learn_what_a_simulation_learns(here: Site, method: str) -> None:
    keys = {**KEYS, "method": method, **METHODS[method]}
    if method == "feddp-kmeans":
        keys["server-data"] = str(here.folder / "data" / "0" / "test.parquet")
    before = _digest(here.folder / "data")
    path = here.run(f"real-{method}", **keys)
    run_app(config(**{**keys, **FEDERATION, "run-name": f"simulated-{method}", "runs-dir": str(path.parent)}))
    twin = path.parent / f"simulated-{method}"
    _assert_same_models(path, twin)
    for real, simulated in zip(read_evaluations(path), read_evaluations(twin), strict=True):
        for figure, value in simulated["seen"].items():
            np.testing.assert_allclose(real["seen"][figure], value, rtol=1e-3, atol=1e-5)
    assert _digest(here.folder / "data") == before
    for client in range(CLIENTS):  # each device has kept the model it would use
        (own,) = kept(here.folder / "state" / str(client), path.name)
        model, card = load_model(own.folder)
        assert (card.client, card.method) == (str(client), method)
        assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.long
def test_supernodes_of_flower_do_the_same(tmp_path: Path) -> None:
    """They take part where resident processes do not work, such as with newer versions of Flower."""
    federation, dataset = federate(settings(**FEDERATION))
    keys = {**KEYS, "method": "fedavg", "rounds": 1}
    with site(tmp_path) as here:
        for client in range(CLIENTS):
            write_device(federation, dataset, client, tmp_path / "data" / str(client))
            here.start_flower_node(str(client), tmp_path / "data" / str(client))
        path = here.run("real", **keys)
    run_app(config(**{**keys, **FEDERATION, "run-name": "simulated", "runs-dir": str(path.parent)}))
    _assert_same_models(path, path.parent / "simulated")


@pytest.mark.long
def test_who_has_no_key_or_no_certificate_is_refused(here: Site) -> None:
    stranger = here.start_node("stranger", here.folder / "data" / "0", register=False)
    assert stranger.wait(150) != 0
    assert "Failed to activate SuperNode" in (here.folder / "stranger.log").read_text()
    plain = ["--insecure", "--superlink", f"127.0.0.1:{here.port}", "--node-config", 'data-path="/x"']
    port = ["--port", str(processes.free_port())]
    assert not _gets_in(here, "flower-supernode", *plain, *port)
    assert not _gets_in(here, "flwr", "run", str(ROOT), "insecure")
    listed = processes.flwr(["supernode", "list", "site", "--format", "json"], here.user)
    assert len(json.loads(listed[listed.index("{") :])["nodes"]) == CLIENTS


def _gets_in(here: Site, program: str, *arguments: str) -> bool:
    """Return whether a program ends well; one that only tries again and again does not."""
    command = [processes.BIN / program, *arguments]
    environment = processes.environment(here.user)
    try:
        done = subprocess.run(command, cwd=here.user, env=environment, capture_output=True, timeout=40, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


ROGUE = '''
"""A device whose owner has changed what it answers."""
import numpy as np
from flwr.app import Message
from sklearn.datasets import load_digits
from florilegium.clients.node.host import Host
from florilegium.clients.core.wire import Reply, unpack

honest = Host.answer

def answer(host, message, own):
    config = message.content["config"]
    fault = {1: "long", 2: "stranger"}[config["round"]]
    if message.metadata.message_type != "train":
        return honest(host, message, own)
    value, sent = 1e9 if fault == "long" else 0.0, unpack(message.content["arrays"])
    arrays = {name: np.full(array.shape, value, array.dtype) for name, array in sent.items()}
    clients = ["0"] if fault == "stranger" else list(config["clients"])
    metrics = dict.fromkeys(("num-examples", "bytes-down", "bytes-up", "loss", "weight"), [1.0])
    return Message(Reply(clients, arrays, metrics, {}).pack(), reply_to=message)

Host.answer = answer

def rows():
    digits = load_digits()
    yield digits.images[:50, :, :, None].astype(np.uint8), digits.target[:50]
'''


@pytest.mark.long
def test_a_rogue_and_a_double_change_nothing(here: Site) -> None:
    """One device answers absurdities, another has the client-id of a third."""
    (here.folder / "rogue").mkdir()
    (here.folder / "rogue" / "rogue_device.py").write_text(ROGUE)
    here.start_node("rogue", "rogue_device:rows", PYTHONPATH=here.folder / "rogue")
    here.start_node("double", here.folder / "data" / "1", client="1")
    keys = {**KEYS, "method": "fedavg", "rounds": 2, "max-update-norm": 100.0, "min-success": 0.5}
    path = here.run("bothered", **{**keys, "num-clients": CLIENTS + 1})
    for name in ("rogue", "double"):
        here.cut_power(name)
    run_app(config(**{**keys, **FEDERATION, "run-name": "unbothered", "runs-dir": str(path.parent)}))
    _assert_same_models(path, path.parent / "unbothered")
    lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    assert [(line["round"], line["client"]) for line in lines] == [(1, "rogue"), (2, "rogue")]
    said = ("max-update-norm", "it replies for the clients")
    assert all(words in line["reason"] for words, line in zip(said, lines, strict=True)), lines


ATTACKER = '''
"""A device whose owner attacks: it returns five times the negative of what it has trained."""
from dataclasses import replace
import numpy as np
from sklearn.datasets import load_digits
from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.phases import phase

honest = BaseClient.train

@phase
def train(self, arrays):
    received = {name: array.copy() for name, array in arrays.items()}
    answer = honest(self, arrays)
    return replace(answer, arrays={name: a - 5 * (answer.arrays[name] - a) for name, a in received.items()})

BaseClient.train = train

def rows():
    digits = load_digits()
    yield digits.images[:400, :, :, None].astype(np.uint8), digits.target[:400]
'''


@pytest.mark.long
def test_a_supernode_that_attacks_does_not_move_a_median(here: Site) -> None:
    """Of three updates every entry of the median lies between the two honest ones; the mean's lie outside."""
    (here.folder / "attacker").mkdir()
    (here.folder / "attacker" / "attacking_device.py").write_text(ATTACKER)
    here.start_node("attacker", "attacking_device:rows", PYTHONPATH=here.folder / "attacker")
    keys = {**KEYS, "method": "fedavg", "rounds": 1, "num-clients": CLIENTS + 1, "attackers": 1}
    robust, plain = here.run("robust", **keys, aggregation="median"), here.run("plain", **keys)
    here.cut_power("attacker")
    single = [_alone(here, client, robust.parent) for client in range(CLIENTS)]
    for path, safe in ((robust, True), (plain, False)):
        inside = [
            (array >= np.minimum(*own) - 1e-5) & (array <= np.maximum(*own) + 1e-5)
            for name, array in read_checkpoint(path).arrays.items()
            for own in [[arrays[name] for arrays in single]]
        ]
        assert all(entries.all() for entries in inside) == safe
    assert not (robust / "failures.jsonl").exists()


def _alone(here: Site, client: int, runs: Path) -> Mapping[str, np.ndarray]:
    """Return the model after a round of one of the honest clients, in this process."""
    name = f"alone-{client}"
    node = {"client-id": str(client), "data-path": str(here.folder / "data" / str(client)),
            "state-dir": str(here.folder / name)}  # fmt: skip
    keys = {**KEYS, "method": "fedavg", "rounds": 1, "num-clients": 1, "run-name": name, "runs-dir": str(runs)}
    run_app(config(**keys), [node])
    return read_checkpoint(runs / name).arrays


def _after(number: int) -> Callable[[Mapping[str, object]], bool]:
    return lambda status: status["round"] >= number or status["state"] == "completed"


@pytest.mark.long
def test_buffered_rounds_take_replies_as_they_come(here: Site) -> None:
    """A server step for each update: four of them with two devices, which are both busy all the time."""
    path = here.run("buffered", **{**KEYS, "rounds": 4, "mode": "buffered", "buffer.size": 1})
    lines = read_metrics(path)
    assert [line["training"]["clients"] for line in lines] == [1] * 4
    assert not (path / "failures.jsonl").exists()
    assert lines[-1]["seen"]["accuracy"] > 0.3
    for client in range(CLIENTS):  # whoever was busy at the end has been tested after that
        assert kept(here.folder / "state" / str(client), "buffered")


@pytest.mark.long
def test_a_hanging_device_a_power_cut_and_a_new_superlink(here: Site) -> None:
    """FedPer: with what was missed, the run is what it would have been; nobody's head is lost."""
    data = here.folder / "data"
    keys = {**KEYS, "method": "fedper", "rounds": 4, "evaluate-every": 3, "round-timeout": 45.0, "min-success": 0.3}
    path = here.submit("troubled", keys)
    here.wait(path, _after(1))
    here.hang("1")
    here.wait(path, _after(2))
    here.cut_power("1")
    here.start_node("1", data / "1")
    here.wait(path, lambda status: status["evaluated"] == 3)
    here.superlink.send_signal(signal.SIGTERM)
    here.superlink.wait(60)
    time.sleep(1)  # its ServerApp ends with it
    here.start_superlink()
    here.wait_for_node("1", starts=2)
    path = here.submit("troubled", {**keys, "resume": "troubled"})
    here.wait(path, lambda status: status["state"] == "completed")

    lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    missed = {(line["round"], line["client"]) for line in lines if line["phase"] in ("train", "roster")}
    assert (2, "1") in missed
    assert missed <= {(2, "1"), (3, "1")}  # it is back for the last round

    # Back again, it may have found the message of an exchange that was over: its head learned, its answer was too late.
    before, _ = sorted((here.folder / "state" / "1" / "troubled" / "1").glob("state-*.safetensors"))
    last = int(before.name.split("-")[1])
    nodes: list[dict[str, Any]] = [
        {"client-id": str(i), "data-path": str(data / str(i)), "state-dir": str(here.folder / "twin")}
        for i in range(CLIENTS)
    ]
    twin = config(**{**keys, "run-name": "twin", "runs-dir": str(path.parent)})

    def miss(message: Message) -> Message | None:
        if message.metadata.message_type != "train":
            return None
        request = message.content["config"]
        (client,), number = request["clients"], request["round"]
        if (number, client) not in missed:
            return None
        if number <= last:
            client_app.app(message, Context(1, 1, nodes[int(client)], RecordDict(), twin))
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "missed"), reply_to=message)

    run_app(twin, nodes, intercept=miss)
    _assert_same_models(path, path.parent / "twin")
    for client in range(CLIENTS):
        (own,) = (here.folder / "state" / str(client) / "troubled" / str(client)).glob("state-000004-*.safetensors")
        (other,) = (here.folder / "twin" / "twin" / str(client)).glob("state-000004-*.safetensors")
        for name, array in load_file(own).items():
            np.testing.assert_allclose(array, load_file(other)[name], rtol=1e-4, atol=1e-6)


def test_scripts_say_what_they_need(tmp_path: Path) -> None:
    for script, missing in (("superlink.sh", "CERTIFICATES"), ("supernode.sh", "SUPERLINK")):
        done = subprocess.run([SCRIPTS / script], cwd=tmp_path, capture_output=True, text=True, env={}, check=False)
        assert done.returncode != 0
        assert missing in done.stderr


def test_a_node_whose_data_cannot_be_read_does_not_start(tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    variables = {
        "SUPERLINK": "127.0.0.1:1", "CA": "ca.pem", "KEY": "key", "STATE": str(tmp_path / "state"), "DATASET": "digits",
        "NODE_CONFIG": f'data-path="{folder}" client-id="a"', "PATH": f"{processes.BIN}:/usr/bin:/bin",
    }  # fmt: skip
    done = subprocess.run(
        [SCRIPTS / "supernode.sh"], cwd=tmp_path, capture_output=True, text=True, env=variables, check=False
    )
    assert done.returncode != 0
    assert str(folder) in done.stderr


@pytest.mark.long
def test_a_method_of_another_package_needs_it_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server and one device can import it; the other device is refused by the module's name."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "ownmethods.py").write_text(
        "import florilegium as fl\n\n\nclass Keys(fl.Section):\n    factor: float = fl.key(0.5, 'a factor', gt=0)\n\n\n"
        "class OwnClient(fl.FedAvgClient):\n    hyper: Keys\n\n\n"
        "METHOD = fl.Method('own', 'own', client=OwnClient, keys=Keys)\n"
    )
    monkeypatch.setenv("FLORILEGIUM_PATH", str(tmp_path / "own"))
    federation, dataset = federate(settings(**FEDERATION))
    own = {"method": "ownmethods:METHOD", "package-keys": "own.factor = 0.25", "num-clients": 1, "min-success": 1.0}
    for client in ("0", "1"):
        write_device(federation, dataset, int(client), tmp_path / client)
    with site(tmp_path / "site") as here:
        here.start_node("0", tmp_path / "0", FLORILEGIUM_PATH="")
        refused = here.submit("refused", {**KEYS, **own, "rounds": 1}) / "status.json"
        deadline = time.monotonic() + processes.DEADLINE
        while not refused.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert "ownmethods (not installed); needed: ownmethods (no package)" in refused.read_text()
        here.start_node("1", tmp_path / "1")
        path = here.run("own", **{**KEYS, **own, "rounds": 1})
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["method"], summary["clients"]) == ("ownmethods:METHOD", 1)
    assert read_config(path)["own.factor"] == 0.25
