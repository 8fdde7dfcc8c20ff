"""Pass messages between processes of one machine: large arrays as files that both map, all else as bytes."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from os import fdopen
from typing import Any

from florilegium.common.spool import Spool


def send(connection: Connection, value: Any) -> None:
    """Send a value to another process; its :class:`Spool` objects as files.

    Args:
        connection: a socket between the two processes.
        value: what is sent; a tuple, a message.

    Raises:
        OSError: if the other process is gone.
    """
    buffers: list[pickle.PickleBuffer] = []
    found = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=lambda one: _inside(one, buffers))
    connection.send_bytes(bytes([len(buffers)]) + found)
    for buffer in buffers:
        send_handle(connection, _spool(buffer).file.fileno(), 0)  # where there is a fork, no process needs to be named


def received(connection: Connection, found: bytes) -> Any:
    """Return a value from its bytes, which :func:`send` has sent and ``connection`` has received; receive its files.

    Raises:
        EOFError: if the other process has died before it had sent all.
    """
    files = [fdopen(recv_handle(connection), "rb") for _ in range(found[0])]
    return pickle.loads(memoryview(found)[1:], buffers=map(Spool, files))


def _spool(buffer: pickle.PickleBuffer) -> Any:
    return memoryview(buffer).obj


def _inside(buffer: pickle.PickleBuffer, files: list[pickle.PickleBuffer]) -> bool:
    """Return whether a buffer stays a part of the pickle; else it joins ``files``."""
    if not isinstance(_spool(buffer), Spool):
        return True
    files.append(buffer)
    return False
