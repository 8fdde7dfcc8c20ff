"""The cell of a run's process: everything that it is granted, and how it is locked in."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from florilegium.owner.confine import landlock, namespaces, seccomp
from florilegium.owner.confine.system import become, gain_no_privileges

_SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group",
    "/etc/nsswitch.conf", "/etc/mime.types", "/etc/ssl", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
    "/proc/sys/kernel", "/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu", "/sys/devices/system/node",
    "/dev/random", "/dev/urandom", "/proc/driver/nvidia", "/sys/fs/cgroup",
)  # fmt: skip
"""What programs and libraries read of a system. Of /etc no more, since the owner's folder may lie there."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
_SHARED_MEMORY = "/dev/shm"
_KEPT = (
    "HOME", "PATH", "LANG", "LC_", "TZ", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "CUDA", "NVIDIA",
    "LD_LIBRARY_PATH", "VIRTUAL_ENV", "FLORILEGIUM_",
)  # fmt: skip
"""Beginnings of the names of environment variables that the process of a run keeps; others may hold secrets."""
_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Cell:
    """What the process of a run is granted.

    Attributes:
        readable: files and folders with the device's data, and what else its settings name.
        writable: the folders of its state.
        scratch: its home and temporary folder.
        memory, disk: MB.
        files: number of open files.
        processes: number of child processes; 0: none, only threads.
        strict: whether it ends if a part cannot be enforced.
        user: ids of the user and group as whom it works; None: as its parent.
    """

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    scratch: str
    memory: int
    disk: int
    files: int
    processes: int
    strict: bool
    user: tuple[int, int] | None = None

    @property
    def changes_user(self) -> bool:
        """Whether it is for another user than that of this process."""
        return self.user not in (None, (os.geteuid(), os.getegid()))

    def enter(self) -> list[str]:
        """Lock this process in, for ever; return what could not be enforced. Call it before any code of a run.

        Raises:
            SystemExit: if something could not and the cell is strict.
        """
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(_own_environment(before, self.scratch))
        missing = list[str]()
        for what, lock in self._locks():
            try:
                missing += lock() or []
            except OSError as error:
                missing.append(f"{what} ({error.strerror})")
        if missing and self.strict:
            print(f"the policy is strict, and this cannot be enforced: {'; '.join(missing)}", file=sys.stderr)
            os._exit(1)
        return missing

    def _locks(self) -> list[tuple[str, Callable[[], list[str] | None]]]:
        shared = [_SHARED_MEMORY] if self.processes else []
        readable = [*_SYSTEM, *_python(), *self.readable]
        writable = [*_DEVICES, *shared, *self.writable, self.scratch]
        other = [("another user", partial(become, *self.user))] if self.user and self.changes_user else []
        return [
            *other,
            ("namespaces", namespaces.enter),
            ("limits", self._limit),
            ("no new privileges", gain_no_privileges),
            ("files (Landlock)", lambda: landlock.restrict(readable, writable)),
            ("system calls (seccomp)", lambda: seccomp.restrict(forks=self.processes > 0)),
        ]

    def _limit(self) -> None:
        for what, most in (
            (resource.RLIMIT_DATA, self.memory * _MEGABYTE), (resource.RLIMIT_FSIZE, self.disk * _MEGABYTE),
            (resource.RLIMIT_NOFILE, self.files), (resource.RLIMIT_CORE, 0),
        ):  # fmt: skip
            _, hard = resource.getrlimit(what)
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(what, (bound, bound))


def kept_environment(before: Mapping[str, str]) -> dict[str, str]:
    """Return the few variables of an environment that the process of a run may know."""
    return {name: value for name, value in before.items() if name.startswith(_KEPT)}


def _own_environment(before: Mapping[str, str], scratch: str) -> dict[str, str]:
    """Return the environment of a run's process: few of the variables of before, and its own folders."""
    own = {"HOME": scratch, "TMPDIR": scratch, "FLWR_HOME": str(Path(scratch) / "flwr")}
    return kept_environment(before) | own | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def _python() -> list[str]:
    """Return where Python and the installed packages lie."""
    places = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path}
    return sorted({os.path.realpath(place) for place in places if place and os.path.exists(place)})
