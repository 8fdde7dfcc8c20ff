"""The cells of a device's runs: the folders of each, and how long and how much it may work there."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import NAME
from florilegium.owner.confine.cell import Cell
from florilegium.owner.denied import DeniedError
from florilegium.owner.policy import Limits, Policy
from florilegium.owner.view import View

_SHARED = ("_frozen", "_privacy")
"""Folders of the state that all runs of a device share: frozen parameters, and the account of ``max-epsilon``."""
_SCRATCH = "_scratch"
_BESIDES = 4_000_000
"""Bytes that a process may return besides arrays."""


@dataclass(frozen=True)
class Room:
    """What the process of a run has for a request.

    Attributes:
        name: the name of the run's state; a process that was made for another does not suit the request.
        cell: what it is confined to; None: nothing.
        data: where it finds the device's data; "": where the device's settings say.
        most: the most bytes that it may return; None: any number.
    """

    name: str = ""
    cell: Cell | None = None
    data: str = ""
    most: int | None = None


@dataclass(frozen=True)
class Cells:
    """Makes the cells.

    Attributes:
        state: the device's ``state-dir``.
        data: its data; None: a function yields them.
        view: the columns of them that may be read; None: all.
        readable: other files that its settings name.
    """

    state: Path
    data: Path | None
    view: View | None
    readable: Sequence[Path]

    def room(self, run_id: int, run: str, policy: Policy) -> Room:
        """Return what the process of a run has (arguments as for :meth:`cell`)."""
        most = max((rule.bytes for rule in policy.reply), default=0) + _BESIDES
        return Room(run, self.cell(run_id, run, policy), str(self.place() or ""), most)

    def cell(self, run_id: int, run: str, policy: Policy) -> Cell:
        """Return the cell of a run's process, whose folders are made.

        Args:
            run_id: the run, as the SuperLink numbers it.
            run: its name; "" as long as no request has told it: then nothing may be written but scratch files.
            policy: the policy.
        """
        if run and not re.fullmatch(NAME, run):
            raise DeniedError("message", f"'{run[:80]}' is not the name of a run")
        scratch, user = self.scratch(run_id), _ids(policy.limits.user)
        writable = [self.state / name for name in (*_SHARED, *([run] if run else []))]
        for folder in (scratch, *writable):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = self.place()
        if user is not None and os.geteuid() == 0:
            self._hand_over([scratch, *writable, *([self.view.folder] if self.view else [])], *user)
        readable = [str(path.resolve()) for path in (*self.readable, *([place] if place else []))]
        limits = policy.limits
        return Cell(
            tuple(readable), tuple(map(str, writable)), str(scratch), limits.memory, limits.disk, limits.files,
            limits.processes, policy.strict, user,
        )  # fmt: skip

    def _hand_over(self, folders: Sequence[Path], user: int, group: int) -> None:
        """Make folders, and all in them, a user's own, who may pass those above; links in them are not followed."""
        for above in (self.state, self.state / _SCRATCH):
            above.chmod(stat.S_IMODE(above.stat().st_mode) | stat.S_IXOTH)  # not list
        for folder in folders:
            os.chown(folder, user, group)
            for place, inner, files in os.walk(folder):
                for name in (*inner, *files):
                    os.chown(Path(place) / name, user, group, follow_symlinks=False)

    def scratch(self, run_id: int) -> Path:
        """Return the folder for a run's temporary files."""
        return self.state / _SCRATCH / str(run_id)

    def place(self) -> Path | None:
        """Return where a run's process finds the data; None: where the device's settings say."""
        return self.view.made() if self.view else self.data

    def clear(self, run_id: int | None = None) -> None:
        """Delete a run's temporary files; None: those of all runs, which a killed supervisor has left."""
        folder = self.state / _SCRATCH if run_id is None else self.scratch(run_id)
        shutil.rmtree(folder, ignore_errors=True)

    def watch(self, run_id: int, run: str, limits: Limits) -> Callable[[], None]:
        """Return a function that raises :class:`DeniedError` once a request has taken too long, or too much space."""
        deadline = time.monotonic() + limits.seconds
        folders = [self.scratch(run_id), *([self.state / run] if run else [])]

        def check() -> None:
            if time.monotonic() > deadline:
                raise DeniedError("limits.seconds", f"no reply after {limits.seconds:g} s")
            size = sum(map(_size, folders))
            if size > limits.disk * 1_000_000:
                raise DeniedError("limits.disk", f"the run keeps {size / 1e6:.0f} MB; at most {limits.disk}")

        return check


def _ids(name: str) -> tuple[int, int] | None:
    """Return the ids of a user and its group; None if there is no name.

    Raises:
        ConfigurationError: if this system has no such user.
    """
    if not name:
        return None
    import pwd  # not on Windows

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise ConfigurationError(
            f"limits.user: this system has no user '{name}'; make one (useradd --system --no-create-home {name}), or "
            "leave the line out"
        ) from None
    return found.pw_uid, found.pw_gid


def _size(folder: Path) -> int:
    """Return the bytes that the files of a folder take on disk."""
    return 512 * sum(_blocks(folder))


def _blocks(folder: Path) -> Iterator[int]:
    with suppress(OSError), os.scandir(folder) as entries:  # a run removes files and folders at the same time
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _blocks(Path(entry.path))
            else:
                with suppress(FileNotFoundError):
                    yield entry.stat(follow_symlinks=False).st_blocks
