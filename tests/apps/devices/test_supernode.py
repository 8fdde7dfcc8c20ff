"""``florilegium device serve``: each run's process, its death, other runs' code, and options that do not apply."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
from flwr.supercore.primitives.asymmetric import generate_key_pairs
from typer.testing import CliRunner

from florilegium.apps import client_app
from florilegium.apps.cli.app import cli
from florilegium.apps.devices import flower_inside, superlink, supernode
from florilegium.apps.devices.resident import App, DiedError, Resident
from florilegium.apps.devices.supernode import Answers
from florilegium.apps.devices.unasked import Unasked
from florilegium.clients.core.wire import holding
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.spool import LARGE, Spool, spooled
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.exchange.flower_inside import ErrorCode, identify
from tests.processes import ROOT, kill_family
from tests.support import config, settings

PROJECT = """
[project]
name = "told"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tests"
fab-include = ["**/*.py"]
[tool.flwr.app.components]
serverapp = "told:app"
clientapp = "told:app"
"""
CODE = """
import multiprocessing, os, pathlib, signal, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app, calls = ClientApp(), []

@app.train()
def train(message, context):
    wish = message.content["config"]["wish"]
    calls.append(wish)
    if wish == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if wish == "sleep":
        pathlib.Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
        time.sleep(300)
    if wish == "wait":
        time.sleep(300)
    if wish == "pool":
        with multiprocessing.Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
    if wish == "raise":
        raise RuntimeError("as wished")
    words = {"said": "{word}", "calls": len(calls), "process": os.getpid(), "node": str(context.node_config["own"])}
    return Message(RecordDict({"config": ConfigRecord(words)}), reply_to=message)
"""


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))


def _app(folder: Path, word: str) -> App:
    """Build an app whose code says ``word``."""
    return bundled(folder, word, PROJECT, CODE)


def bundled(folder: Path, word: str, project: str, code: str) -> App:
    """Build an app of this project file and this code, in which ``{word}`` is replaced."""
    source = folder / word
    source.mkdir(exist_ok=True)
    (source / "pyproject.toml").write_text(project)
    (source / "told.py").write_text(code.replace("{word}", word))
    content = build_fab_from_disk(source)
    return App("tests/told", "1.0.0", content, hashlib.sha256(content).hexdigest())


def _message(wish: str, run: int = 1, round: str = "") -> Message:
    identify()
    about = Metadata(run, wish, 0, 1, "", round, 0.0, 60.0, "train")
    return make_message(metadata=about, content=RecordDict({"config": ConfigRecord({"wish": wish})}))


def _context(run: int = 1) -> Context:
    return Context(run, 1, {"own": "a"}, RecordDict(), {}, run)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Resident]]:
    residents: list[Resident] = []
    yield residents
    for one in residents:
        one.end()


def _said(reply: Message) -> dict[str, Any]:
    return dict(reply.content["config"])  # type: ignore[arg-type]


def test_a_process_stays_and_takes_the_code_of_its_run(tmp_path: Path, started: list[Resident]) -> None:
    started += [Resident(_app(tmp_path, "one")), Resident(_app(tmp_path, "other"))]
    first, context = started[0].answer(_message("train"), _context())
    again, _ = started[0].answer(_message("train"), context)
    other, _ = started[1].answer(_message("train"), _context(2))
    assert (_said(first)["said"], _said(first)["calls"], _said(first)["node"]) == ("one", 1, "a")
    assert (_said(again)["calls"], _said(again)["process"]) == (2, _said(first)["process"])
    assert (_said(other)["said"], _said(other)["calls"]) == ("other", 1)
    assert _said(other)["process"] not in (_said(first)["process"], os.getpid())


ECHO = """
from flwr.app import Message
from flwr.clientapp import ClientApp
app = ClientApp()

@app.train()
def train(message, context):
    assert type(message.content["arrays"]["w"].data) is bytes  # this app has no class of files, or another one
    return Message(message.content, reply_to=message)
"""


def test_large_arrays_reach_the_app_as_bytes_and_come_back_in_a_file(tmp_path: Path, started: list[Resident]) -> None:
    started.append(Resident(bundled(tmp_path, "echo", PROJECT, ECHO)))
    message, data = _message("train"), spooled([bytes(LARGE), b"end"])
    message.content = RecordDict({"arrays": ArrayRecord()})
    message.content.array_records["arrays"]["w"] = holding("uint8", (len(data),), "flat", data)
    reply, _ = started[0].answer(message, _context())
    found = reply.content.array_records["arrays"]["w"].data
    assert isinstance(found, Spool)
    assert found[:] == data[:]


def test_an_error_is_an_answer(tmp_path: Path, started: list[Resident]) -> None:
    started.append(Resident(_app(tmp_path, "one")))
    reply, context = started[0].answer(_message("raise"), _context())
    assert (reply.error.code, reply.error.reason) == (
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "RuntimeError: as wished"
    )  # fmt: skip
    assert _said(started[0].answer(_message("train"), context)[0])["calls"] == 2
    broken = App("tests/told", "1.0.0", b"no fab", "0")
    started.append(Resident(broken))
    error = started[1].answer(_message("train"), _context())[0].error
    assert (error.code, error.reason) == (
        ErrorCode.LOAD_CLIENT_APP_EXCEPTION, "the app cannot be loaded; the device's log says why"
    )  # fmt: skip
    started[0].answer(_message("pool"), context)  # an owner's function may use processes of its own


ALONE = """
import pathlib, signal, sys
from florilegium.apps.devices.resident import App, Resident
from tests.apps.devices.test_supernode import _context, _message
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    fab = pathlib.Path(sys.argv[1]).read_bytes()
    Resident(App("tests/told", "1.0.0", fab, sys.argv[2])).answer(_message("sleep"), _context())
"""


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_busy_process_ends_with_its_supernode(tmp_path: Path, end: signal.Signals) -> None:
    app, file = _app(tmp_path, "one"), tmp_path / "pid"
    (tmp_path / "fab").write_bytes(app.fab)
    (tmp_path / "alone.py").write_text(ALONE)
    command = [sys.executable, str(tmp_path / "alone.py"), str(tmp_path / "fab"), app.hash]
    parent = subprocess.Popen(command, env={**os.environ, "PID_FILE": str(file), "PYTHONPATH": str(ROOT)})
    try:
        _until(lambda: file.exists() and file.read_text() != "", 60)
        busy = psutil.Process(int(file.read_text()))
        parent.send_signal(end)
        parent.wait(10)
        _until(lambda: not busy.is_running() or busy.status() == psutil.STATUS_ZOMBIE, 10)
    finally:
        kill_family(parent.pid)


def _until(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_death_is_told_with_its_reason(tmp_path: Path, started: list[Resident]) -> None:
    started.append(Resident(_app(tmp_path, "one")))
    with pytest.raises(DiedError, match=f"killed by {signal.SIGKILL.name}.*memory"):
        started[0].answer(_message("die"), _context())


def test_a_check_that_fails_is_not_the_death_of_the_process(tmp_path: Path, started: list[Resident]) -> None:
    def check() -> None:
        raise FileNotFoundError("the account is gone")

    started.append(Resident(_app(tmp_path, "one")))
    with pytest.raises(FileNotFoundError, match="the account is gone"):
        started[0].answer(_message("wait"), _context(), check)
    assert not started[0].alive


class _Link:
    """A SuperLink that sends what a test wants."""

    def __init__(self, app: App | None) -> None:
        self._app, self.sent, self.began = app, list[Message](), list[int]()

    def content(self, message: Message, tree: Any) -> Message:
        if tree == "lost":
            raise OSError("objects are gone")
        return message

    def app(self, run_id: int, trust: Callable[[int, bytes], None]) -> tuple[App, Context, str] | None:
        self.began.append(run_id)
        if self._app is None:
            return None
        trust(run_id, self._app.fab)
        return self._app, _context(run_id), "tests"

    def send(self, reply: Message, seconds: float) -> None:
        assert seconds >= 0
        self.sent.append(reply)


def test_a_death_costs_one_message_and_runs_have_processes_of_their_own(tmp_path: Path) -> None:
    link = _Link(_app(tmp_path, "one"))
    answers = Answers(link)  # type: ignore[arg-type]
    for wish, run in (("train", 1), ("train", 1), ("die", 1), ("train", 1), ("train", 2)):
        answers.give(_message(wish, run), None)
    answers.give(_message("train", 1), "lost")
    answers.give(_message("train", 1), None)
    assert link.sent[2].error.code == ErrorCode.CLIENT_APP_CRASHED
    said = [_said(reply) for reply in link.sent if not reply.has_error()]
    assert [one["calls"] for one in said] == [1, 2, 1, 1, 2]
    assert link.began == [1, 1, 2]  # after the death its process began anew; the lost message harmed nobody
    answers.give(_message("train", 3), None)  # the third run at once: that of run 2, silent for longest, ends
    answers.give(_message("train", 1), None)
    answers.give(_message("train", 2), None)
    assert [_said(reply)["calls"] for reply in link.sent[-3:]] == [1, 3, 1]
    assert len(answers.runs) == 2
    answers.runs[1].resident._process.kill()  # between two messages: nobody learns of it
    answers.runs[1].resident._process.join()
    answers.give(_message("train", 1), None)
    assert _said(link.sent[-1])["calls"] == 1
    answers.end(idle=600.0)
    assert len(answers.runs) == 2
    answers.end()
    assert not answers.runs


def test_an_owner_whose_files_are_damaged_costs_no_timeout(tmp_path: Path) -> None:
    class Damaged(Unasked):
        def ask(self, message: Message) -> None:
            raise DataError("the owner's account is damaged")

    link = _Link(_app(tmp_path, "one"))
    Answers(link, Damaged()).give(_message("train"), None)  # type: ignore[arg-type]
    assert link.sent[0].error.reason == "the device has failed; its log says why"


def test_the_log_has_the_round(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr"):
        Answers(_Link(None)).give(_message("train", 5, "17"), None)  # type: ignore[arg-type]
    assert "run 5, round 17: train" in [record.getMessage() for record in caplog.records]


def test_an_app_that_nobody_trusted_has_signed_does_not_run() -> None:
    link = _Link(None)
    Answers(link).give(_message("train"), None)  # type: ignore[arg-type]
    assert link.sent[0].error.code == ErrorCode.INVALID_FAB


@pytest.mark.parametrize("option", ["--port", "--isolation=process", "--ssl-certfile"])
def test_options_of_a_local_server_are_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match="leave it out"):
        supernode.serve(["--superlink", "x:1", option, "1"])


def test_flower_takes_over_where_its_inside_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def execv(path: str, arguments: list[str]) -> None:
        called.append(arguments)
        raise SystemExit

    assert flower_inside.usable()
    monkeypatch.setattr(flower_inside.metadata, "version", lambda name: "1.43.0")
    monkeypatch.setattr(os, "execv", execv)
    result = CliRunner().invoke(cli, ["device", "serve", "--node-config", 'data-path="/a"', "--superlink", "x:1"])
    assert result.exit_code == 0
    assert called == [["flower-supernode", "--node-config", 'data-path="/a"', "--superlink", "x:1"]]


class _Client:
    """The SuperLink's answers to a node that activates itself: refusals, then acceptance."""

    def __init__(self, refusals: list[int]) -> None:
        self.refusals, self.released = refusals, 0

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def ActivateNode(self, request: Any) -> Any:  # noqa: N802 - Flower's name
        assert request.heartbeat_interval >= HEARTBEAT_MIN_INTERVAL  # the SuperLink refuses shorter ones
        if self.refusals:
            request_ = httpx.Request("POST", "https://superlink")
            status = self.refusals.pop(0)
            raise httpx.HTTPStatusError("refused", request=request_, response=httpx.Response(status, request=request_))
        return SimpleNamespace(node_id=7)

    def DeactivateNode(self, request: Any) -> None:  # noqa: N802 - Flower's name
        self.released += request.node_id


@pytest.mark.parametrize(("refusals", "waits", "released"), [([], 0, 7), ([412, 412], 2, 7), ([403], 0, 0)])
def test_a_node_that_is_taken_for_connected_tries_again(
    monkeypatch: pytest.MonkeyPatch, refusals: list[int], waits: int, released: int
) -> None:
    client, slept = _Client(refusals), list[float]()
    monkeypatch.setattr(superlink.FleetHttpClient, "from_server_address", lambda *args, **kwargs: client)
    monkeypatch.setattr(superlink.time, "sleep", slept.append)
    keys = generate_key_pairs()
    config = SimpleNamespace(server_address="x:1", insecure=False, root_certificates=None, authentication_keys=keys)
    superlink._wait_until_free(config)  # type: ignore[arg-type]
    assert (len(slept), client.released) == (waits, released)


def test_data_that_have_changed_are_read_again(tmp_path: Path) -> None:
    federation, dataset = federate(settings(**{"num-clients": 2, "partitioner": "dirichlet"}))
    node = {"data-path": str(tmp_path / "a"), "client-id": "a", "state-dir": str(tmp_path / "state")}
    context = Context(1, 1, node, RecordDict(), config(**{"runs-dir": str(tmp_path)}))
    sizes = []
    for client in (0, 1):
        write_device(federation, dataset, client, tmp_path / "a")
        host, _ = client_app._host_of(context)
        assert client_app._host_of(context)[0] is host
        sizes.append(len(host._source.data("a").train))
    assert sizes == federation.train.sizes.tolist()
    assert sizes[0] != sizes[1]
