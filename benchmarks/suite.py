"""Measurements of ``florilegium run``: rounds, recipes, start-up, memory with 10,000 clients, evaluation."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import Message

from benchmarks.memory import Memory
from benchmarks.task import CLIENTS, KEYS
from florilegium.apps.assembly.node_clients import SimulatedClients
from florilegium.apps.runs.experiment import read_recipe
from florilegium.apps.settings.configuration import defaults, parse
from florilegium.clients.core.training import evaluate
from florilegium.clients.core.wire import Request, Work, flat
from florilegium.clients.core.worker import tune_process
from florilegium.clients.fedavg import FedAvgClient
from florilegium.clients.node.host import Host
from florilegium.common.settings import Value, parse_counts
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.loading import task_of
from florilegium.strategies.exchange.flower_inside import identify
from florilegium.strategies.folder.run_folder import read_checkpoint

MEMORY_CLIENTS = 10_000


def _command(name: str, *words: str, workers: int, runs: Path, engine: str = "auto") -> list[str]:
    options = ["--workers", str(workers), "--runs-dir", str(runs), "--engine", engine]
    return [sys.executable, "-m", "florilegium", name, *words, *options]


def start_run(keys: dict[str, Value], workers: int, runs: Path, engine: str = "auto") -> subprocess.Popen[str]:
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    command = _command("run", *words, workers=workers, runs=runs, engine=engine)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish_run(process: subprocess.Popen[str]) -> Path:
    output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the run failed: {errors[-2000:]}")
    return Path(output.splitlines()[-1])


def run(keys: dict[str, Value], workers: int, runs: Path) -> Path:
    """Carry out a run in processes of its own and return its folder, a subfolder of ``runs``."""
    return finish_run(start_run(keys, workers, runs))


def seconds_per_round(model: str, rounds: int, workers: int, **more: Value) -> float:
    """Return the median seconds of a round of the common task with additional keys ``more``.

    The first four rounds are not counted: workers build their networks in the first, and the process that copies the
    log starts during the next.
    """
    with tempfile.TemporaryDirectory() as folder:
        # An evaluation follows the last round; it is limited to two clients.
        keys = {**KEYS, "model": model, "rounds": rounds + 4, "evaluate-clients": 2, **more}
        seconds = read_checkpoint(run(keys, workers, Path(folder))).facts["seconds"]
        return float(np.median(seconds[4:]))


def pefll_seconds(rounds: int, workers: int) -> float:
    """Return the median seconds of a round of the recipe ``pefll-cifar10-n100``, without the first four."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {**read_recipe("pefll-cifar10-n100"), "rounds": rounds + 4, "evaluate-every": 0, "evaluate-clients": 2}
        return float(np.median(read_checkpoint(run(keys, workers, Path(folder))).facts["seconds"][4:]))


def kmeans_seconds(recipe: str, workers: int) -> tuple[float, float]:
    """Return the seconds of a clustering recipe's training and of its evaluation, without start-up."""
    with tempfile.TemporaryDirectory() as folder:
        path = run({**read_recipe(recipe), "evaluate-every": 0}, workers, Path(folder))
        line = json.loads((path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        return float(line["seconds"]), float(line["evaluation_seconds"])


def mdm_seconds(workers: int) -> tuple[float, int]:
    """Return the total seconds of all rounds of the recipe ``mdm``, without start-up, and the number of rounds."""
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
    """Return the seconds of training and final evaluation of the recipe ``ppfe-cifar10-s2``, then those of FedAvg+FT.

    Ten rounds of each stage are measured, alternating with FedAvg. The recipe's other rounds are assumed to take the
    median of the rounds after the fourth, by when most clients of a cohort have already begun the stage.
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
    """Return the estimated seconds of ``rounds`` rounds from some measured ones.

    All rounds but the last are assumed to take the median of the measured rounds after the fourth, without the last.
    """
    return (rounds - 1) * float(np.median(seconds[4:-1])) + seconds[-1]


def startup(workers: int, engine: str, cache: str = "") -> float:
    """Return the seconds from the start of the command to the evaluation of the first round, on ``digits``.

    Nothing is cached unless ``cache`` names a folder, in which the data are after a first call.
    """
    keys: dict[str, Value] = {"rounds": 1, **({"cache-dir": cache} if cache else {})}
    return first_round(keys, workers, engine).seconds


class First(NamedTuple):
    """The seconds from a command to the evaluation of the first round, its own seconds, and peak memory in GB."""

    seconds: float
    round: float
    memory: float


def first_round(keys: dict[str, Value], workers: int, engine: str = "auto") -> First:
    """Measure a run until the first evaluation; nothing is in its cache, unless ``keys`` name one."""
    with tempfile.TemporaryDirectory() as folder:
        start, seconds = time.monotonic(), 0.0
        process = start_run({"cache-dir": f"{folder}/cache", **keys}, workers, Path(folder), engine)
        with Memory(process.pid) as memory:
            while process.poll() is None and not seconds:
                for status in Path(folder).glob("*/status.json"):
                    if json.loads(status.read_text() or "{}").get("evaluated", 0) >= 1:
                        seconds = time.monotonic() - start
                time.sleep(0.02)
            peak = memory.take()
            path = finish_run(process)
        if not seconds:
            raise RuntimeError("the run ended without a round")
        return First(seconds, float(read_checkpoint(path).facts["seconds"][0]), peak)


def startup_and_floor(workers: int, repeats: int = 7) -> tuple[float, float]:
    """Return the seconds from a command to the first evaluation, and those of importing PyTorch and of a round.

    The run's data are encoded already. Medians of ``repeats``, in turn.
    """
    ours, floors = [], []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(-1, repeats):
            first = first_round({"rounds": 1, "cache-dir": f"{folder}/cache"}, workers)
            begun = time.monotonic()
            subprocess.run([sys.executable, "-c", "import torch"], check=True)
            floor = time.monotonic() - begun + first.round
            if repeat >= 0:  # the first encodes the data
                ours.append(first.seconds)
                floors.append(floor)
    return float(np.median(ours)), float(np.median(floors))


def command_seconds(name: str, *words: str, workers: int) -> float:
    """Return the seconds that a command of the command line takes, with the default configuration."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        subprocess.run(_command(name, *words, workers=workers, runs=Path(folder)), check=True, capture_output=True)
        return time.monotonic() - start


def light_seconds(workers: int) -> float:
    """Return the median seconds of a round of FedAvg in which 1,000 of 10,000 clients train for one step each."""
    keys: dict[str, Value] = {
        "dataset": "mnist", "partitioner": "iid", "num-clients": MEMORY_CLIENTS, "model": "linear",
        "cohort-size": MEMORY_CLIENTS // 10, "rounds": 14, "local-steps": 1, "evaluate-every": 0, "evaluate-clients": 2,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        return float(np.median(read_checkpoint(run(keys, workers, Path(folder))).facts["seconds"][4:]))


def memory(workers: int) -> tuple[float, float]:
    """Train 10,000 clients that each keep a model; return the peak memory in GB and the seconds of a round."""
    return peak({
        "method": "local", "dataset": "mnist", "partitioner": "iid", "num-clients": MEMORY_CLIENTS, "model": "mlp",
        "cohort-size": MEMORY_CLIENTS, "rounds": 2, "local-steps": 1, "evaluate-every": 0, "evaluate-clients": 100,
    }, workers)  # fmt: skip


def peak(keys: dict[str, Value], workers: int) -> tuple[float, float]:
    """Carry out a run; return its peak memory in GB and the seconds of its last round."""
    with tempfile.TemporaryDirectory() as folder:
        process = start_run(keys, workers, Path(folder))
        with Memory(process.pid) as memory:
            path = finish_run(process)
        return memory.take(), float(read_checkpoint(path).facts["seconds"][-1])


def evaluation_ratio(model_name: str, repeats: int = 5) -> float:
    """Return the time of a worker's evaluation of all clients ÷ the time of the forward passes alone."""
    settings, hyper = parse({**defaults(), **KEYS, "model": model_name})
    device = tune_process("cpu", one_thread=True)
    model = build(model_name, (3, 32, 32), 10, settings.seed)
    source = SimulatedClients(settings, device)
    host = Host(FedAvgClient, settings, hyper, model, source, "")
    asked = Request(list(source.clients()), "test", "sum", Work(1, "benchmark"))
    request = asked.pack(flat(get_arrays(model)))
    identify()
    tests = [source.data(client).test for client in source.clients()]
    whole, forward, task = [], [], task_of(settings)
    for _ in range(repeats):
        start = time.perf_counter()
        host.answer(Message(request, 1, "evaluate"), own="")
        whole.append(time.perf_counter() - start)
        start = time.perf_counter()
        for examples in tests:
            evaluate(model, examples, task)
        forward.append(time.perf_counter() - start)
    assert len(tests) == CLIENTS
    return float(np.median(whole) / np.median(forward))
