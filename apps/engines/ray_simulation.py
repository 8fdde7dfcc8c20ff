"""Start a simulation with a SuperLink of its own and wait until it ends.

``flwr run`` leaves a SuperLink behind that keeps the folder and environment of the command that first started it, lets
workers import whatever lies in that folder, gives each client two CPUs, and returns 0 when the run failed. So every
command here starts its own SuperLink: in a new empty folder, with its own Flower home, port and Ray folder, one CPU
per worker, no installation of packages at run time. It ends with the command; the exit status tells whether the run
succeeded.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import secrets
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

from florilegium.apps.engines.progress import Show
from florilegium.apps.origins.app_folder import write_app
from florilegium.apps.origins.provenance import COMMAND_VARIABLE, passed_on
from florilegium.apps.settings.configuration import complete, packed
from florilegium.cluster.shares import gpu_share
from florilegium.common.errors import RunError
from florilegium.common.places import short_temporary_folder
from florilegium.common.references import PATH_VARIABLE
from florilegium.common.settings import Value
from florilegium.common.toml import nested

_NO_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
"""Environment variables that list hosts which are reached without a proxy."""
_POLL = 0.25
_FIRST_ROUND = 60.0
"""Seconds after which the log is followed even if the first round has not ended."""
_LOOK = 2.0
"""Seconds between two checks that the simulation's processes are alive."""
_END = 0.5
"""Seconds that processes have to end by themselves: a run's files are written atomically, all others are deleted."""
_GRACE = 15.0
"""Seconds after which a run is given up if its simulation process has ended."""
_FIRST_GRACE = 60.0
"""Seconds after which a run is given up if no simulation process ever started; Flower is slow on a busy machine."""


class Simulation:
    """A Flower simulation that carries out runs one after the other.

    A context manager: entering starts the SuperLink and Ray, leaving ends every process.

    Args:
        workers: number of worker processes, one CPU each.
        import_path: folders with modules of other packages that the runs need (:func:`packages.import_path`).

    Raises:
        ConfigurationError: if ``TMPDIR`` is too long.
    """

    def __init__(self, workers: int, import_path: str = "") -> None:
        self._workers = workers
        self._import_path = import_path or os.environ.get(PATH_VARIABLE, "")
        # Ray puts sockets in this folder, and the length of their paths is limited. Nobody else may enter it.
        self._home = Path(tempfile.mkdtemp(prefix="flor-", dir=short_temporary_folder()))
        # Ray lets all users write to its folder, so that nothing that is imported may lie in it.
        self._ray_folder = self._home / "ray"
        self._ray_folder.mkdir()
        self._bin = Path(sys.executable).parent
        self._port = _free_port()
        self._token = secrets.token_hex(32)
        self._ray_port = _free_port()
        self._processes: list[subprocess.Popen[Any]] = []
        self._reaper = subprocess.Popen(
            [sys.executable, "-P", "-m", "florilegium.apps.engines.reaper", str(self._home)],
            stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
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
        self._start_ray()

    def _start_ray(self) -> None:
        """Start Ray before a run is submitted, to save time; Flower then joins it through RAY_ADDRESS."""
        command = [
            self._program("ray"), "start", "--head", "--node-ip-address", "127.0.0.1", "--port", str(self._ray_port),
            "--num-cpus", str(self._workers), "--temp-dir", str(self._ray_folder), "--include-dashboard=false",
            "--no-monitor", "--include-log-monitor", "false", "--disable-usage-stats",
            "--ray-client-server-port", str(_free_port()), "--block",
        ]  # fmt: skip
        with (self._home / "ray.log").open("wb") as log:
            self._ray_head = self._popen(command, stdout=log)

    def __exit__(self, *exception: object) -> None:
        self._end_processes()
        self._reaper.communicate()  # closes its standard input, so that it deletes the folder and ends

    def run(self, overrides: Mapping[str, Value], run_path: Path, progress: Show) -> None:
        """Run one experiment and wait for it.

        Args:
            overrides: the run configuration, where it differs from the defaults. Workers share the GPUs evenly, unless
                ``device`` is "cpu"; ``start-timeout`` limits the start of the SuperLink, and then of the run.
            run_path: the folder the run will write to.
            progress: called with the contents of the run's ``status.json`` whenever they change.

        Raises:
            RunError: if the run failed, with the reason.
        """
        try:
            run_path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"runs-dir: {run_path} cannot be made ({error.strerror}); name another folder") from error
        config = complete(overrides)
        device, limit = str(config["device"]), float(config["start-timeout"])
        before = _identity(run_path / "status.json")  # left by the attempt that is resumed, if any
        for process in self._processes:
            process.poll()  # reap finished processes, such as those that followed the logs of earlier runs
        # `flwr run` is called in this process and imported while the SuperLink starts: a process of its own would
        # take three seconds more.
        from flwr.cli.app import app as flwr

        self._wait_for_superlink(limit)
        run_id = self._submit(flwr, overrides, device, limit)
        self._watch(run_id, run_path, before, limit, progress)

    # -------------------------------------------------------------------------------------- starting

    def _program(self, name: str) -> str:
        return str(self._bin / name)

    def _environment(self) -> dict[str, str]:
        return {
            **{key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", *_NO_PROXY)},
            **dict.fromkeys(_NO_PROXY, without_proxy(os.environ)),
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self._home / "flwr"),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            PATH_VARIABLE: self._import_path,
            COMMAND_VARIABLE: passed_on(),
            "RAY_ADDRESS": f"127.0.0.1:{self._ray_port}",
            # Ray listens on every network interface; the token keeps others from submitting work.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_TMPDIR": str(self._ray_folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # Ray's default of 15 lets all other programs go first
            "RAY_prestart_worker_first_driver": "0",  # prestarted workers would stay idle
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
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy, whatever the environment says
        while time.monotonic() < deadline and self._superlink.poll() is None:
            try:
                with direct.open(f"http://127.0.0.1:{self._port}/health", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RunError(
            f"Flower's SuperLink ended, or did not start within {limit:g} s (key start-timeout). Its last output: "
            f"{_tail(self._home / 'superlink.log')}"
        )

    def _app(self) -> Path:
        """Return the folder of the Flower app, laid out for this simulation.

        Flower would look at every file of a checkout, also at those of virtual environments and caches.
        """
        laid_out = self._home / "app"
        return laid_out if laid_out.exists() else write_app(laid_out)

    def _submit(self, flwr: typer.Typer, overrides: Mapping[str, Value], device: str, limit: float) -> str:
        run_config = self._home / "run.toml"
        run_config.write_text(tomli_w.dumps(nested(packed(overrides))), encoding="utf-8")
        federation = {
            # One node per worker: each message costs 20 ms or more, and the strategy balances the nodes' work.
            "num-supernodes": self._workers,
            "client-resources-num-cpus": 1,
            "init-args-logging-level": '"ERROR"',
        }
        if device != "cpu" and (gpus := _gpus()):
            federation["client-resources-num-gpus"] = gpu_share(self._workers, gpus)
        arguments = [
            "run", str(self._app()), "here", "--run-config", str(run_config),
            "--federation-config", " ".join(f"{key}={value}" for key, value in federation.items()),
        ]  # fmt: skip
        with _environment(self._environment()), contextlib.redirect_stdout(io.StringIO()) as output:
            watchdog = threading.Timer(limit, self._superlink.kill)  # makes a hanging `flwr run` fail
            watchdog.start()
            try:
                flwr(arguments, standalone_mode=False)
                said = ""
            except Exception as error:  # click and gRPC have exception classes of their own
                said = f" {error}"
            finally:
                watchdog.cancel()
        answer = re.search(r"started run (\d+)", output.getvalue())
        if answer is None:
            raise RunError(f"`flwr run` refused the run: {(output.getvalue() + said).strip()[-2000:]}")
        return answer[1]

    # -------------------------------------------------------------------------------------- watching

    def _watch(self, run_id: str, run_path: Path, before: int, limit: float, progress: Show) -> None:
        """Wait until the run has completed; raise :class:`RunError` if it failed, did not start, or ended early.

        For the arguments see :meth:`run`; ``before`` identifies an earlier attempt's ``status.json``, which is ignored.
        """
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
            # `flwr log` needs seconds of CPU to start; until the first round is done the run needs them itself.
            advanced = status.get("round", 0) > max(0, first_round) or now - start > _FIRST_ROUND
            if advanced and not following:
                following = True
                with log.open("ab") as output:
                    self._popen([self._program("flwr"), "log", run_id, "here", "--stream"], stdout=output)
            if now >= next_look:  # listing all processes takes some milliseconds
                next_look = now + _LOOK
                given_up = now + _GRACE if self._simulation_alive() else given_up
            if self._ray_head is not None and self._ray_head.poll() is not None:
                raise RunError(f"Ray did not start, or died. Its last output: {_tail(self._home / 'ray.log')}")
            over = self._superlink.poll() is not None or now > given_up
            late = not status and now - start > limit
            if (over or late) and not following:
                self._fetch_log(run_id, log)
            # Read the status again: it may have been written since it was read above.
            if over and _read_status(run_path / "status.json", before) == status:
                raise RunError(f"the simulation's processes ended before the run did. {log} ends with:\n{_tail(log)}")
            if late:
                raise RunError(
                    f"the run did not start within {limit:g} s (key start-timeout). {log} ends with:\n{_tail(log)}"
                )
            time.sleep(_POLL)

    def _fetch_log(self, run_id: str, log: Path) -> None:
        """Append Flower's output so far to ``log``, if the SuperLink is still running."""
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
                with contextlib.suppress(psutil.Error):  # the child may have just ended
                    if "flwr-simulation" in " ".join(child.cmdline()):
                        return True
        return False

    def _end_processes(self) -> None:
        """End the SuperLink, the simulation, Ray, and all their child processes."""
        family: list[psutil.Process] = []
        for process in self._processes:
            try:
                parent = psutil.Process(process.pid)
                family += [parent, *parent.children(recursive=True)]
            except psutil.Error:
                continue
        for member in family:
            _signal(member.terminate)
        _, stubborn = psutil.wait_procs(family, timeout=_END)
        for member in stubborn:
            _signal(member.kill)
        psutil.wait_procs(stubborn, timeout=3)


def without_proxy(environment: Mapping[str, str]) -> str:
    """Return the hosts that are reached without a proxy: those of the environment, and this machine.

    The simulation's processes speak to each other by HTTP and gRPC, which obey ``http_proxy``, ``https_proxy`` and
    ``all_proxy``. Workers may need these to load data.
    """
    named = [host.strip() for name in _NO_PROXY for host in environment.get(name, "").split(",")]
    return ",".join(dict.fromkeys([*filter(None, named), "127.0.0.1", "localhost", "::1"]))


def _gpus() -> int:
    """Return the number of GPUs of this machine."""
    import torch  # the rehearsal has imported it

    return torch.cuda.device_count()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Context manager: replace all environment variables by ``variables``, and restore them at the end."""
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
    """Return the file's modification time in nanoseconds, to detect rewriting; 0 if there is no file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _read_status(path: Path, before: int) -> dict[str, Any]:
    """Return the contents of ``status.json``; {} if it is unreadable or still the version ``before``."""
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
