"""Landlock: a process that can open only the files and folders that it is granted, connect nowhere, and signal nobody.

Rights and structures are those of <linux/landlock.h>; what the kernel does not know yet is left out.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import closing

from florilegium.owner.confine.system import call

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""Numbers of the system calls, the same on all architectures."""
_VERSION, _BENEATH = 1, 1

_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FILES = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of rights over files, by version: 2 adds moving between folders, 3 truncating, 5 controlling devices."""
_TRUNCATE, _CONTROL = 1 << 14, 1 << 15
_SINGLE_FILE = _EXECUTE | _WRITE | _READ | _TRUNCATE | _CONTROL
"""Rights that a file has; the others are those of folders."""
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract sockets and signals


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Path(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Return the version of Landlock that the kernel has.

    Raises:
        OSError: if it has none.
    """
    return call(_CREATE, None, ctypes.c_size_t(0), _VERSION)


def restrict(readable: Sequence[str], writable: Sequence[str]) -> list[str]:
    """Confine this process, for ever; return what the kernel is too old for.

    Args:
        readable: files and folders that may be read, and programs there started; those that do not exist are none.
        writable: files and folders that may be written to, too.

    Raises:
        OSError: if the kernel has no Landlock, or refuses.
    """
    known = version()
    files = (1 << _FILES[min(known, max(_FILES))]) - 1
    # An older kernel takes a shorter structure.
    rules = _Rules(files, _TCP if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 8 if known < 4 else 16 if known < 6 else 24
    with closing(_Descriptor(call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), 0))) as made:
        for paths, rights in ((readable, _EXECUTE | _READ | _LIST), (writable, files)):
            for path in paths:
                _grant(made.number, path, rights & files)
        call(_RESTRICT, made.number, 0)
    return [*(["connections (Landlock 4)"] if known < 4 else []), *(["signals (Landlock 6)"] if known < 6 else [])]


class _Descriptor:
    """A descriptor that is closed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        """Close it."""
        os.close(self.number)


def _grant(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with closing(_Descriptor(descriptor)):
        rights = rights if os.path.isdir(path) else rights & _SINGLE_FILE
        call(_ADD, rules, _BENEATH, ctypes.byref(_Path(rights, descriptor)), 0)
