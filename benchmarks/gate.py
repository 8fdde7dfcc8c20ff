"""``python -m benchmarks.gate``: what the owner's gate adds to an exchange of a device, beside the device's own work.

The device's work is what its SuperNode does with one request and reply: pass the message to the process of the run,
which returns an update of the model's size, and make the objects that Flower sends. The gate reads the request, bounds
the reply, adds noise, charges and logs it. Both are timed in turns in this process; nothing is trained or sent, so
that the ratio to a whole exchange is smaller. ``python -m benchmarks.gate exchanges`` times whole exchanges of a
SuperNode with ``resnet18``, in turns without and with a policy. The figures are in docs/results/deployment.md.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict

from florilegium.apps.devices.bundles import bundle_of
from florilegium.apps.devices.resident import App, Resident
from florilegium.apps.settings.configuration import complete, parse
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.owner.made import DEVICE, HEAD, TEST, TRAIN, begun, made, request
from tests.site import site

REPEATS = 11
RUN: Mapping[str, Value] = {
    "method": "fedavg", "dataset": "cifar10", "model": "resnet18", "batch-size": 32, "local-epochs": 1,
    "num-clients": 1, "participation": 1.0, "rounds": 5, "evaluate-every": 0,
}  # fmt: skip
"""One step of 32 images a round, on one device."""
SIZES: Mapping[str, tuple[int, ...]] = {
    "LeNet, 62 thousand parameters": (2400, 51200, 8192, 850),
    "11 million parameters": (2_359_296,) * 4 + (1_179_648, 589_824),
}
PROJECT = """
[project]
name = "echo"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmarks"
fab-include = ["**/*.py"]
[tool.flwr.app.components]
serverapp = "echo:app"
clientapp = "echo:app"
"""
CODE = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    numbers = {"num-examples": 30.0, "weight": 30.0, "bytes-up": 0.0, "bytes-down": 0.0, "loss": 0.5}
    told = {"metrics": [*numbers], "values": [*numbers.values()]}
    outcome = ConfigRecord({"clients": ["site-a"], "failed": [], "reasons": [], **told})
    return Message(RecordDict({"outcome": outcome, "arrays": message.content["arrays"]}), reply_to=message)
"""


def _echo(folder: Path) -> App:
    """Return an app that returns the arrays that it is sent."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "echo.py").write_text(CODE)
    content = bundle_of(folder)
    return App("benchmarks/echo", "1.0.0", content, hashlib.sha256(content).hexdigest())


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measured(sizes: tuple[int, ...], noise: float, folder: Path) -> tuple[float, float]:
    """Return the medians in seconds: the device's own work, and what the gate adds.

    Args:
        sizes: numbers of entries of the model's arrays.
        noise: noise of the policy, relative to the norm.
        folder: for the app and the owner's files.
    """
    rng = np.random.default_rng(1)
    arrays: Arrays = {f"w{place}": rng.normal(size=size).astype(np.float32) for place, size in enumerate(sizes)}
    most = 1_000_000_000_000
    policy = HEAD.replace("= 1000", f"= {most}").replace("= 1500", f"= {most}").replace("max = 50", "max = 1000")
    rule = TRAIN.replace("bytes = 400", f"bytes = {most}\nnoise = {noise}")
    keeper = begun(folder / "owner", policy + rule + TEST, rounds=1000)
    resident = Resident(_echo(folder / "echo"))
    context = Context(1, 1, {}, RecordDict(), {}, 1)
    own, added = list[float](), list[float]()
    try:
        for round in range(1, REPEATS + 1):
            message = request(round=round, sent=arrays)
            replies: list[RecordDict] = []

            def carry_out(message: Message = message, replies: list[RecordDict] = replies) -> None:
                replies.append(resident.answer(message, context)[0].content)

            seconds = _timed(carry_out)
            sent: list[RecordDict] = []

            def gate(
                message: Message = message, replies: list[RecordDict] = replies, sent: list[RecordDict] = sent
            ) -> None:
                sent.append(keeper.leave(message, keeper.ask(message), replies[0]))

            added.append(_timed(gate))
            own.append(seconds + _timed(lambda sent=sent: sent[0].object_id))  # type: ignore[misc]
    finally:
        resident.end()
    return statistics.median(own[1:]), statistics.median(added[1:])


def exchange_seconds(policy: str) -> list[float]:
    """Return the seconds of the exchanges after the first one of a run on a SuperNode; "": its owner has no policy."""
    federation, dataset = federate(parse(complete({**RUN, "samples-per-client": 40, "partitioner": "iid"}))[0])
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as here:
        data = here.folder / "data"
        write_device(federation, dataset, 0, data)
        variables: dict[str, Any] = {"OWNER": made(Path(folder) / "owner", policy).folder} if policy else {}
        here.start_node("0", data, **variables)
        return list(read_checkpoint(here.run("gate", **RUN, **{"start-timeout": 600.0})).facts["seconds"][1:])


def _exchanges() -> None:
    """Print a Markdown table of whole exchanges, in turns without and with a policy that allows them all."""
    most = "1_000_000_000_000"
    policy = DEVICE.replace("10_000_000", most).replace("bytes = 1_000_000", f"bytes = {most}")
    policy = policy.replace("max = 2 }", "max = 100 }").replace('"min-success"]', '"min-success", "model"]')
    print("| policy | s of an exchange: median | all |\n|---|--:|---|")
    for text in ("", policy) * 2:
        seconds = exchange_seconds(text)
        every = ", ".join(f"{one:.2f}" for one in seconds)
        print(f"| {'yes' if text else 'no'} | {statistics.median(seconds):.2f} | {every} |", flush=True)


def main() -> None:
    """Print a Markdown table."""
    if sys.argv[1:] == ["exchanges"]:
        _exchanges()
        return
    print("| model | noise | ms of the device's own work | ms that the gate adds |\n|---|---|--:|--:|")
    for name, sizes in SIZES.items():
        for noise in (0.0, 1.0):
            with tempfile.TemporaryDirectory() as folder:
                own, added = measured(sizes, noise, Path(folder))
            print(f"| {name} | {'yes' if noise else 'no'} | {own * 1e3:.1f} | {added * 1e3:.1f} |", flush=True)


if __name__ == "__main__":
    main()
