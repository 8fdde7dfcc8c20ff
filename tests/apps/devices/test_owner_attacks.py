"""Apps that attack the device they run on: each attack works without a cell, and does not work in one.

All of them are harmless: they are aimed at files, sockets and processes of the test alone. An app tells by its loss
whether its attack has worked: 1 if it has, 0 if not.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from flwr.app import Message

from florilegium.apps.devices.resident import prepare
from florilegium.clients.core.wire import Reply
from florilegium.owner.home import Home
from tests.apps.devices.test_owner import CODE, answered
from tests.apps.devices.test_supernode import PROJECT, bundled
from tests.owner.made import HEAD, TEST, TRAIN, entries, request
from tests.processes import ROOT, kill_family

ATTACKS = """
import ctypes, errno, socket, subprocess, threading
from contextlib import suppress

def attempt(message, context):
    facts = dict(message.content["config"])
    try:
        worked = globals()[facts["attack"]](facts, context)
    except BaseException as error:
        print("the attack has failed:", repr(error))
        worked = False
    return reply(message, numbers={"loss": float(bool(worked))})

def tcp(facts, context):
    socket.create_connection(("127.0.0.1", facts["port"]), 5).sendall(b"a row")
    return True

def udp(facts, context):
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"a row", ("127.0.0.1", facts["port"]))

def listens(facts, context):
    socket.create_server(("127.0.0.1", 0))
    return True

def unix(facts, context):
    socket.socket(socket.AF_UNIX).connect(facts["unix"])
    return True

def abstract(facts, context):
    socket.socket(socket.AF_UNIX).connect(chr(0) + facts["abstract"])
    return True

def reads_policy(facts, context):
    return pathlib.Path(facts["owner"], "policy.toml").read_text()

def reads_key(facts, context):
    return pathlib.Path(facts["owner"], "log.key").read_text()

def reads_other_file(facts, context):
    return pathlib.Path(facts["file"]).read_text()

def reads_column(facts, context):
    with suppress(OSError):
        if "ann" in pathlib.Path(facts["data"]).read_text():
            return True
    return "ann" in pathlib.Path(context.node_config["data-path"]).read_text()

def reads_other_run(facts, context):
    return pathlib.Path(facts["other"]).read_text()

def writes_log(facts, context):
    with pathlib.Path(facts["owner"], "log.jsonl").open("a"):
        return True

def writes_data(facts, context):
    with pathlib.Path(facts["data"]).open("a"):
        return True

def writes_other_run(facts, context):
    pathlib.Path(facts["other"]).unlink()
    return True

def writes_outside(facts, context):
    return pathlib.Path(facts["file"] + ".new").write_text("x")

def links(facts, context):
    os.link(facts["file"], pathlib.Path.home() / "link")
    return True

def forks(facts, context):
    if os.fork() == 0:
        os._exit(0)
    return True

def starts(facts, context):
    return subprocess.run(["/bin/true"], check=True).returncode == 0

def signals(facts, context):
    os.kill(facts["supervisor"], 0)
    return True

def sees(facts, context):
    return pathlib.Path("/proc", str(facts["supervisor"]), "cmdline").read_bytes()

def reads_memory(facts, context):
    return pathlib.Path("/proc", str(facts["supervisor"]), "maps").read_text()

def traces(facts, context):
    here = ctypes.CDLL(None, use_errno=True)
    found = here.ptrace(16, facts["supervisor"], 0, 0)
    if found == 0:
        os.waitpid(facts["supervisor"], 0)
        here.ptrace(17, facts["supervisor"], 0, 0)
    return found == 0

def reads_environment(facts, context):
    return os.environ.get("SECRET_OF_THE_OWNER") or b"SECRET_OF" in pathlib.Path("/proc/self/environ").read_bytes()

def mounts(facts, context):
    # There is no such file system: whoever may mount learns that, and nothing is mounted.
    here = ctypes.CDLL(None, use_errno=True)
    here.mount(b"none", facts["file"].encode(), b"no-such-file-system", 0, 0)
    return ctypes.get_errno() != errno.EPERM

def gains_rights(facts, context):
    return "NoNewPrivs:\\t0" in pathlib.Path("/proc/self/status").read_text()

def takes_memory(facts, context):
    return len(bytearray(4_000_000_000))

def opens_files(facts, context):
    return len([open("/dev/null") for _ in range(600)])

def large_file(facts, context):
    with (pathlib.Path.home() / "large").open("wb") as file:
        file.truncate(150_000_000)
    return True
"""
WHOLE = CODE + ATTACKS
TEXT = HEAD.replace("[limits]", "[limits]\nmemory = 2000\ndisk = 100\nfiles = 512") + TRAIN + TEST


@pytest.fixture(scope="module")
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the test that stands for the supervisor."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture(scope="module", autouse=True)
def _known_forkserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A forkserver with few variables of the environment, as the SuperNode starts it, and a home of the test's own.

    What an app does without a cell it does there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_OF_THE_OWNER", "x")
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        prepare(confined=True)
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bystander: subprocess.Popen[bytes]
) -> Iterator[dict[str, Any]]:
    """What the attacks are aimed at."""
    monkeypatch.setenv("SECRET_OF_THE_OWNER", "x")
    (tmp_path / "file").write_text("another file")
    other = tmp_path / "state" / "other" / "state"
    other.parent.mkdir(parents=True)
    other.write_text("another run")
    name = f"owner-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as far,
    ):
        unix.bind(str(tmp_path / "s"))
        unix.listen()
        far.bind(f"\0{name}")
        far.listen()
        yield {
            "port": tcp.getsockname()[1], "unix": str(tmp_path / "s"), "abstract": name, "file": str(tmp_path / "file"),
            "owner": str(tmp_path / "owner"), "data": str(tmp_path / "data.csv"), "other": str(other),
            "supervisor": bystander.pid,
        }  # fmt: skip


NAMES = [
    line.split("(")[0][4:] for line in ATTACKS.splitlines() if line.startswith("def ") and "facts, context" in line
]
ALONE = {"traces", "reads_environment"}
"""Attacks that are not tried without a cell: one stops a process, one is prevented before there is a cell."""


def _tried(tmp_path: Path, facts: dict[str, Any], name: str, text: str) -> float:
    """Return whether an attack has worked."""
    message = request(arguments={**facts, "attack": name})
    (reply,), _ = answered(tmp_path, "attempt", message, text=text, code=WHOLE, columns="age")
    return Reply.unpack(reply.content).metrics["loss"][0]


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_fails_in_a_cell(tmp_path: Path, facts: dict[str, Any], name: str) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert _tried(tmp_path, facts, name, TEXT) == 0
    changed = [path for path, content in before.items() if not path.exists() or path.read_bytes() != content]
    assert not changed


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ALONE])
def test_without_a_cell_it_works(tmp_path: Path, facts: dict[str, Any], name: str) -> None:
    """So that the test above shows what the cell does, and not that the attack is none."""
    assert _tried(tmp_path, facts, name, TEXT.replace("version = 1", 'version = 1\nmode = "report"')) == 1


LIES = '''
def hides_row(message, context):
    """A row of the data in an array of the right shape."""
    return reply(message, value=30 * 8437.0)

def never(message, context):
    time.sleep(300)

def sleeps(message, context):
    if not (pathlib.Path.home() / "once").exists():
        (pathlib.Path.home() / "once").touch()
        while True:
            time.sleep(1)
    return reply(message)

def stops(message, context):
    threading.Thread(target=lambda: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGSTOP))).start()
    return reply(message)

def fills(message, context):
    for number in range(1000):
        (pathlib.Path.home() / str(number)).write_bytes(bytes(1_000_000))
        time.sleep(0.005)
    return reply(message)

def large(message, context):
    value = reply(message)
    value.content["arrays"] = ConfigRecord({"layout": json.dumps([["w", "<f4", [2, 2]]]), "data": bytes(30_000_000)})
    return value

def pickles(message, context):
    class Runs:
        def __reduce__(self):
            return (os.system, (f"touch {message.content['config']['file']}.ran",))
    for number in range(3, 64):
        with suppress(OSError):
            from multiprocessing.connection import Connection
            Connection(os.dup(number)).send((Runs(), Runs()))
    return reply(message)

def speaks_for_others(message, context):
    return reply(message, clients=["site-b"])

def tells_in_words(message, context):
    return reply(message, clients=[], failed=["site-a"], reasons=["age 30, ann"], metrics=[], values=[])

def tells_in_marks(message, context):
    return reply(message, mark="age 30, ann", numbers={"age": 30.0})

def leaves(message, context):
    if os.fork() == 0:
        os.setsid()
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(300)"],
                  {"LEFT": f"left-{message.content['config']['abstract']}"})
    time.sleep(1)
    return reply(message)

def leaves_and_waits(message, context):
    leaves(message, context)
    time.sleep(300)

def links_away(message, context):
    for name in ("owner", "file"):
        os.symlink(message.content["config"][name], pathlib.Path.home() / name)
    return reply(message)
'''


def _lied(
    tmp_path: Path, facts: dict[str, Any], name: str, text: str = TEXT, rounds: int = 2
) -> tuple[list[Message], Home]:
    """Return the replies of an app that lies in each of several rounds."""
    messages = [request(round=round + 1, arguments=facts) for round in range(rounds)]
    return answered(tmp_path, name, *messages, text=text, code=WHOLE + LIES)


def test_a_row_in_an_array_is_scaled_down(tmp_path: Path, facts: dict[str, Any]) -> None:
    replies, _ = _lied(tmp_path, facts, "hides_row")
    for reply in replies:
        arrays = Reply.unpack(reply.content).arrays.values()
        assert np.sqrt(sum((array.astype(float) ** 2).sum() for array in arrays)) <= 2.0 * 30 * (1 + 1e-6)


@pytest.mark.parametrize(("lie", "line"), [("never", "limits.seconds"), ("fills", "limits.disk")])
def test_a_request_that_takes_too_much_ends(tmp_path: Path, facts: dict[str, Any], lie: str, line: str) -> None:
    text = TEXT.replace("[limits]", "[limits]\nseconds = 10.0")
    begun = time.monotonic()
    (one,), home = _lied(tmp_path, facts, lie, text, 1)
    assert line in one.error.reason
    assert time.monotonic() - begun < 60
    assert line in [entry["line"] for entry in entries(home, "refused")]
    assert not [*(tmp_path / "state" / "_scratch").iterdir()]


def test_the_device_serves_again_after_it(tmp_path: Path, facts: dict[str, Any]) -> None:
    text = TEXT.replace("[limits]", "[limits]\nseconds = 8.0")
    (one, two), _ = _lied(tmp_path, facts, "stops", text)
    assert not one.has_error()
    assert two.has_error() or Reply.unpack(two.content).clients


def test_nothing_is_left_of_its_processes(tmp_path: Path, facts: dict[str, Any]) -> None:
    """Where processes are allowed, those that an app has started end with it, also as leaders of sessions."""
    text = TEXT.replace("[limits]", "[limits]\nprocesses = 8")
    answered(tmp_path, "leaves", request(arguments=facts), text=text, code=WHOLE + LIES)
    name = f"left-{facts['abstract']}"
    deadline = time.monotonic() + 10
    while name in [_name(process) for process in psutil.process_iter()]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _name(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/environ").read_text().partition("LEFT=")[2].partition("\0")[0]
    except OSError:
        return ""


def test_too_large_a_reply_does_not_leave(tmp_path: Path, facts: dict[str, Any]) -> None:
    (one, _), home = _lied(tmp_path, facts, "large")
    assert one.error.reason == "it failed; the device's log says why"
    assert "more bytes than it may" in entries(home, "failed")[0]["why"]


def test_pickles_in_the_pipe_do_not_run(tmp_path: Path, facts: dict[str, Any]) -> None:
    replies, _ = _lied(tmp_path, facts, "pickles")
    assert all(reply.has_error() for reply in replies)
    assert not (tmp_path / "file.ran").exists()


def test_it_cannot_speak_for_others(tmp_path: Path, facts: dict[str, Any]) -> None:
    (one, _), _ = _lied(tmp_path, facts, "speaks_for_others")
    assert "does not speak for this device's client alone" in one.error.reason


@pytest.mark.parametrize("lie", ["tells_in_words", "tells_in_marks"])
def test_words_do_not_leave(tmp_path: Path, facts: dict[str, Any], lie: str) -> None:
    (one, _), home = _lied(tmp_path, facts, lie)
    assert "ann" not in str(one.content)
    assert "age" not in str(one.content)
    assert Reply.unpack(one.content).failures in ({}, {"site-a": "it failed; the device's log says why"})
    assert ("ann" in str(entries(home, "reply"))) == (lie == "tells_in_words")


def test_links_are_not_followed_when_it_is_over(tmp_path: Path, facts: dict[str, Any]) -> None:
    _lied(tmp_path, facts, "links_away")
    assert (tmp_path / "owner" / "policy.toml").exists()
    assert (tmp_path / "file").read_text() == "another file"
    assert not [*(tmp_path / "state" / "_scratch").iterdir()]


ALONE_IN_A_CELL = """
import sys
from pathlib import Path
from florilegium.apps.devices.resident import App, Resident, prepare
from florilegium.owner.confine.cell import Cell
from tests.apps.devices.test_supernode import _context
from tests.owner.made import request
if __name__ == "__main__":
    prepare(confined=True)
    fab, digest, scratch, mark = sys.argv[1:]
    cell = Cell((), (), scratch, 4000, 100, 512, 8, False)
    app = App("tests/told", "1.0.0", Path(fab).read_bytes(), digest)
    Resident(app, cell).answer(request(arguments={"abstract": mark}), _context())
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_supervisor(tmp_path: Path, end: signal.Signals) -> None:
    """An app in a cell, and what it has started, end with the supervisor, however that ends."""
    (tmp_path / "scratch").mkdir()
    app = bundled(tmp_path, "leaves_and_waits", PROJECT, WHOLE + LIES)
    (tmp_path / "fab").write_bytes(app.fab)
    (tmp_path / "alone.py").write_text(ALONE_IN_A_CELL)
    mark = f"{tmp_path.name}-{end.name}"
    words = [
        sys.executable,
        str(tmp_path / "alone.py"),
        str(tmp_path / "fab"),
        app.hash,
        str(tmp_path / "scratch"),
        mark,
    ]
    parent = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def until(there: bool) -> None:
        deadline = time.monotonic() + 60
        while (f"left-{mark}" in [_name(process) for process in psutil.process_iter()]) != there:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    try:
        until(there=True)
        parent.send_signal(end)
        parent.wait(10)
        until(there=False)
    finally:
        kill_family(parent.pid)
