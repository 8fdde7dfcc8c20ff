"""Ray nodes of the tests: each at an address of its own, on loopback or in a network namespace."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tests import processes

PORT = 6399


class Nodes:
    """A Ray cluster of nodes with a CPU each, the first of which is its head.

    Attributes:
        address: that of the cluster.
        folder: where the nodes put their logs.
    """

    def __init__(self, stack: ExitStack, folder: Path, hosts: Sequence[str], inside: Sequence[Sequence[str]]) -> None:
        self._stack, self.folder, self._hosts, self._inside = stack, folder, hosts, inside
        self.address = f"{hosts[0]}:{PORT if inside[0] else processes.free_port()}"
        self._sockets = tempfile.mkdtemp(prefix="ray-")  # the length of sockets' paths is limited
        stack.callback(shutil.rmtree, self._sockets, ignore_errors=True)
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int) -> None:
        """Start a node, and wait until it is there."""
        port = self.address.rpartition(":")[2]
        role = (
            ["--address", self.address]
            if node
            else ["--head", "--port", port, "--temp-dir", self._sockets, "--include-dashboard=false"]
        )
        command = ["start", *role, "--node-ip-address", self._hosts[node], "--num-cpus", "1", "--disable-usage-stats"]
        log = self.folder / f"node-{node}.log"
        program = [*self._inside[node], str(processes.BIN / "ray"), *command, "--block"]
        self._started[node] = self._stack.enter_context(
            processes.process(program, self.folder / f"node-{node}", log, {"PYTHONPATH": str(processes.ROOT)})
        )
        deadline = time.monotonic() + processes.DEADLINE
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            assert self._started[node].poll() is None, log.read_text()
            time.sleep(0.2)

    def command(self, node: int, words: Sequence[str]) -> list[str]:
        """Return a command that is carried out where a node is."""
        return [*self._inside[node], *words]

    def family(self, node: int, name: str) -> list[psutil.Process]:
        """Return the processes of a node whose command has a word: "raylet/raylet", or "ray::Worker" for workers."""
        found = psutil.Process(self._started[node].pid).children(recursive=True)
        return [process for process in found if name in _command(process)]

    def link(self, node: int, state: str) -> None:
        """Cut a node off ("down"), or heal its link ("up"); for nodes in namespaces."""
        subprocess.run([*self._inside[0], "ip", "link", "set", f"v{node}", state], check=True)

    def received(self, node: int) -> int:
        """Return how many bytes a node in a namespace has received by its link so far."""
        table = Path(f"/proc/{self._inside[node][2]}/net/dev").read_text()
        (line,) = [line for line in table.splitlines() if "eth0:" in line]
        return int(line.partition(":")[2].split()[0])

    def kill(self, node: int) -> None:
        """Kill a node as a power cut would."""
        processes.kill_family(self._started[node].pid)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def on_loopback(folder: Path, count: int) -> Iterator[Nodes]:
    """Context of nodes at 127.0.0.1, 127.0.0.2, …, none of which has been started."""
    with ExitStack() as stack:
        yield Nodes(stack, folder, [f"127.0.0.{node + 1}" for node in range(count)], [[]] * count)


@contextmanager
def in_namespaces(folder: Path, count: int) -> Iterator[Nodes]:
    """Context of nodes in network namespaces of their own, joined by a bridge in that of the first; for root alone.

    The network of the machine itself stays as it is.
    """
    with ExitStack() as stack:
        spaces = []
        for _ in range(count):
            holder = subprocess.Popen(["unshare", "--net", "sleep", "100000"])
            stack.callback(processes.kill_family, holder.pid)
            spaces.append([str(shutil.which("nsenter")), "--target", str(holder.pid), "--net"])
            _wait_for_namespace(holder.pid)

        def ip(node: int, words: str) -> None:
            subprocess.run([*spaces[node], "ip", *words.split()], check=True)

        ip(0, "link set lo up")
        ip(0, "link add br0 type bridge")
        ip(0, "addr add 10.99.0.1/24 dev br0")
        ip(0, "link set br0 up")
        for node in range(1, count):
            ip(0, f"link add v{node} type veth peer name eth0 netns {spaces[node][2]}")
            ip(0, f"link set v{node} master br0 up")
            ip(node, "link set lo up")
            ip(node, f"addr add 10.99.0.{node + 1}/24 dev eth0")
            ip(node, "link set eth0 up")
        yield Nodes(stack, folder, [f"10.99.0.{node + 1}" for node in range(count)], spaces)


def _wait_for_namespace(pid: int) -> None:
    deadline, own = time.monotonic() + processes.DEADLINE, Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{pid}/ns/net").readlink() == own:
        assert time.monotonic() < deadline
        time.sleep(0.01)
