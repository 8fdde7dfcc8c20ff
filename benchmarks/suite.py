"""``florilegium run`` itself, measured: rounds, PPFE's cost, start-up, memory with 10,000 clients, evaluation."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.task import CLIENTS, KEYS
from florilegium.apps.experiment import read_recipe
from florilegium.apps.settings import defaults, parse
from florilegium.apps.sources import SimulatedClients
from florilegium.clients.core.host import Host
from florilegium.clients.core.training import evaluate
from florilegium.clients.core.wire import Request, Work, pack
from florilegium.clients.core.worker import tune_process
from florilegium.clients.fedavg import FedAvgClient
from florilegium.common.settings import Value, parse_counts
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.strategies.core.run_folder import read_checkpoint

MEMORY_CLIENTS = 10_000


def _start(keys: dict[str, Value], workers: int, runs: Path) -> subprocess.Popen[str]:
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    command = [
        sys.executable,
        "-m",
        "florilegium",
        "run",
        "--workers",
        str(workers),
        "--runs-dir",
        str(runs),
        *words,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str]) -> Path:
    output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the run failed: {errors[-2000:]}")
    return Path(output.splitlines()[-1])


def run(keys: dict[str, Value], workers: int, runs: Path) -> Path:
    """Carry out a run in processes of its own and return its folder, which is in ``runs``."""
    return _finish(_start(keys, workers, runs))


def seconds_per_round(model: str, rounds: int, workers: int, **more: Value) -> float:
    """Return the median seconds of a round after the first four, of the common task with ``more`` keys.

    In the first, workers build their networks; in the next ones a process that copies the log starts.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Its last round is followed by an evaluation, of a few clients only.
        keys = {**KEYS, "model": model, "rounds": rounds + 4, "evaluate-clients": 2, **more}
        seconds = read_checkpoint(run(keys, workers, Path(folder))).facts["seconds"]
        return float(np.median(seconds[4:]))


def pefll_seconds(rounds: int, workers: int) -> float:
    """Return the median seconds of a round after the first four of the recipe ``pefll-cifar10-n100``."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {**read_recipe("pefll-cifar10-n100"), "rounds": rounds + 4, "evaluate-every": 0, "evaluate-clients": 2}
        return float(np.median(read_checkpoint(run(keys, workers, Path(folder))).facts["seconds"][4:]))


def kmeans_seconds(recipe: str, workers: int) -> tuple[float, float]:
    """Return the seconds of a clustering, and of its evaluation, from the first message to the last."""
    with tempfile.TemporaryDirectory() as folder:
        path = run({**read_recipe(recipe), "evaluate-every": 0}, workers, Path(folder))
        line = json.loads((path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        return float(line["seconds"]), float(line["evaluation_seconds"])


def mdm_seconds(workers: int) -> tuple[float, int]:
    """Return the seconds of all rounds of the recipe ``mdm`` after start-up, and their number."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = read_checkpoint(run(read_recipe("mdm"), workers, Path(folder))).facts["seconds"]
        return sum(seconds), len(seconds)


def _run_seconds(keys: dict[str, Value], workers: int) -> tuple[list[float], float]:
    """Return the seconds of every round of a run of the recipe ``ppfe-cifar10-s2``, and of its final evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        path = run({**read_recipe("ppfe-cifar10-s2"), **keys, "evaluate-every": 0}, workers, Path(folder))
        evaluations = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return read_checkpoint(path).facts["seconds"], float(json.loads(evaluations[-1])["evaluation_seconds"])


def ppfe_costs(workers: int, repeats: int = 2) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the seconds that training and final evaluation take in the recipe ``ppfe-cifar10-s2``, and in FedAvg+FT.

    Ten rounds of each stage are measured, alternating with FedAvg; the recipe's other rounds are taken to last as long
    as the median of those after the fourth, when most of a cohort have begun the stage before.
    """
    rounds, few = parse_counts(str(defaults()["ppfe.stage-rounds"])), 10
    keys: dict[str, Value] = {"ppfe.stage-rounds": ",".join([str(few)] * len(rounds)), "rounds": few * len(rounds)}
    ours, theirs = [], []
    for _ in range(repeats):
        seconds, evaluation = _run_seconds({**read_recipe("ppfe-cifar10-s2:fedavg-ft"), "rounds": few}, workers)
        theirs.append((_whole(seconds, sum(rounds)), evaluation))
        seconds, evaluation = _run_seconds(keys, workers)
        stages = [seconds[first : first + few] for first in range(0, len(seconds), few)]
        ours.append((sum(map(_whole, stages, rounds)), evaluation))
    return tuple(np.median(ours, axis=0).tolist()), tuple(np.median(theirs, axis=0).tolist())


def _whole(seconds: Sequence[float], rounds: int) -> float:
    """Return what ``rounds`` rounds take, all but the last like the median of these after the fourth."""
    return (rounds - 1) * float(np.median(seconds[4:-1])) + seconds[-1]


def startup(workers: int) -> float:
    """Return the seconds from the command to the first round's result, on ``digits``."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        process = _start({"rounds": 1}, workers, Path(folder))
        while process.poll() is None:
            for status in Path(folder).glob("*/status.json"):
                if json.loads(status.read_text() or "{}").get("round", 0) >= 1:
                    seconds = time.monotonic() - start
                    _finish(process)
                    return seconds
            time.sleep(0.02)
        _finish(process)
        raise RuntimeError("the run ended without a round")


def memory(workers: int) -> tuple[float, float]:
    """Train 10,000 clients with a model of their own each; return the peak memory in GB, and the seconds of a round.

    Memory is the proportional set size of every process of the run, so that shared pages count once.
    """
    peak = 0.0
    keys: dict[str, Value] = {
        "method": "local", "dataset": "mnist", "partitioner": "iid", "num-clients": MEMORY_CLIENTS, "model": "mlp",
        "cohort-size": MEMORY_CLIENTS, "rounds": 2, "local-steps": 1, "evaluate-every": 0, "evaluate-clients": 100,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        process = _start(keys, workers, Path(folder))

        def watch() -> None:
            nonlocal peak
            while process.poll() is None:
                total = 0
                try:
                    for member in [root := psutil.Process(process.pid), *root.children(recursive=True)]:
                        total += member.memory_full_info().pss
                except psutil.Error:
                    continue
                peak = max(peak, total / 1e9)
                time.sleep(1)

        watcher = threading.Thread(target=watch)
        watcher.start()
        path = _finish(process)
        watcher.join()
        return peak, float(read_checkpoint(path).facts["seconds"][-1])


def evaluation_ratio(model_name: str, repeats: int = 5) -> float:
    """Return the time a worker takes to evaluate all clients, over the time of the forward passes alone."""
    settings, hyper = parse({**defaults(), **KEYS, "model": model_name})
    device = tune_process("cpu", one_thread=True)
    model = build(model_name, (3, 32, 32), 10, settings.seed)
    source = SimulatedClients(settings, device)
    host = Host(FedAvgClient, settings, hyper, model, source, "")
    asked = Request(list(source.clients()), "test", "sum", Work(1, "benchmark"))
    request = asked.pack(pack(get_arrays(model)))
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # messages ask for them
    tests = [source.data(client).test for client in source.clients()]
    whole, forward = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        host.answer(Message(request, 1, "evaluate"), own="")
        whole.append(time.perf_counter() - start)
        start = time.perf_counter()
        for examples in tests:
            evaluate(model, examples)
        forward.append(time.perf_counter() - start)
    assert len(tests) == CLIENTS
    return float(np.median(whole) / np.median(forward))
