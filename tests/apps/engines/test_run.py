"""Real simulations on each engine, and plain ``flwr run``: their results, exit status and leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests import processes
from tests.grid import run_app
from tests.processes import ROOT
from tests.runs import timeless
from tests.support import CACHE, config

pytestmark = pytest.mark.simulation

KEYS = {"num-clients": 6, "rounds": 3, "evaluate-every": 1, "cache-dir": str(CACHE)}


ENGINES = pytest.mark.parametrize("engine", ["process", pytest.param("ray", marks=pytest.mark.long)])


def _command(runs: Path, keys: dict[str, object], engine: str = "auto") -> list[str]:
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    options = ["--runs-dir", str(runs), "--workers", "2", "--engine", engine]
    return [sys.executable, "-m", "florilegium", "run", *options, *words]


def _workers(process: subprocess.Popen[str], engine: str) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return children if engine == "process" else [p for p in children if "ClientAppActor" in " ".join(p.cmdline())]


def _leftovers(marker: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if marker in " ".join(process.environ().values()):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("engine", ["process", "ray"])
def test_a_simulation_computes_what_the_same_code_computes_in_one_process(engine: str, tmp_path: Path) -> None:
    environment = os.environ | {"FLORILEGIUM_TEST_MARK": str(tmp_path)}
    done = subprocess.run(
        _command(tmp_path, KEYS, engine), capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1])
    assert "accuracy" in done.stderr
    run_app(config(**KEYS, **{"runs-dir": str(tmp_path), "run-name": "twin"}), nodes=2)
    for name, array in read_checkpoint(path).arrays.items():
        assert (array == read_checkpoint(tmp_path / "twin").arrays[name]).all()
    assert timeless(path) == timeless(tmp_path / "twin")
    assert not _leftovers(str(tmp_path))


def test_a_failed_run_returns_its_reason(tmp_path: Path) -> None:
    keys = {**KEYS, "dataset": "cifar10", "data-dir": str(tmp_path)}  # there is no such folder below
    done = subprocess.run(_command(tmp_path, keys), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "data-dir: there is no" in done.stderr
    assert "Traceback" not in done.stderr


@ENGINES
def test_a_killed_worker_ends_the_run_and_the_run_goes_on_from_its_checkpoint(engine: str, tmp_path: Path) -> None:
    """With the engine ``process`` the second time, since a worker is started again once."""
    keys = {**KEYS, "rounds": 400, "run-name": "killed", "num-clients": 20}
    command = _command(tmp_path, keys, engine)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + processes.DEADLINE
        while not list((tmp_path / "killed" / "checkpoint").glob("round-*")):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        workers = _workers(process, engine)
        assert len(workers) == 2
        workers[0].send_signal(signal.SIGKILL)
        if engine == "process":
            log = tmp_path / "killed" / "run.log"
            while "it is started again" not in log.read_text() or len(present := _workers(process, engine)) < 2:
                assert time.monotonic() < deadline
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.1)
            next(worker for worker in present if worker not in workers).send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    finally:
        processes.kill_family(process.pid)
    assert process.returncode == 1
    assert "worker process" in errors
    assert engine == "ray" or "was killed by SIGKILL, though it ran one client at a time" in errors
    reached = read_checkpoint(tmp_path / "killed").round
    again = {**keys, "rounds": reached + 1, "resume": "killed"}
    del again["run-name"]
    done = subprocess.run(_command(tmp_path, again, engine), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_checkpoint(tmp_path / "killed").round == reached + 1


@pytest.mark.long
def test_plain_flwr_run_does_the_same_job(tmp_path: Path) -> None:
    """``flwr run`` waits 15 s for the local SuperLink it starts; here it finds one, which had time."""
    home, port, control = tmp_path / "home", processes.free_port(), processes.free_port()
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in KEYS.items())
    (tmp_path / "run.toml").write_text(keys + f'run-name = "plain"\nruns-dir = "{tmp_path}"\n')
    environment = processes.environment(home) | {
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port), "FLWR_LOCAL_CONTROL_API_PORT": str(control),
    }  # fmt: skip
    superlink = [
        "flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1",
        "--port", str(port), "--control-api-address", f"127.0.0.1:{control}",
    ]  # fmt: skip
    command = [str(processes.BIN / "flwr"), "run", str(ROOT), "--stream", "--run-config", str(tmp_path / "run.toml")]
    with processes.process(superlink, home, log := tmp_path / "superlink.log") as started:
        processes.wait_for_port(port, started, log)
        done = subprocess.run(
            command, cwd=home, env=environment, capture_output=True, text=True, timeout=processes.DEADLINE, check=False
        )
    summary = tmp_path / "plain" / "summary.json"
    assert summary.exists(), done.stdout + done.stderr
    assert json.loads(summary.read_text())["rounds"] == 3


ENDS = [
    pytest.param("process", "SIGINT", "stopped after round"),
    pytest.param("process", "SIGKILL", ""),
    pytest.param("process", "SIGTERM", "(SIGTERM)", marks=pytest.mark.long),
    pytest.param("process", "SIGHUP", "(SIGHUP)", marks=pytest.mark.long),
    pytest.param("ray", "SIGINT", "", marks=pytest.mark.long),
    pytest.param("ray", "SIGTERM", "", marks=pytest.mark.long),
    pytest.param("ray", "SIGKILL", "", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("engine", "name", "said"), ENDS)
def test_however_a_run_ends_nothing_stays_behind(engine: str, name: str, said: str, tmp_path: Path) -> None:
    environment = os.environ | {"FLORILEGIUM_TEST_MARK": str(tmp_path)}
    process = subprocess.Popen(
        _command(tmp_path, {**KEYS, "rounds": 400, "run-name": "ended"}, engine), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env=environment, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which processes in the background ignore
    )  # fmt: skip
    run = tmp_path / "ended"
    try:
        deadline = time.monotonic() + processes.DEADLINE
        while not list(run.glob("checkpoint/round-*")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
        assert len(_leftovers(str(tmp_path))) >= 3
        family = psutil.Process(process.pid).children(recursive=True)  # Ray's agents have no environment
        process.send_signal(getattr(signal, name))
        _, errors = process.communicate(timeout=60)
        while _leftovers(str(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not _leftovers(str(tmp_path))
        assert not psutil.wait_procs(family, timeout=10)[1]
    finally:
        processes.kill_family(process.pid)
    assert read_checkpoint(run).round >= 1
    assert read_status(run)["state"] == "stopped"
    assert process.returncode == (-signal.SIGKILL if name == "SIGKILL" else 130)
    if name != "SIGKILL":
        assert said in errors
        assert f"go on with `florilegium resume ended --runs-dir {tmp_path}" in errors


@pytest.mark.long
@pytest.mark.parametrize("engine", ["process", "ray"])
def test_twenty_interruptions_change_nothing(engine: str, tmp_path: Path) -> None:
    """A run that is ended at some moment, however, and goes on, is bit for bit the run that was left alone."""
    keys: dict[str, object] = {**KEYS, "method": "fedper", "rounds": 8}
    start = time.monotonic()
    subprocess.run(_command(tmp_path, {**keys, "run-name": "whole"}, engine), check=True, capture_output=True)
    seconds = time.monotonic() - start
    whole, moments = read_checkpoint(tmp_path / "whole"), np.random.default_rng(7).uniform(0, seconds, 20)
    for number, moment in enumerate(moments):
        name, way = f"broken-{number}", (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[number % 3]
        process = subprocess.Popen(
            _command(tmp_path, {**keys, "run-name": name}, engine), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        time.sleep(moment)
        process.send_signal(way)
        process.wait(timeout=120)
        begun = (tmp_path / name / "config.toml").exists()
        again = {**keys, "resume": name} if begun else {**keys, "run-name": name}
        done = subprocess.run(_command(tmp_path, again, engine), capture_output=True, text=True, check=False)
        assert done.returncode == 0, (way, moment, done.stderr)
        for part in ("arrays", "state"):
            for array, value in getattr(whole, part).items():
                assert np.array_equal(getattr(read_checkpoint(tmp_path / name), part)[array], value), (way, moment)
        assert (tmp_path / name / "clients.csv").read_bytes() == (tmp_path / "whole" / "clients.csv").read_bytes()
