"""Starting a simulation the careful way, and watching it to its end.

``flwr run`` leaves a SuperLink behind that keeps the folder and environment of the command that first started it, lets
workers import whatever lies in that folder, gives each client two CPUs, and returns 0 when the run failed. So every
command here gets a SuperLink of its own: in a new empty folder, with its own Flower home, port and Ray folder, one CPU
per worker, no installation of packages at run time. It ends with the command, and the run's outcome is the exit status.

Where ``RAY_ADDRESS`` names a Ray cluster, workers are placed there instead; it is left as it was.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import tomli_w
import typer

from florilegium.apps.app_folder import checkout, write_app
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.common.toml import nested

_POLL = 0.25
_FIRST_ROUND = 60.0
"""Seconds after which the log is followed in any case."""
_LOOK = 2.0
"""Seconds between two looks at whether the simulation's processes are alive."""
_GRACE = 15.0
"""Seconds without a simulation process after which a run that had one is given up."""
_FIRST_GRACE = 60.0
"""The same before there is one: on a busy machine Flower's processes take long to start one another."""

Progress = Callable[[Mapping[str, Any]], None]


class Simulation:
    """A Flower simulation for one run after the other.

    A context manager: entering starts its SuperLink and Ray, leaving ends every process.

    Args:
        workers: number of worker processes, one CPU each; of the whole cluster, where there is one.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._cluster = os.environ.get("RAY_ADDRESS", "")
        # Ray puts sockets below its folder, and their paths must stay short.
        self._home = Path(tempfile.mkdtemp(prefix="flor-"))
        self._bin = Path(sys.executable).parent
        self._port = _free_port()
        self._token = secrets.token_hex(32)
        self._ray_port = _free_port()
        self._processes: list[subprocess.Popen[Any]] = []
        self._ray_head: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Simulation:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        config = {"superlink": {"default": "here", "here": {"address": f"127.0.0.1:{self._port}", "insecure": True}}}
        (self._home / "flwr").mkdir()
        (self._home / "flwr" / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
        with (self._home / "superlink.log").open("wb") as log:
            self._superlink = self._popen(
                [
                    self._program("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess",
                    "--host", "127.0.0.1", "--port", str(self._port),
                    "--control-api-address", f"127.0.0.1:{_free_port()}", "--disable-runtime-dependency-installation",
                ],
                stdout=log,
            )  # fmt: skip
        if not self._cluster:
            self._start_ray()

    def _start_ray(self) -> None:
        """Start Ray: Flower would do so only once the run is submitted. It joins the cluster that RAY_ADDRESS names."""
        command = [
            self._program("ray"), "start", "--head", "--node-ip-address", "127.0.0.1", "--port", str(self._ray_port),
            "--num-cpus", str(self._workers), "--temp-dir", str(self._home), "--include-dashboard=false",
            "--no-monitor", "--include-log-monitor", "false", "--disable-usage-stats",
            "--ray-client-server-port", str(_free_port()), "--block",
        ]  # fmt: skip
        with (self._home / "ray.log").open("wb") as log:
            self._ray_head = self._popen(command, stdout=log)

    def __exit__(self, *exception: object) -> None:
        self._end_processes()
        shutil.rmtree(self._home, ignore_errors=True)

    def run(
        self,
        overrides: Mapping[str, Value],
        device: str,
        run_path: Path,
        limit: float,
        progress: Progress,
    ) -> None:
        """Run one experiment and wait for it.

        Args:
            overrides: the run configuration, where it differs from the defaults.
            device: the key ``device``: whether workers need a GPU.
            run_path: the folder the run will write to.
            limit: seconds within which the SuperLink must have started, and then the run.
            progress: called with the contents of the run's ``status.json`` whenever they change.

        Raises:
            RunError: if the run failed, with the reason.
        """
        try:
            run_path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"runs-dir: {run_path} cannot be made ({error.strerror}); name another folder") from error
        before = _identity(run_path / "status.json")  # of the attempt that is resumed
        for process in self._processes:
            process.poll()  # those that followed the logs of earlier runs are dead, and not buried before this
        # `flwr run` in this process, and imported while the SuperLink starts: another process would take three
        # seconds more.
        from flwr.cli.app import app as flwr

        self._wait_for_superlink(limit)
        run_id = self._submit(flwr, overrides, device, limit)
        self._watch(run_id, run_path, before, limit, progress)

    # -------------------------------------------------------------------------------------- starting

    def _program(self, name: str) -> str:
        return str(self._bin / name)

    def _environment(self) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self._home / "flwr"),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        if self._cluster:
            return environment
        return environment | {
            "RAY_ADDRESS": f"127.0.0.1:{self._ray_port}",
            # Ray listens on every interface; without the token nobody can hand it work.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_TMPDIR": str(self._home),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # Ray's 15 would leave workers what other programs leave
            "RAY_prestart_worker_first_driver": "0",  # idle workers that no actor would take over
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }

    def _popen(self, command: list[str], stdout: Any = subprocess.DEVNULL) -> subprocess.Popen[Any]:
        folder = self._home / "empty"
        folder.mkdir(exist_ok=True)
        process = subprocess.Popen(
            command, cwd=folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=stdout,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def _wait_for_superlink(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and self._superlink.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RunError(
            f"Flower's SuperLink ended, or did not start within {limit:g} s (key start-timeout). Its last words: "
            f"{_tail(self._home / 'superlink.log')}"
        )

    def _app(self) -> Path:
        """Return the folder of the Flower app: the checkout, or one laid out for this simulation."""
        if root := checkout():
            return root
        laid_out = self._home / "app"
        return laid_out if laid_out.exists() else write_app(laid_out)

    def _submit(self, flwr: typer.Typer, overrides: Mapping[str, Value], device: str, limit: float) -> str:
        run_config = self._home / "run.toml"
        run_config.write_text(tomli_w.dumps(nested(overrides)), encoding="utf-8")
        federation = {
            # One message per worker and exchange: each costs 20 ms or more, and the strategy has balanced them.
            "num-supernodes": self._workers,
            "client-resources-num-cpus": 1,
            "init-args-logging-level": '"ERROR"',
        }
        if device.startswith("cuda"):
            federation["client-resources-num-gpus"] = f"{0.99 / self._workers:.4f}"
        arguments = [
            "run", str(self._app()), "here", "--run-config", str(run_config),
            "--federation-config", " ".join(f"{key}={value}" for key, value in federation.items()),
        ]  # fmt: skip
        with _environment(self._environment()), contextlib.redirect_stdout(io.StringIO()) as output:
            watchdog = threading.Timer(limit, self._superlink.kill)  # a call that waits for it then fails
            watchdog.start()
            try:
                flwr(arguments, standalone_mode=False)
                said = ""
            except Exception as error:  # click and gRPC have their own
                said = f" {error}"
            finally:
                watchdog.cancel()
        answer = re.search(r"started run (\d+)", output.getvalue())
        if answer is None:
            raise RunError(f"`flwr run` refused the run: {(output.getvalue() + said).strip()[-2000:]}")
        return answer[1]

    # -------------------------------------------------------------------------------------- watching

    def _watch(self, run_id: str, run_path: Path, before: int, limit: float, progress: Progress) -> None:
        """Wait until the run says that it is done, or something says that it never will be."""
        start = time.monotonic()
        given_up = start + _FIRST_GRACE
        log = run_path / "run.log"
        shown: dict[str, Any] = {}
        following, next_look, first_round = False, start, -1
        while True:
            status = _read_status(run_path / "status.json", before)
            first_round = status.get("round", 0) if first_round < 0 and status else first_round
            if status and status != shown:
                progress(status)
                shown = status
            if status.get("state") == "completed":
                return
            if status.get("state") == "failed":
                if not following:
                    self._fetch_log(run_id, log)
                raise RunError(str(status.get("error")))
            now = time.monotonic()
            # `flwr log` takes seconds to start, which the run itself needs until its first round is done.
            advanced = status.get("round", 0) > max(0, first_round) or now - start > _FIRST_ROUND
            if advanced and not following:
                following = True
                with log.open("ab") as output:
                    self._popen([self._program("flwr"), "log", run_id, "here", "--stream"], stdout=output)
            if now >= next_look:  # a look at all processes costs some milliseconds
                next_look = now + _LOOK
                given_up = now + _GRACE if self._simulation_alive() else given_up
            if self._ray_head is not None and self._ray_head.poll() is not None:
                raise RunError(f"Ray did not start, or died. Its last words: {_tail(self._home / 'ray.log')}")
            over = self._superlink.poll() is not None or now > given_up
            late = not status and now - start > limit
            if (over or late) and not following:
                self._fetch_log(run_id, log)
            # The last status may have been written between the two looks.
            if over and _read_status(run_path / "status.json", before) == status:
                raise RunError(f"the simulation's processes ended before the run did. {log} ends with:\n{_tail(log)}")
            if late:
                raise RunError(
                    f"the run did not start within {limit:g} s (key start-timeout). {log} ends with:\n{_tail(log)}"
                )
            time.sleep(_POLL)

    def _fetch_log(self, run_id: str, log: Path) -> None:
        """Write all that Flower has said so far to ``log``, where there is a SuperLink left to ask."""
        if self._superlink.poll() is not None:
            return
        command = [self._program("flwr"), "log", run_id, "here", "--show"]
        with log.open("ab") as output, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, cwd=self._home / "empty", env=self._environment(), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, timeout=_GRACE, check=False,
            )  # fmt: skip

    def _simulation_alive(self) -> bool:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._superlink.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):  # a child that has just ended
                    if "flwr-simulation" in " ".join(child.cmdline()):
                        return True
        return False

    def _end_processes(self) -> None:
        """End the SuperLink, the simulation, Ray, and whatever else they started."""
        family: list[psutil.Process] = []
        for process in self._processes:
            try:
                parent = psutil.Process(process.pid)
                family += [parent, *parent.children(recursive=True)]
            except psutil.Error:
                continue
        for member in family:
            _signal(member.terminate)
        _, stubborn = psutil.wait_procs(family, timeout=3)
        for member in stubborn:
            _signal(member.kill)
        psutil.wait_procs(stubborn, timeout=3)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Run a block with these environment variables alone."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.Error):
        send()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _identity(path: Path) -> int:
    """Return what tells one version of a file from the next, even of the same content; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _read_status(path: Path, before: int) -> dict[str, Any]:
    """Return the contents of ``status.json``; nothing if it is still the version ``before``."""
    if _identity(path) == before:
        return {}
    try:
        status: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return status
    except (OSError, json.JSONDecodeError):
        return {}


def _tail(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
