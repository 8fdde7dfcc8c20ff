"""Namespaces: the process of a run has no network, sees no other processes, and has no rights outside of them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from florilegium.common.child import leave_signals_to_the_parent
from florilegium.owner.confine.system import unshare

_USER, _NETWORK, _PROCESSES, _IPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000


def enter() -> list[str]:
    """Enter new namespaces, and go on in a new process that is their first; return what could not be had.

    The process that calls this waits for the new one and ends as it does. With the first process of its namespace all
    others of it end.
    """
    user, group, missing = os.geteuid(), os.getegid(), list[str]()
    try:
        unshare(_USER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as error:
        missing.append(f"a namespace of users ({error.strerror})")
    for flag, name in ((_NETWORK, "of the network"), (_IPC, "of shared memory"), (_PROCESSES, "of processes")):
        try:
            unshare(flag)
        except OSError as error:
            missing.append(f"a namespace {name} ({error.strerror})")
    if (child := os.fork()) != 0:
        _end_as(child)
    leave_signals_to_the_parent()
    return missing


def _end_as(child: int) -> None:
    """Wait for a child, holding no descriptor open, and end as it does, or with the parent."""
    leave_signals_to_the_parent()  # again, since a namespace of users ends it
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.stdout.flush()
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
