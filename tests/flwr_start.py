"""``python -m tests.flwr_start``: how long ``flwr run`` takes until a round has ended, in a checkout and a written app.

Flower uses the active environment. Each pair of runs has a home of its own: the first one starts the SuperLink, which
the second one finds. Besides the seconds that passed, a line has the seconds of processor time of all processes, which
depend less on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests import processes

KEYS = "rounds=2 num-clients=10"


class Home:
    """A folder of runs with a SuperLink of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        ports = ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")
        self._folder = folder
        self._environment = processes.environment(folder) | {name: str(processes.free_port()) for name in ports}
        self._used: dict[psutil.Process, float] = {}  # seconds of processor time, of ended processes too

    def measure(self, app: Path, name: str) -> tuple[float, float]:
        """Run an app to its end; return the seconds until its first round ended, and those of processor time."""
        self._look()
        before, start, log = sum(self._used.values()), time.monotonic(), self._folder / f"{name}.log"
        config = f'{KEYS} runs-dir="{self._folder}" run-name="{name}"'
        with log.open("wb") as file:
            started = subprocess.Popen(
                [str(processes.BIN / "flwr"), "run", str(app), "--stream", "--run-config", config],
                cwd=self._folder, env=self._environment, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        metrics = self._folder / name / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size):
            if started.poll() is not None or time.monotonic() - start > processes.DEADLINE:
                raise SystemExit(f"no round has ended: {log.read_text()[-3000:]}")
            self._look()
            time.sleep(0.2)
        found = time.monotonic() - start, sum(self._used.values()) - before
        started.wait(processes.DEADLINE)
        return found

    def end(self) -> None:
        """End all processes."""
        for one in self._look():
            one.kill()

    def _look(self) -> list[psutil.Process]:
        """Return all processes, after having noted the processor time that each has used."""
        found = []
        for one in psutil.process_iter():
            try:
                if one.environ().get("FLWR_HOME") == str(self._folder):
                    times = one.cpu_times()
                    self._used[one] = times.user + times.system
                    found.append(one)
            except psutil.Error:  # it has ended, or belongs to somebody else
                continue
        return found


def main() -> None:
    """Measure both apps, and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.flwr_start")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs of each app")
    repeats = parser.parse_args().repeats
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with TemporaryDirectory(prefix="flwr-start-") as folder:
        written = Path(folder) / "app"
        subprocess.run([sys.executable, "-m", "florilegium", "app", written], check=True, stdout=subprocess.DEVNULL)
        for what, app in (("checkout", processes.ROOT), ("written app", written)):
            for repeat in range(repeats):
                home = Home(Path(folder) / f"{what}-{repeat}".replace(" ", "-"))
                try:
                    for name in ("starts a SuperLink", "SuperLink there"):
                        seconds, used = home.measure(app, name.replace(" ", "-"))
                        print(f"{what}\t{name}\t{seconds:.1f} s\t{used:.1f} s of processor time", flush=True)
                finally:
                    home.end()


if __name__ == "__main__":
    main()
