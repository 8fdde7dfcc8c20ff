"""Real simulations: ``florilegium run`` and plain ``flwr run``, their results, exit status and leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from apps.settings import ROOT
from strategies.run_folder import read_checkpoint, read_metrics
from tests import processes
from tests.grid import run_app
from tests.support import CACHE, config

pytestmark = pytest.mark.simulation

KEYS = {"num-clients": 6, "rounds": 3, "evaluate-every": 1, "cache-dir": str(CACHE)}


def _command(runs: Path, keys: dict[str, object]) -> list[str]:
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "apps.cli", "run", "--runs-dir", str(runs), "--workers", "2", *words]


def _leftovers(marker: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if marker in " ".join(process.environ().values()):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_a_simulation_computes_what_the_same_code_computes_in_one_process(tmp_path: Path) -> None:
    environment = os.environ | {"FLORILEGIUM_TEST_MARK": str(tmp_path)}
    done = subprocess.run(_command(tmp_path, KEYS), capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1])
    assert "accuracy" in done.stderr
    run_app(config(**KEYS, **{"runs-dir": str(tmp_path), "run-name": "twin"}), nodes=2)
    for name, array in read_checkpoint(path).arrays.items():
        assert (array == read_checkpoint(tmp_path / "twin").arrays[name]).all()
    for mine, twin in zip(read_metrics(path), read_metrics(tmp_path / "twin"), strict=True):
        assert {k: v for k, v in mine.items() if "seconds" not in k} == {
            k: v for k, v in twin.items() if "seconds" not in k
        }
    assert not _leftovers(str(tmp_path))


def test_a_failed_run_returns_its_reason(tmp_path: Path) -> None:
    keys = {**KEYS, "dataset": "cifar10", "data-dir": str(tmp_path)}  # there is no such folder below
    done = subprocess.run(_command(tmp_path, keys), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "data-dir: there is no" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_worker_ends_the_run_and_the_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    keys = {**KEYS, "rounds": 400, "run-name": "killed", "num-clients": 20}
    process = subprocess.Popen(_command(tmp_path, keys), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 180
        while not list((tmp_path / "killed" / "checkpoint").glob("round-*")):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        workers = [
            p for p in psutil.Process(process.pid).children(recursive=True) if "ClientAppActor" in " ".join(p.cmdline())
        ]
        assert workers
        workers[0].send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    finally:
        processes.kill_family(process.pid)
    assert process.returncode == 1
    assert "worker process" in errors
    reached = read_checkpoint(tmp_path / "killed").round
    again = {**keys, "rounds": reached + 1, "resume": "killed"}
    del again["run-name"]
    done = subprocess.run(_command(tmp_path, again), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_checkpoint(tmp_path / "killed").round == reached + 1


def test_plain_flwr_run_does_the_same_job(tmp_path: Path) -> None:
    home, port = tmp_path / "home", str(processes.free_port())
    home.mkdir()
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in KEYS.items())
    (tmp_path / "run.toml").write_text(keys + f'run-name = "plain"\nruns-dir = "{tmp_path}"\n')
    environment = processes.environment(home) | {
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_LOCAL_CONTROL_API_PORT": str(processes.free_port()),
    }
    command = [str(processes.BIN / "flwr"), "run", str(ROOT), "--stream", "--run-config", str(tmp_path / "run.toml")]
    try:
        done = subprocess.run(
            command, cwd=home, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        summary = tmp_path / "plain" / "summary.json"
        assert summary.exists(), done.stdout + done.stderr
        assert json.loads(summary.read_text())["rounds"] == 3
    finally:  # the SuperLink that flwr run leaves behind
        for process in psutil.process_iter():
            try:
                if "flower-superlink" in " ".join(process.cmdline()) and port in process.cmdline():
                    processes.kill_family(process.pid)
            except psutil.Error:
                continue


def test_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    environment = os.environ | {"FLORILEGIUM_TEST_MARK": str(tmp_path)}
    process = subprocess.Popen(
        _command(tmp_path, {**KEYS, "rounds": 400}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        deadline = time.monotonic() + 180
        while not list(tmp_path.glob("*/checkpoint/round-*")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    finally:
        processes.kill_family(process.pid)
    assert process.returncode not in (0, None)
    assert read_checkpoint(next(iter(tmp_path.glob("*/checkpoint"))).parent).round >= 1
    assert not _leftovers(str(tmp_path))
