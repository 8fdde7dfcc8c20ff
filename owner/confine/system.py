"""Calls of the Linux kernel that Python's standard library lacks."""

from __future__ import annotations

import ctypes
import os
import platform

_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_NEW_PRIVILEGES, _DUMPABLE = 38, 4  # <linux/prctl.h>


def call(number: int, *arguments: object) -> int:
    """Carry out a system call.

    Raises:
        OSError: if the kernel refuses it.
    """
    return _checked(_LIBC.syscall(number, *arguments))


def control(option: int, *arguments: object) -> None:
    """Call ``prctl``.

    Raises:
        OSError: if the kernel refuses it.
    """
    _checked(_LIBC.prctl(option, *arguments, *([0] * (4 - len(arguments)))))


def unshare(flags: int) -> None:
    """Call ``unshare``.

    Raises:
        OSError: if the kernel refuses it.
    """
    _checked(_LIBC.unshare(flags))


def gain_no_privileges() -> None:
    """Let no program that this process starts have more rights than it, as files with a set-user-id bit give.

    Raises:
        OSError: if the kernel refuses it.
    """
    control(_NO_NEW_PRIVILEGES, 1)


def become(user: int, group: int) -> None:
    """Go on as another user, for ever, and without the rights of further groups.

    Raises:
        OSError: if this process has not the rights to do so.
    """
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    control(_DUMPABLE, 1)  # else the process may not map its user into a namespace of its own


def machine() -> str:
    """Return the machine's architecture, such as ``x86_64``."""
    return platform.machine()


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
