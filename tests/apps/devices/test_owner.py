"""A device whose owner has a policy: real processes of apps that lie, a server that asks for what is not allowed."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from typer.testing import CliRunner

from florilegium.apps.assembly.node_config import parse_node
from florilegium.apps.cli.app import cli
from florilegium.apps.devices.owned import keeper
from florilegium.apps.devices.resident import App
from florilegium.apps.devices.supernode import Answers
from florilegium.clients.core.wire import Reply
from florilegium.common.errors import ConfigurationError
from florilegium.owner.home import Home
from tests.apps.devices.test_supernode import PROJECT, bundled
from tests.owner.made import CLIENT, HEAD, TEST, TRAIN, entries, made, request

CODE = """
import json, os, pathlib, pickle, signal, sys, time
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
LIE = "{word}"

def reply(message, **changes):
    value = np.float32(changes.pop("value", 3))
    arrays = {"w": np.full((2, 2), value, np.float32), "b": np.array(value, np.float32)}
    layout = json.dumps([(name, array.dtype.str, array.shape) for name, array in arrays.items()])
    data = b"".join(array.tobytes() + bytes(-array.nbytes % 8) for array in arrays.values())
    numbers = {"num-examples": 30.0, "weight": 30.0, "loss": 0.5} | changes.pop("numbers", {})
    outcome = {"clients": ["site-a"], "failed": [], "reasons": [], "metrics": [*numbers], "values": [*numbers.values()]}
    content = {"outcome": ConfigRecord(outcome | changes), "arrays": ConfigRecord({"layout": layout, "data": data})}
    return Message(RecordDict(content), reply_to=message)

@app.train()
def train(message, context):
    return globals()[LIE](message, context)

def honest(message, context):
    return reply(message)

def long(message, context):
    return reply(message, value=1e12, numbers={"update-norm": 0.001})

def slow(message, context):
    if message.metadata.group_id != "quick":
        time.sleep(300)
    return reply(message)

def raises(message, context):
    raise RuntimeError("row 7 is 3.25")

def dies(message, context):
    os._exit(7)
"""


class _Link:
    """A SuperLink with one app."""

    def __init__(self, app: App, config: dict[str, Any] | None = None, account: str = "ann") -> None:
        self._app, self.sent, self._account = app, list[Message](), account
        self._config = {"rounds": 50, "method": "fedavg", "num-clients": 3, **(config or {})}

    def content(self, message: Message, tree: Any) -> Message:
        return message

    def app(self, run_id: int, trust: Any) -> tuple[App, Context, str]:
        trust(run_id, self._app.fab)
        return self._app, Context(run_id, 1, {}, RecordDict(), self._config, run_id), self._account

    def send(self, reply: Message, seconds: float) -> None:
        self.sent.append(reply)


def answered(
    folder: Path,
    lie: str,
    *messages: Message,
    text: str = HEAD + TRAIN + TEST,
    link: dict[str, Any] | None = None,
    code: str = CODE,
    columns: str = "any",
) -> tuple[list[Message], Home]:
    """Return the replies of a device to these messages, by an app that lies, and the owner's folder."""
    (folder / "fab").mkdir(exist_ok=True)
    app = bundled(folder / "fab", lie, PROJECT, code)
    home = made(
        folder / "owner",
        text.replace("rows = 20", f"rows = 20\ncolumns = ['{columns}']")
        .replace('hours = ["08:00-18:00"]', 'hours = ["00:00-24:00"]')
        .replace("2026-12-31", "2099-12-31"),
    )
    place = _Link(app, **(link or {}))
    (folder / "data.csv").write_text("age,name\n30,ann\n")
    node = {"data-path": str(folder / "data.csv"), "client-id": CLIENT, "state-dir": str(folder / "state")}
    answers = Answers(place, keeper(home.folder, parse_node(node)))  # type: ignore[arg-type]
    try:
        for message in messages:
            answers.give(message, None)
    finally:
        answers.end()
    assert len(place.sent) == len(messages)
    return place.sent, home


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))


def test_an_honest_app_is_served(tmp_path: Path) -> None:
    (one, again, other), home = answered(tmp_path, "honest", request(), request(), request(round=2))
    left = Reply.unpack(one.content)
    np.testing.assert_array_equal(left.arrays["w"], np.full((2, 2), 3, np.float32))
    assert again.error.reason == (
        "the owner of this device has refused: policy, reply.times: round 1, train delta: asked for 1 times; at most 1"
    )
    assert not other.has_error()
    assert [entry["what"] for entry in entries(home)] == ["start", "run", "reply", "refused", "reply"]


def test_an_app_that_claims_a_small_norm_is_bounded(tmp_path: Path) -> None:
    (one,), _ = answered(tmp_path, "long", request())
    left = Reply.unpack(one.content)
    assert np.sqrt(sum((array.astype(float) ** 2).sum() for array in left.arrays.values())) <= 60 * (1 + 1e-6)
    assert "update-norm" not in left.metrics


@pytest.mark.parametrize("lie", ["raises", "dies"])
def test_why_an_app_fails_stays_on_the_device(tmp_path: Path, lie: str) -> None:
    (one, two), home = answered(tmp_path, lie, request(), request(round=2))
    assert [reply.error.reason for reply in (one, two)] == ["it failed; the device's log says why"] * 2
    assert ("row 7" if lie == "raises" else "exit code 7") in entries(home, "failed")[0]["why"]


def test_a_run_that_is_not_allowed_gets_no_process(tmp_path: Path) -> None:
    (one,), home = answered(tmp_path, "honest", request(), link={"config": {"rounds": 51}})
    assert "runs.keys.rounds" in one.error.reason
    assert [entry["what"] for entry in entries(home)] == ["start", "refused"]
    (one,), _ = answered(tmp_path, "honest", request(), link={"account": "eve"})
    assert "'eve' has started the run" in one.error.reason


@pytest.mark.parametrize(("tell", "said"), [("nothing", ""), ("line", ": policy, runs.accounts")])
def test_a_server_learns_what_the_owner_tells(tmp_path: Path, tell: str, said: str) -> None:
    text = (HEAD + TRAIN).replace('tell = "reason"', f'tell = "{tell}"')
    (one,), _ = answered(tmp_path, "honest", request(), text=text, link={"account": "eve"})
    assert one.error.reason == f"the owner of this device has refused{said}"


def test_a_report_refuses_nothing_and_logs_all(tmp_path: Path) -> None:
    text = (HEAD + TRAIN).replace("version = 1", 'version = 1\nmode = "report"')
    (one, two), home = answered(tmp_path, "long", request(round=51), request(), text=text, link={"account": "eve"})
    np.testing.assert_array_equal(Reply.unpack(one.content).arrays["w"], np.full((2, 2), 1e12, np.float32))
    assert not two.has_error()
    refused = [entry["line"] for entry in entries(home, "would-refuse")]
    assert refused == ["runs.accounts", "runs.keys.rounds"]
    assert entries(home, "reply")[0]["scaled"]


def test_the_owners_folder_is_out_of_reach(tmp_path: Path) -> None:
    home = made(tmp_path / "data" / "owner")
    node = {"data-path": "/nowhere", "client-id": CLIENT, "state-dir": "/nowhere"}
    with pytest.raises(ConfigurationError, match="lies in data-path"):
        keeper(home.folder, parse_node({**node, "data-path": str(tmp_path / "data")}))
    with pytest.raises(ConfigurationError, match="lies in state-dir"):
        keeper(home.folder, parse_node({**node, "state-dir": str(tmp_path)}))
    with pytest.raises(ConfigurationError, match="needs state-dir"):
        keeper(home.folder, parse_node({**node, "state-dir": ""}))


def test_a_withdrawn_run_is_not_finished(tmp_path: Path) -> None:
    """The owner withdraws while the app works: its process ends, nothing leaves, and nothing of it begins again."""
    home = made(tmp_path / "owner", HEAD)

    def withdraw() -> None:
        while "run" not in [entry["what"] for entry in entries(home)]:
            time.sleep(0.05)
        time.sleep(0.5)
        home.withdraw(run="trial")

    home.log().add("made")
    thread = Thread(target=withdraw)
    thread.start()
    begun = time.monotonic()
    (one, two), _ = answered(tmp_path, "slow", request(), request(round=2))
    thread.join()
    assert time.monotonic() - begun < 60
    assert (
        one.error.reason
        == two.error.reason
        == ("the owner of this device has refused: policy, withdrawn: the owner has withdrawn from run 'trial'")
    )
    assert not entries(home, "reply")


@pytest.mark.parametrize("option", [("--run", "trial"), ("--everything",), ("--app", "")])
def test_what_is_withdrawn_does_not_begin_again(tmp_path: Path, option: tuple[str, ...]) -> None:
    (first,), home = answered(tmp_path, "honest", request())
    assert not first.has_error()
    words = [word or entries(home, "run")[0]["app"] for word in option]
    done = CliRunner().invoke(cli, ["device", "policy", "withdraw", str(home.folder), *words])
    assert done.exit_code == 0, done.output
    (again,), _ = answered(tmp_path, "honest", request(round=2))
    assert "policy, withdrawn" in again.error.reason
    assert entries(home, "withdrawn")


def test_a_forgotten_run_is_deleted_and_logged(tmp_path: Path) -> None:
    home, state = made(tmp_path / "owner"), tmp_path / "state"
    for run in ("trial", "other"):
        (state / run / CLIENT).mkdir(parents=True)
        (state / run / CLIENT / "state-000001-0-abc.safetensors").write_bytes(b"")
    words = ["device", "forget", "trial", "--state-dir", str(state), "--yes", "--owner", str(home.folder)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert [one.name for one in state.iterdir()] == ["other"]
    (entry,) = entries(home, "forgotten")
    assert entry["folders"] == done.output.split() == [str(state / "trial" / CLIENT), str(state / "trial")]
    (one,), _ = answered(tmp_path, "honest", request())
    assert "withdrawn from run 'trial'" in one.error.reason
