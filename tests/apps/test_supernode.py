"""``florilegium device serve``: each run's process, its death, other runs' code, and options that do not apply."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode

from florilegium.apps import resident, supernode
from florilegium.apps.local_grid import identify
from florilegium.apps.resident import App, DiedError, Resident
from florilegium.apps.supernode import Answers
from florilegium.common.errors import ConfigurationError

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
import os, signal
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app, calls = ClientApp(), []

@app.train()
def train(message, context):
    wish = message.content["config"]["wish"]
    calls.append(wish)
    if wish == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if wish == "raise":
        raise RuntimeError("as wished")
    words = {"said": "{word}", "calls": len(calls), "process": os.getpid(), "node": str(context.node_config["own"])}
    return Message(RecordDict({"config": ConfigRecord(words)}), reply_to=message)
"""


@pytest.fixture(autouse=True)
def _few_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resident, "_PRELOADED", [])
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))


def _app(folder: Path, word: str) -> App:
    """Build an app whose code says ``word``."""
    source = folder / word
    source.mkdir()
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "told.py").write_text(CODE.replace("{word}", word))
    content = build_fab_from_disk(source)
    return App("tests/told", "1.0.0", content, hashlib.sha256(content).hexdigest())


def _message(wish: str, run: int = 1) -> Message:
    identify()
    about = Metadata(run, wish, 0, 1, "", "", 0.0, 60.0, "train")
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


def test_an_error_is_an_answer(tmp_path: Path, started: list[Resident]) -> None:
    started.append(Resident(_app(tmp_path, "one")))
    reply, context = started[0].answer(_message("raise"), _context())
    assert (reply.error.code, reply.error.reason) == (
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "RuntimeError: as wished"
    )  # fmt: skip
    assert _said(started[0].answer(_message("train"), context)[0])["calls"] == 2
    broken = App("tests/told", "1.0.0", b"no fab", "0")
    started.append(Resident(broken))
    assert started[1].answer(_message("train"), _context())[0].has_error()


def test_a_death_is_told_with_its_reason(tmp_path: Path, started: list[Resident]) -> None:
    started.append(Resident(_app(tmp_path, "one")))
    with pytest.raises(DiedError, match=f"killed by {signal.SIGKILL.name}.*memory"):
        started[0].answer(_message("die"), _context())


class _Link:
    """A SuperLink that sends what a test wants."""

    def __init__(self, app: App | None) -> None:
        self._app, self.sent, self.began = app, list[Message](), list[int]()

    def content(self, message: Message, tree: Any) -> Message:
        if tree == "lost":
            raise OSError("objects are gone")
        return message

    def app(self, run_id: int) -> tuple[App, Context] | None:
        self.began.append(run_id)
        return None if self._app is None else (self._app, _context(run_id))

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
    answers.end()


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

    monkeypatch.setattr(supernode, "usable", lambda: False)
    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        supernode.serve(["--superlink", "x:1"])
    assert called == [["flower-supernode", "--superlink", "x:1"]]
