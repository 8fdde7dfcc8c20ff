"""What a run's process is sent and returns, as frames of bytes.

What it returns is read as data alone, since the process may send anything: the standard library's ``Connection.recv``
would carry out what a pickle says, in the supervisor. Arrays are frames of their own, so that models above Flower's
2 GB of one protobuf message fit; in the supervisor large ones are never whole in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from florilegium.clients.core.wire import holding
from florilegium.common.errors import FileError
from florilegium.common.spool import LARGE, Spool, spooled

_CONTENT, _ERROR = b"content", b"error"
_WORD = 64
"""The most bytes of a frame that says what follows, or of a number."""
_REASON = 1 << 16
"""The most bytes of an error's reason."""
_PIECE = 1 << 22
"""The most bytes of an array in one frame."""


class FrameError(Exception):
    """A process has sent what is no reply."""


def ask(connection: Connection, message: Message, context: Context) -> None:
    """Send a message with content to a run's process, and the context."""
    whole = message.content
    message.content = _hollow(whole)
    try:
        connection.send((message, context))
    finally:
        message.content = whole
    for _, _, array in _arrays(whole):
        _send_bytes(connection, array.data)


def asked(connection: Connection) -> tuple[Message, Context]:
    """Receive what :func:`ask` has sent, without the bytes of arrays, which :func:`fill` receives then.

    Raises:
        EOFError, OSError: if there is no more.
    """
    message, context = connection.recv()
    return message, context


def fill(connection: Connection, message: Message, keep: Callable[[Iterator[bytes]], Any] | None) -> None:
    """Receive the bytes of the arrays of a message that :func:`asked` has returned.

    Args:
        connection, message: those of :func:`asked`.
        keep: makes of pieces what the app reads in place of bytes, for large arrays; None: it reads bytes alone.

    Raises:
        EOFError, OSError: if there is no more.
        Exception: what ``keep`` raises, after all has been received.
    """
    failure: Exception | None = None
    for record, name, array in [*_arrays(message.content)]:
        size, pieces = _pieces(lambda _: connection.recv_bytes())
        try:
            data = keep(pieces) if keep and size >= LARGE else _whole(pieces)
        except (EOFError, OSError):
            raise
        except Exception as error:
            failure, data = failure or error, b""
            for _ in pieces:
                pass
        record[name] = holding(array.dtype, array.shape, array.stype, data)
    if failure is not None:
        raise failure


def send(connection: Connection, reply: Message, state: RecordDict) -> None:
    """Send a reply, and what the app keeps in its context."""
    if reply.has_error():
        connection.send_bytes(_ERROR)
        connection.send_bytes(str(reply.error.code).encode())
        connection.send_bytes(str(reply.error.reason).encode()[:_REASON])
    else:
        connection.send_bytes(_CONTENT)
        _send_records(connection, reply.content)
    _send_records(connection, state)


def receive(connection: Connection, request: Message, most: int | None) -> tuple[Message, RecordDict]:
    """Receive what :func:`send` has sent. Of the reply only content or error count: the rest is the request's.

    Args:
        connection: from the process.
        request: the message that is replied to.
        most: the most bytes that all frames may have; None: any number.

    Raises:
        FrameError: if it is something else, or longer.
        FileError: if large arrays cannot be written to a file.
        EOFError, OSError: if the process has died.
    """
    left = [most]

    def take(longest: int | None = None) -> bytes:
        bounds = [bound for bound in (longest, left[0]) if bound is not None]
        try:
            frame = connection.recv_bytes(min(bounds)) if bounds else connection.recv_bytes()
        except OSError as error:
            if error.errno is None:  # the standard library's "bad message length"
                raise FrameError("it has sent more bytes than it may") from error
            raise
        if left[0] is not None:
            left[0] -= len(frame)
        return frame

    try:
        kind = take(_WORD)
        if kind == _ERROR:
            code, reason = int(take(_WORD)), take(_REASON).decode(errors="replace")
            reply = Message(Error(code, reason), reply_to=request)
        elif kind == _CONTENT:
            reply = Message(_records(take), reply_to=request)
        else:
            raise FrameError("it has sent neither content nor an error")
        return reply, _records(take)
    except (FrameError, FileError, EOFError, OSError):
        raise
    except Exception as error:  # protobuf and Flower raise errors of several kinds
        raise FrameError(f"it has sent what is no message ({type(error).__name__})") from error


def _arrays(records: RecordDict) -> Iterator[tuple[ArrayRecord, str, Array]]:
    for record in records.array_records.values():
        yield from ((record, name, array) for name, array in record.items())


def _hollow(records: RecordDict) -> RecordDict:
    """Return records with arrays without bytes."""
    return RecordDict({
        name: ArrayRecord({n: Array(a.dtype, a.shape, a.stype, b"") for n, a in record.items()})
        if isinstance(record, ArrayRecord) else record for name, record in records.items()
    })  # fmt: skip


def _send_records(connection: Connection, records: RecordDict) -> None:
    connection.send_bytes(recorddict_to_proto(_hollow(records)).SerializeToString())
    for _, _, array in _arrays(records):
        _send_bytes(connection, array.data)


def _records(take: Callable[[int | None], bytes]) -> RecordDict:
    records = recorddict_from_proto(ProtoRecordDict.FromString(take(None)))
    for record, name, array in [*_arrays(records)]:
        size, pieces = _pieces(take)
        data = spooled(pieces) if size >= LARGE else _whole(pieces)
        record[name] = holding(array.dtype, array.shape, array.stype, data)
    return records


def _send_bytes(connection: Connection, data: bytes | Spool | memoryview) -> None:
    """Send how many bytes there are, and then these, a frame for each few."""
    connection.send_bytes(str(len(data)).encode())
    whole = memoryview(data)
    for start in range(0, len(data), _PIECE):
        connection.send_bytes(whole[start : start + _PIECE])


def _pieces(take: Callable[[int | None], bytes]) -> tuple[int, Iterator[bytes]]:
    """Return the size of what :func:`_send_bytes` sends, and its pieces; ``take`` a frame of so many bytes at most."""
    size = int(take(_WORD))

    def pieces() -> Iterator[bytes]:
        left = size
        while left > 0:
            piece = take(min(left, _PIECE))
            if not piece:
                raise FrameError("it has sent fewer bytes than it has said")
            left -= len(piece)
            yield piece

    return size, pieces()


def _whole(pieces: Iterator[bytes]) -> bytes:
    whole = BytesIO()  # which gives its bytes away without a copy, as a join of pieces does not
    whole.writelines(pieces)
    return whole.getvalue()
