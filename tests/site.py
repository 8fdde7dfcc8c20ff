"""A SuperLink with TLS, authenticated SuperNodes and a user, on this machine, started as ``deploy/`` does."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from florilegium.common.settings import Value
from tests import processes
from tests.processes import ROOT

SCRIPTS = ROOT / "deploy"


class Site:
    """The processes; :func:`site` makes one.

    Args:
        folder: for all that they write. Runs are in ``runs`` there.
        stack: what ends the processes.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.port = processes.free_port()
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        subprocess.run([SCRIPTS / "certificates.sh", folder / "certificates", "localhost"], check=True)
        self.user = folder / "user"
        self.user.mkdir()
        (self.user / "config.toml").write_text(
            f'[superlink]\ndefault = "site"\n[superlink.site]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.ca}"\n'
            f'[superlink.insecure]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.start_superlink()

    @property
    def ca(self) -> Path:
        """The certificate of the authority."""
        return self.folder / "certificates" / "ca.pem"

    def _start(self, script: str, name: str, variables: Mapping[str, object]) -> subprocess.Popen[bytes]:
        process = processes.process(
            [str(SCRIPTS / script)], self.folder / name, self.folder / f"{name}.log",
            {key: str(value) for key, value in variables.items()},
        )  # fmt: skip
        return self._stack.enter_context(process)

    def start_superlink(self) -> None:
        """Start the SuperLink, again with the database that it had."""
        certificates = self.folder / "certificates"
        self.superlink = self._start(
            "superlink.sh", "superlink",
            {"CERTIFICATES": certificates, "STATE": self.folder / "superlink", "PORT": self.port},
        )  # fmt: skip
        processes.wait_for_port(self.port, self.superlink, self.folder / "superlink.log")

    def key(self, name: str, *, register: bool = True) -> Path:
        """Make the key of a node."""
        path = self.folder / "keys" / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", path, "-C", name], check=True
            )
            if register:
                processes.flwr(["supernode", "register", f"{path}.pub", "site"], self.user)
        return path

    def start_node(
        self,
        name: str,
        data: object = "",
        client: str = "",
        *,
        config: str = "",
        register: bool = True,
        **variables: object,
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode, again with the key and the state that it had."""
        self.nodes[name] = self._start("supernode.sh", name, {
            "SUPERLINK": f"127.0.0.1:{self.port}", "CA": self.ca, "KEY": self.key(name, register=register),
            "NODE_CONFIG": config or self._node_config(name, data, client), "STATE": self.folder / name, **variables,
        })  # fmt: skip
        return self.nodes[name]

    def start_flower_node(self, name: str, data: object) -> subprocess.Popen[bytes]:
        """Start Flower's own SuperNode, which starts a process for every message."""
        return self._start_plain(name, data, "flower-supernode", "--port", str(processes.free_port()))

    def start_script(self, name: str, script: Path, data: object) -> subprocess.Popen[bytes]:
        """Start a script that takes the options of ``flower-supernode``."""
        return self._start_plain(name, data, "python", str(script))

    def _start_plain(self, name: str, data: object, *command: str) -> subprocess.Popen[bytes]:
        options = [
            "--superlink", f"127.0.0.1:{self.port}", "--root-certificates", str(self.ca),
            "--auth-supernode-private-key", str(self.key(name)), "--node-config", self._node_config(name, data, name),
        ]  # fmt: skip
        process = processes.process([*command, *options], self.folder / name, self.folder / f"{name}.log")
        self.nodes[name] = self._stack.enter_context(process)
        return self.nodes[name]

    def _node_config(self, name: str, data: object, client: str) -> str:
        return f'data-path="{data}" client-id="{client or name}" state-dir="{self.folder / "state" / name}"'

    def wait_for_node(self, name: str, starts: int) -> None:
        """Wait until a node has connected to the SuperLink as often as it was started."""
        deadline = time.monotonic() + processes.DEADLINE
        while (self.folder / f"{name}.log").read_text().count("is connected") < starts:
            assert time.monotonic() < deadline, (self.folder / f"{name}.log").read_text()[-2000:]
            time.sleep(0.1)

    def cut_power(self, name: str) -> None:
        """Kill a node and all that it has started, as a cut of its power would."""
        processes.kill_family(self.nodes.pop(name).pid)

    def hang(self, name: str) -> None:
        """Stop a node and all that it has started, so that it is there and does nothing."""
        parent = psutil.Process(self.nodes[name].pid)
        for process in [parent, *parent.children(recursive=True)]:
            process.suspend()

    def submit(self, name: str, keys: Mapping[str, Value]) -> Path:
        """Start a run and return its folder."""
        runs = self.folder / "runs"
        words = {**keys, "runs-dir": str(runs)} | ({} if "resume" in keys else {"run-name": name})
        config = self.folder / f"{name}.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in words.items()))
        processes.flwr(["run", str(ROOT), "site", "--run-config", str(config)], self.user)
        return runs / name

    def wait(self, run: Path, until: Callable[[Mapping[str, Any]], bool]) -> None:
        """Wait until a run's status is as wanted."""
        deadline, status = time.monotonic() + processes.DEADLINE, {}
        while time.monotonic() < deadline:
            try:
                status = json.loads((run / "status.json").read_text())
            except (OSError, ValueError):
                status = {}
            if status and until(status):
                return
            assert status.get("state") != "failed", (status, self.log())
            time.sleep(0.1)
        raise AssertionError(f"{run.name} is still {status}: {self.log()}")

    def run(self, name: str, **keys: Value) -> Path:
        """Carry out a run to its end and return its folder."""
        path = self.submit(name, keys)
        self.wait(path, lambda status: status["state"] == "completed")
        return path

    def log(self) -> str:
        """Return the end of the SuperLink's log."""
        return (self.folder / "superlink.log").read_text()[-3000:]


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Start a SuperLink; end all that was started when the block is left."""
    with ExitStack() as stack:
        yield Site(folder, stack)
    shutil.rmtree(folder / "certificates")
