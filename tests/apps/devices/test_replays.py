"""A device on a live SuperLink that sends replies again, in other rounds, and after their rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.exchange.flower_inside import ErrorCode
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import run_app
from tests.site import site
from tests.support import config, settings

pytestmark = [pytest.mark.deployment, pytest.mark.long]

TIMEOUT = 20.0
FEDERATION: dict[str, Value] = {"partitioner": "iid", "num-clients": 2, "seed": 5}
KEYS: dict[str, Value] = {
    "method": "fedavg", "dataset": "digits", "num-clients": 2, "seed": 5, "participation": 1.0, "model": "linear",
    "local-epochs": 1, "evaluate-every": 0, "start-timeout": 600.0, "round-timeout": TIMEOUT, "min-success": 0.5,
}  # fmt: skip
NODE = '''
"""A SuperNode whose owner has changed what it sends to the SuperLink."""
import json, sys, time
from flwr.app import Message
from florilegium.apps.devices import superlink, supernode

class Replaying(superlink.Link):
    """What it does in a round is in PLAN; what became of each reply is written to a file."""

    first, other = {}, None

    def content(self, message, tree):
        self.request = super().content(message, tree)
        return self.request

    def send(self, reply, seconds):
        request, run = self.request, self.request.metadata.run_id
        if request.metadata.message_type != "train":
            return super().send(reply, seconds)
        number = request.content["config"]["round"]
        if self.request.content["config"]["run"] == "other":
            Replaying.other = reply
            return super().send(reply, seconds)
        Replaying.first.setdefault(run, reply)
        first = Replaying.first[run]
        if number == 2:
            self.again("round 1", first)
            self.again("other run", Replaying.other)
            super().send(reply, seconds)
            self.again("twice", reply)
            second = Message(reply.content, reply_to=request)
            return self.again("a second time", second)
        if number in (3, 4):
            old = (first if number == 3 else Replaying.other).content
            return super().send(Message(old, reply_to=request), seconds)
        if number == 5:
            time.sleep(TIMEOUT * 1.3)
            return self.again("late", reply)
        super().send(reply, seconds)

    def again(self, what, reply):
        try:
            found = "sent"
            super().send(reply, 0.1)
        except BaseException as error:
            found = type(error).__name__
        with open(FILE, "a") as file:
            file.write(json.dumps([what, found]) + "\\n")

if __name__ == "__main__":
    superlink.Link = Replaying
    supernode.serve(sys.argv[1:])
'''


def _trained(path: Path) -> dict[str, Any]:
    return read_checkpoint(path).arrays


def test_replies_that_are_old_doubled_or_late_change_nothing(tmp_path: Path) -> None:
    federation, dataset = federate(settings(**FEDERATION))
    for client in range(2):
        write_device(federation, dataset, client, tmp_path / "data" / str(client))
    script, sent = tmp_path / "replaying.py", tmp_path / "sent.jsonl"
    script.write_text(NODE.replace("TIMEOUT", str(TIMEOUT)).replace("FILE", repr(str(sent))))
    with site(tmp_path) as here:
        here.start_node("0", tmp_path / "data" / "0")
        here.start_script("1", script, tmp_path / "data" / "1")
        here.run("other", **KEYS, rounds=1)
        path = here.run("replayed", **KEYS, rounds=6)

    lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    named = {(line["round"], line["client"]): line["reason"] for line in lines if line["phase"] == "train"}
    assert named.keys() == {(3, "1"), (4, "1"), (5, "1")}
    assert "it is a reply to another request: to run" in named[3, "1"]
    assert "round 1, phase 'train', expected is run" in named[3, "1"]
    assert "it is a reply to another request: to run" in named[4, "1"]
    assert named[5, "1"] == f"no reply within {TIMEOUT:g} s (key round-timeout)"
    tried = dict(json.loads(line) for line in sent.read_text().splitlines())
    assert [*tried] == ["round 1", "other run", "twice", "a second time", "late"]
    assert tried["other run"] == "RunNotRunningException"
    refused = (tmp_path / "superlink.log").read_text().count("Failed to store Message reply")
    assert refused == 3  # "round 1", "twice", "a second time"; the late one nobody asks for

    def miss(message: Message) -> Message | None:
        if message.metadata.message_type != "train":
            return None
        request: Any = message.content["config"]
        if (request["round"], *request["clients"]) not in named:
            return None
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "missed"), reply_to=message)

    nodes = [{"client-id": str(i), "data-path": str(tmp_path / "data" / str(i))} for i in range(2)]
    run_app(config(**{**KEYS, "rounds": 6, "run-name": "twin", "runs-dir": str(path.parent)}), nodes, intercept=miss)
    ours, theirs = _trained(path), _trained(path.parent / "twin")
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-4, atol=1e-6)
