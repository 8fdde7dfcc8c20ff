"""What ``florilegium ui`` needs to list many runs: when it has just been started, and when it knows them."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from tests.ui.made import line, made

RUNS, CLIENTS, ROUNDS, EVERY, REPEATS = 200, 100, 200, 5, 9


def measure() -> tuple[float, float, float]:
    """Return the server's processor seconds for its first list, the median of later ones, and the first one's time."""
    lines = [line(n, n / ROUNDS if n % EVERY == 0 else None) for n in range(1, ROUNDS + 1)]
    clients = {f"client {number}": number / CLIENTS for number in range(CLIENTS)}
    with TemporaryDirectory() as folder:
        for number in range(RUNS):
            made(Path(folder), f"run-{number}", lines, rounds=ROUNDS, clients=clients, seed=number)
        command = [sys.executable, "-m", "florilegium", "ui", "--runs-dir", folder, "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().partition("http://127.0.0.1:")[2].partition("/")[0])
            (first, waited), *later = [_seconds(port, psutil.Process(server.pid)) for _ in range(1 + REPEATS)]
        finally:
            server.kill()
            server.wait()
    return first, median(seconds for seconds, _ in later), waited


def _seconds(port: int, server: psutil.Process) -> tuple[float, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began, worked = time.perf_counter(), sum(server.cpu_times()[:2])
    connection.request("GET", "/")
    shown = connection.getresponse().read().count(b'href="/runs/')
    seconds = time.perf_counter() - began
    connection.close()
    assert shown == RUNS
    return sum(server.cpu_times()[:2]) - worked, seconds
