"""What holds for every method, whatever it computes.

Resuming is exact, a client that fails does not end the run, new clients have a model, and the traffic of tests is not
counted as training's. Nodes that return what nobody asked for, or report nothing, do not end it either.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from florilegium.apps.assembly.task_checks import fitting
from florilegium.apps.methods.registry import METHODS
from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.reports import ALWAYS
from florilegium.clients.core.wire import Reply
from florilegium.common.declarations import gap
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.folder.metrics_file import read_evaluations, read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.fingerprints import cases, own
from tests.runs import Runs
from tests.support import TASK, mostly_long

CLASSIFIERS = fitting(TASK)


def _kind(messages: Messages) -> str:
    """Return which fields of messages are stated, and how clients' replies are used."""
    return f"{messages.returns} {[bool(value) for value in vars(messages).values()]}"


ONE_OF_EACH_KIND = {
    gap(method.strategy_class(), Messages, _kind, method.hyper()()): name
    for name, method in reversed([*METHODS.items()])
}.values()
"""A method for each kind of messages."""
FEW: dict[str, Value] = {
    "unseen-fraction": 0.34, "participation": 1.0, "min-success": 0.5, "samples-per-client": 30, "rounds": 2,
    "evaluate-every": 1,
}  # fmt: skip
"""Six clients, two of them unseen."""


def _kept(run: Path) -> dict[str, Any]:
    """Return what the clients of a run keep in the end, by client, part and name."""
    found: dict[str, Any] = {}
    for path in sorted((run / "clients").rglob("*.safetensors")):  # later rounds come after earlier ones
        part = re.sub(r"-\d+-\d+-\w+$", "", path.stem)
        found |= {f"{path.parent.name} {part} {name}": array for name, array in load_file(path).items()}
    return found


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_a_resumed_run_in_which_a_client_fails(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perform = BaseClient.perform

    def failing(self: BaseClient, name: str, arrays: Arrays, arguments: Any) -> Answer:
        if self.client_id == "1" and name != "test":
            raise RunError("it has no power left")
        return perform(self, name, arrays, arguments)

    monkeypatch.setattr(BaseClient, "perform", failing)
    more = {"rounds": own(method).get("rounds", FEW["rounds"])}
    whole, broken = Runs(tmp_path, {**cases()[method], **FEW, **more}).whole_and_broken(2)
    first, second = read_checkpoint(whole), read_checkpoint(broken)
    assert first.facts["own"] == second.facts["own"]
    for before, after in (
        (first.arrays, second.arrays), (first.state, second.state), (_kept(whole), _kept(broken)),
    ):  # fmt: skip
        assert before.keys() == after.keys()
        assert all(np.array_equal(array, after[name]) and np.isfinite(array).all() for name, array in before.items())
    figures = read_evaluations(whole)[-1]
    resumed = read_evaluations(broken)[-1]
    assert all(figures[group] == resumed[group] for group in ("seen", "unseen"))
    assert all(0 <= figures[group]["accuracy"] <= 1 for group in ("seen", "unseen"))
    for records in map(read_metrics, (whole, broken)):
        for way in ("bytes_down", "bytes_up"):  # of training alone
            assert records[-1][way] == sum(record["training"][way] for record in records)
    failures = (whole / "failures.jsonl").read_text(encoding="utf-8").splitlines()
    assert failures
    assert all("it has no power left" in line for line in failures)


def _invents(message: Message) -> Message | None:
    """Return the reply of the node with client 0, the first one: arrays that nobody asked for."""
    clients: Any = message.content["config"]["clients"] if "config" in message.content else []
    if "0" not in clients:
        return None
    numbers = dict.fromkeys(ALWAYS, [1.0] * len(clients))
    return Message(Reply(clients, {"invented": np.ones((len(clients), 3))}, numbers, {}).pack(), reply_to=message)


def _reports_nothing(message: Message) -> Message | None:
    """Return any node's reply to a request to evaluate: no more than every reply contains."""
    config: Any = message.content.get("config", {})
    if message.metadata.message_type != "evaluate" or config.get("phase") not in ("test", "full"):
        return None
    numbers = dict.fromkeys(ALWAYS, [1.0] * len(config["clients"]))
    return Message(Reply(config["clients"], {}, numbers, {}).pack(), reply_to=message)


@pytest.mark.parametrize("method", mostly_long(METHODS, *ONE_OF_EACH_KIND, "fediir", "fedgen", "k-fed"))
def test_what_nobody_asked_for_is_not_used(method: str, tmp_path: Path) -> None:
    """The node that invents arrays has as many clients as the other, so that what most return settles nothing."""
    keys = {**cases()[method], "participation": 1.0, "cohort-size": 0, "min-success": 0.0}
    path = Runs(tmp_path, keys)("run", intercept=_invents)
    reasons = [json.loads(line)["reason"] for line in (path / "failures.jsonl").read_text("utf-8").splitlines()]
    assert reasons
    assert all(reason.startswith("unusable reply") for reason in reasons)


@pytest.mark.parametrize("method", mostly_long(CLASSIFIERS, "fedavg", "fedrolex", "heterofl"))
def test_an_evaluation_of_which_nobody_reports_a_figure(method: str, tmp_path: Path) -> None:
    path = Runs(tmp_path, cases()[method])("run", intercept=_reports_nothing)
    assert "accuracy" not in read_evaluations(path)[-1]["seen"]
