"""Runs that lack open files, space, a port or a home folder: they work, or say what is missing and go on later."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import florilegium as fl
from florilegium.strategies.folder.claim import read_status
from tests.support import CACHE

KEYS = {"rounds": "3", "evaluate-every": "1", "num-clients": "4", "method": "fedper", "cache-dir": str(CACHE)}


def _florilegium(
    runs: Path, limits: Mapping[int, int], variables: Mapping[str, str] | None = None, **keys: str
) -> subprocess.CompletedProcess[str]:
    """Run ``florilegium run`` with two workers under limits of the operating system."""
    words = [word for key, value in {**KEYS, **keys}.items() for word in ("--set", f"{key}={value}")]

    def limit() -> None:
        for what, most in limits.items():
            resource.setrlimit(what, (most, most))

    return subprocess.run(
        [sys.executable, "-m", "florilegium", "run", "--workers", "2", "--runs-dir", str(runs), *words],
        env={**os.environ, **(variables or {})}, preexec_fn=limit, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_sixty_four_open_files_are_enough(tmp_path: Path) -> None:
    done = _florilegium(tmp_path, {resource.RLIMIT_NOFILE: 64}, **{"run-name": "few"})
    assert done.returncode == 0, done.stderr
    assert read_status(tmp_path / "few")["state"] == "completed"


@pytest.mark.long
def test_a_full_disk_ends_a_run_that_goes_on_later(tmp_path: Path) -> None:
    """No file may become larger than 8 kB, so that the first checkpoint cannot be written."""
    done = _florilegium(tmp_path, {resource.RLIMIT_FSIZE: 8 << 10}, **{"run-name": "full"})
    assert done.returncode == 1
    assert "Free some space" in done.stderr
    assert "Traceback" not in done.stderr
    assert read_status(tmp_path / "full")["state"] in ("failed", "stopped")
    again = _florilegium(tmp_path, {}, resume="full")
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "full" / "status.json").read_text())["state"] == "completed"


@pytest.mark.long
def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = _florilegium(tmp_path, {}, {"HOME": "/dev/null"}, **{"cache-dir": "~/cache"})
    assert done.returncode == 2
    assert "error: cache-dir: /dev/null/cache" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(fl.ConfigurationError, match=f"metrics-port: {port} cannot be used on this machine"):
            fl.run(rounds=1, num_clients=4, runs_dir=tmp_path, cache_dir=str(CACHE), progress=False, metrics_port=port)
    assert fl.runs(tmp_path).empty  # it is said before the run begins
