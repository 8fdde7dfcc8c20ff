"""Seccomp: system calls that the process of a run has no use for fail, above all those that make sockets.

The filter is a program of the kernel's classic BPF (<linux/seccomp.h>): it compares the number of a call with a list.
"""

from __future__ import annotations

import ctypes
import errno

from florilegium.owner.confine.system import control, machine

_SET, _FILTER = 22, 2
_LOAD, _EQUAL, _SET_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST = 0, 4, 16
"""Places in the data of a call: its number, the architecture, the low half of its first argument."""
_THREAD = 0x00010000
"""Flag of ``clone`` for a thread."""
_OTHER_TABLE = 0x40000000
"""Bit of the numbers of x32, another table of calls on x86-64."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FORBIDDEN = {
    "x86_64": {
        "socket": 41, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "mount": 165, "umount2": 166,
        "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "bpf": 321, "perf_event_open": 298,
        "userfaultfd": 323, "keyctl": 250, "add_key": 248, "request_key": 249, "init_module": 175,
        "finit_module": 313, "delete_module": 176, "kexec_load": 246, "open_by_handle_at": 304,
    },
    "aarch64": {
        "socket": 198, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "mount": 40, "umount2": 39,
        "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268, "bpf": 280, "perf_event_open": 241,
        "userfaultfd": 282, "keyctl": 219, "add_key": 217, "request_key": 218, "init_module": 105,
        "finit_module": 273, "delete_module": 106, "kexec_load": 104, "open_by_handle_at": 265,
    },
}  # fmt: skip
_COMMON = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
           "fsopen": 430, "fsconfig": 431, "fsmount": 432, "pidfd_getfd": 438, "mount_setattr": 442}  # fmt: skip
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_FORKS = {"x86_64": (57, 58), "aarch64": ()}
"""``fork`` and ``vfork``, where they are calls of their own."""


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("first", ctypes.POINTER(_Instruction)))


def restrict(*, forks: bool) -> None:
    """Let forbidden calls of this process, and of all that it starts, fail with EPERM, for ever.

    Args:
        forks: whether it may start processes; it may always start threads.

    Raises:
        OSError: if the kernel refuses, or the architecture has no list.
    """
    program = instructions(machine(), forks=forks)
    made = (_Instruction * len(program))(*(_Instruction(*one) for one in program))
    control(_SET, _FILTER, ctypes.byref(_Program(len(program), made)))


def instructions(architecture: str, *, forks: bool) -> list[tuple[int, int, int, int]]:
    """Return the filter as instructions: code, how many to skip if a comparison holds, and if not, and a value.

    Raises:
        OSError: if the architecture has no list.
    """
    if architecture not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {architecture}")
    refuse = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, ARCHITECTURES[architecture]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_SET_BITS, 0, 1, _OTHER_TABLE),
        (_RETURN, 0, 0, _KILL),
        # Its flags are behind a pointer, which a filter cannot follow; without it the C library takes ``clone``.
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
    ]
    calls = {**_FORBIDDEN[architecture], **_COMMON}
    for number in (*calls.values(), *(() if forks else _FORKS[architecture])):
        program += [(_EQUAL, 0, 1, number), refuse]
    if not forks:
        program += [
            (_EQUAL, 0, 3, _CLONE[architecture]), (_LOAD, 0, 0, _FIRST), (_SET_BITS, 1, 0, _THREAD), refuse
        ]  # fmt: skip
    return [*program, (_RETURN, 0, 0, _ALLOW)]
