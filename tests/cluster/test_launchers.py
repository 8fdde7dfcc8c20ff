"""What is given to schedulers, and how a job of theirs begins, stops in time and goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from florilegium.apps.cli.options import stoppable
from florilegium.cluster.launchers import Plan, kubernetes, slurm
from florilegium.cluster.preemption import preemptible
from florilegium.common.errors import ConfigurationError, PreemptedError, StoppedError
from tests import processes

PLAN = Plan("night", 3, 16, 32, 0, ["own recipe.toml", "--set", "rounds=5"])
COMMAND = "florilegium cluster job night 'own recipe.toml' --set rounds=5 --workers 48 --grace 25"


@pytest.mark.parametrize("gpus", [0, 2])
def test_slurm(gpus: int) -> None:
    script = slurm(Plan("night", 3, 16, 32, gpus, PLAN.job), "08:00:00")
    done = subprocess.run(["bash", "-n"], input=script, text=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    lines = script.splitlines()
    for line in ("--nodes=3", "--cpus-per-task=16", "--mem=32G", "--time=08:00:00", "--requeue", "--signal=B:TERM@30"):
        assert f"#SBATCH {line}" in lines
    assert ("#SBATCH --gpus-per-node=2" in lines) == bool(gpus)
    assert f"{COMMAND} &" in lines
    assert f'if [ "$status" -eq {PreemptedError.exit_status} ]; then' in lines


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (1, False), (75, True)])
def test_slurm_queues_a_preempted_job_again(status: int, requeued: bool, tmp_path: Path) -> None:
    """The script itself, with programs in place of Slurm's, Ray's and the suite's; it passes SIGTERM on."""
    programs = {
        "scontrol": 'echo "$@" >> scontrol.log; [ "$1" != show ] || echo first',
        "srun": "sleep 100", "ray": "true",
        "florilegium": f"trap 'exit {status}' TERM; touch begun; while true; do sleep 0.05; done",
    }  # fmt: skip
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "script").write_text(slurm(Plan("night", 1, 2, 1, 0, []), "1:00"))
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "first",
    }  # fmt: skip
    started = subprocess.Popen(["bash", "script"], cwd=tmp_path, env=environment)
    try:
        deadline = time.monotonic() + processes.DEADLINE
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        started.terminate()
        assert started.wait(processes.DEADLINE) == status
    finally:
        processes.kill_family(started.pid)
    assert ("requeue 7" in (tmp_path / "scontrol.log").read_text()) == requeued


def test_kubernetes() -> None:
    cluster, job = (json.loads(one) for one in kubernetes(PLAN, "site/image", "shared").split("---\n")[1:])
    assert (cluster["kind"], job["kind"]) == ("RayCluster", "Job")
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    assert workers["replicas"] == 2  # the head is the third machine
    pods = [workers["template"], cluster["spec"]["headGroupSpec"]["template"], job["spec"]["template"]]
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        assert container["volumeMounts"][0]["mountPath"] == "/shared"
        assert pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "shared"
        assert pod["spec"]["terminationGracePeriodSeconds"] == 30
    (own,) = job["spec"]["template"]["spec"]["containers"]
    assert own["command"][2].splitlines()[-1] == f"exec {COMMAND}"
    assert {"name": "RAY_ADDRESS", "value": "night-head-svc:6379"} in own["env"]
    ignored = job["spec"]["podFailurePolicy"]["rules"][0]
    assert ignored == {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [PreemptedError.exit_status]}}


@pytest.mark.parametrize("name", ["Night", "a_b", "1a", "a;b"])
def test_names_that_no_scheduler_takes(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--name: '{name}' cannot name a job"):
        Plan(name, 1, 1, 1, 0, [])


class TestPreemption:
    def test_a_run_that_ends_with_its_round(self) -> None:
        with pytest.raises(PreemptedError), preemptible(60.0), stoppable():
            signal.raise_signal(signal.SIGTERM)

    def test_a_round_that_takes_too_long(self) -> None:
        interrupts: list[int] = []

        def end_later(number: int, frame: Any) -> None:
            interrupts.append(number)
            if len(interrupts) == 2:
                raise KeyboardInterrupt

        def take_long() -> None:
            signal.signal(signal.SIGINT, end_later)
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # which is no second Ctrl-C
            assert len(interrupts) == 1
            time.sleep(60)

        with pytest.raises(PreemptedError), preemptible(0.05), stoppable():
            take_long()
        assert len(interrupts) == 2

    def test_ctrl_c_is_what_it_was(self) -> None:
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with pytest.raises(StoppedError) as caught, preemptible(60.0), stoppable():
            signal.raise_signal(signal.SIGINT)
        assert type(caught.value) is StoppedError
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.simulation
def test_a_job_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    keys = ("num-clients=4", "rounds=60", "evaluate-every=0", "model=linear", f"cache-dir={tmp_path}/cache")
    command = [sys.executable, "-m", "florilegium", "cluster", "job", "night", "--workers", "1", "--runs-dir",
               str(tmp_path), *(word for key in keys for word in ("--set", key))]  # fmt: skip
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + processes.DEADLINE
        while not re.search('"round": [1-9]', _read(tmp_path / "night" / "status.json")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        started.terminate()
        _, errors = started.communicate(timeout=processes.DEADLINE)
    finally:
        processes.kill_family(started.pid)
    assert started.returncode == 75, errors
    assert list((tmp_path / "night" / "checkpoint").iterdir())
    for _ in range(2):  # the second time there is nothing left to do
        subprocess.run(command, check=True, capture_output=True)
        assert json.loads(_read(tmp_path / "night" / "status.json"))["state"] == "completed"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
