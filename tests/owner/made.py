"""What several tests of this folder need: an owner's folder with a policy, requests of a server, replies of an app."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata

from florilegium.apps.settings.configuration import defaults
from florilegium.clients.core.wire import Announcement, Reply, Request, Work, flat
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.owner.home import Home, open_home
from florilegium.owner.keeper import Keeper
from florilegium.owner.log import read_log
from florilegium.strategies.exchange.flower_inside import identify, name_message

CLIENT, RUN = "site-a", 5
NOW = datetime(2026, 11, 29, 12, 0)
FAB = b"a bundle"
HEAD = """
version = 1
tell = "reason"
[apps]
any = true
[runs]
accounts = ["ann"]
methods = ["fedavg"]
[runs.keys]
rounds = { max = 50 }
num-clients = "any"
[data]
rows = 20
[limits]
until = 2026-12-31
hours = ["08:00-18:00"]
run-bytes = 1000
day-bytes = 1500
"""
TRAIN = """
[[reply]]
phase = "train"
reduce = "delta"
norm = 2.0
figures = ["loss"]
digits = 3
bytes = 400
"""
TEST = """
[[reply]]
phase = "test"
reduce = "sum"
figures = ["accuracy"]
"""
DEVICE = """
version = 1
tell = "line"
[apps]
any = true
[runs]
accounts = ["any"]
methods = ["fedavg"]
free = ["dataset", "num-clients", "seed", "participation", "local-epochs", "batch-size", "evaluate-every",
        "start-timeout", "runs-dir", "run-name", "min-success"]
[runs.keys]
rounds = { max = 2 }
[data]
rows = 20
columns = ["any"]
[limits]
until = 2099-12-31
hours = ["00:00-24:00"]
run-bytes = 10_000_000
day-bytes = 10_000_000
[[reply]]
phase = "train"
reduce = "delta"
norm = 10.0
figures = ["loss"]
bytes = 1_000_000
[[reply]]
phase = "test"
reduce = "sum"
figures = ["loss", "accuracy"]
times = 3
"""
"""The whole policy of a device that trains in real runs."""


def made(folder: Path, text: str = HEAD + TRAIN + TEST) -> Home:
    """Write an owner's folder with this policy."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    (folder / "policy.toml").write_text(text)
    (folder / "policy.toml").chmod(0o600)
    return open_home(folder)


def kept(home: Home, now: datetime = NOW) -> Keeper:
    """Return the owner's keeper, whose clock stands."""
    return Keeper(home, CLIENT, defaults(), now=lambda: now)


def begun(folder: Path, text: str = HEAD + TRAIN + TEST, **config: Value) -> Keeper:
    """Return the keeper of a policy, which has admitted run 5."""
    keeper = kept(made(folder, text))
    keeper.trust(RUN, FAB)
    keeper.admit(RUN, {"rounds": 50, "method": "fedavg", **config}, "ann")
    return keeper


def message(content: RecordDict, kind: str = "train") -> Message:
    """Return a message of a server."""
    identify()
    found = make_message(metadata=Metadata(RUN, "one", 0, 1, "", "", 0.0, 60.0, kind), content=content)
    name_message(found, "one")
    return found


def request(
    phase: str = "train",
    reduce: str = "delta",
    *,
    clients: list[str] | None = None,
    round: int = 1,
    sent: Arrays | None = None,
    **options: Any,
) -> Message:
    """Return a request, by default to train on a model of four zeros and a scalar."""
    arrays = sent if sent is not None else {"w": np.zeros((2, 2), np.float32), "b": np.zeros((), np.float32)}
    work = Work(round, "trial", "abc", **{key: options.pop(key) for key in ("lineage", "heaviest") if key in options})
    asked = Request([CLIENT] if clients is None else clients, phase, reduce, work, **options)
    return message(asked.pack(flat(arrays) if arrays else None), "train" if phase == "train" else "evaluate")


def reply(
    arrays: Arrays | None = None,
    *,
    clients: list[str] | None = None,
    failures: Mapping[str, str] | None = None,
    rows: float = 30,
    weight: float = 30,
    **figures: float,
) -> RecordDict:
    """Return what an app's process has made: by default an update of 30 examples, each entry 30·0.1."""
    if arrays is None:
        arrays = {"w": np.full((2, 2), 3, np.float32), "b": np.array(3, np.float32)}
    numbers = {"num-examples": rows, "weight": weight, "bytes-up": 20.0, "bytes-down": 20.0, **figures}
    names = [CLIENT] if clients is None else clients
    return Reply(names, arrays, {name: [value] * len(names) for name, value in numbers.items()}, dict(failures or {}),
                 "a mark").pack()  # fmt: skip


def announcement(**fields: Any) -> RecordDict:
    """Return what an app's process announces."""
    usual = {"train": [30], "test": [10], "labeled": [True], "capacities": [1.0], "clients": [CLIENT]}
    return Announcement(True, "0123456789ab", **{**usual, **fields}).pack()


def roster() -> Message:
    """Return a roster query."""
    return message(RecordDict({}), "query.roster")


def exchanged(keeper: Keeper, asked: Message, content: RecordDict) -> Reply:
    """Return what leaves the device of one exchange, read as the server reads it."""
    return Reply.unpack(keeper.leave(asked, keeper.ask(asked), content))


def entries(home: Home, what: str = "") -> list[dict[str, Any]]:
    """Return the entries of the log, or those of one kind."""
    return [entry for entry in read_log(home.log_file) if what in ("", entry["what"])]


def record(**fields: Any) -> RecordDict:
    """Return a message's content with a record of configuration."""
    return RecordDict({"config": ConfigRecord(fields)})
