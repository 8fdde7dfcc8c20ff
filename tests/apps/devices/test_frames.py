"""What a process of a run returns: whole messages arrive as they were sent; anything else is an error, no code runs."""

from __future__ import annotations

import multiprocessing
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto

from florilegium.apps.devices import frames
from florilegium.apps.devices.frames import FrameError, ask, asked, fill, receive, send
from florilegium.common.errors import FileError
from florilegium.common.spool import Spool, spooled
from florilegium.strategies.exchange.flower_inside import identify, name_message


def _request() -> Message:
    identify()
    message = Message(RecordDict(), dst_node_id=7, message_type="train")
    name_message(message, "seven")
    return message


def _passed(act: Callable[[Connection], object], most: int | None = None) -> tuple[Message, RecordDict]:
    """Return what is received of what ``act`` sends in another thread."""
    here, there = multiprocessing.Pipe()

    def write() -> None:
        with there, suppress(BrokenPipeError):  # the receiver may have read enough
            act(there)

    thread = Thread(target=write)
    thread.start()
    try:
        return receive(here, _request(), most)
    finally:
        here.close()
        thread.join()


def test_what_a_process_is_asked_is_received_without_copies_of_arrays() -> None:
    message, size = _request(), 40_000_000
    message.content = RecordDict({
        "config": ConfigRecord({"a": 1}),
        "arrays": ArrayRecord({"w": Array(np.arange(size // 4, dtype=np.float32)), "none": Array(np.empty((0, 3)))}),
    })  # fmt: skip
    (array,) = [one for one in message.content.array_records["arrays"].values() if len(one.data) > size]
    array.data = cast(bytes, spooled([array.data]))
    before, context = message.content, Context(1, 2, {"x": 3}, RecordDict(), {})
    here, there = multiprocessing.Pipe()
    found: list[tuple[Message, Context]] = []

    def receive_it() -> None:
        found.append(asked(there))
        fill(there, found[0][0], None)

    thread = Thread(target=receive_it)
    tracemalloc.start()
    thread.start()
    ask(here, message, context)
    thread.join()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * size  # of the receiver, whose bytes grow by an eighth
    assert message.content is before
    ((taken, state),) = found
    assert (state, taken.metadata.message_id) == (context, "seven")
    assert taken.content.object_id == before.object_id
    here.close()
    with pytest.raises((EOFError, OSError)):
        asked(there)


@pytest.mark.parametrize("large", [True, False])
def test_large_arrays_are_received_in_files(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 40_000_000
    monkeypatch.setattr(frames, "LARGE", size if large else 1 << 40)
    reply = Message(
        RecordDict({"arrays": ArrayRecord({"w": Array(np.arange(size // 4, dtype=np.float32))})}), 7, "train"
    )
    (array,) = reply.content.array_records["arrays"].values()
    array.data = cast(bytes, spooled([array.data]))
    tracemalloc.start()
    found, _ = _passed(lambda there: send(there, reply, RecordDict()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (taken,) = found.content.array_records["arrays"].values()
    assert taken.data[:] == array.data[:]
    assert isinstance(taken.data, Spool) == large
    assert (peak < 0.5 * size) == large


def test_fewer_bytes_than_said_are_an_error() -> None:
    hollow = RecordDict({"arrays": ArrayRecord({"w": Array("uint8", (9,), "numpy.ndarray", b"")})})

    def act(there: Connection) -> None:
        there.send_bytes(b"content")
        there.send_bytes(recorddict_to_proto(hollow).SerializeToString())
        for frame in (b"9", b"abc", b""):
            there.send_bytes(frame)

    with pytest.raises(FrameError, match="fewer bytes"):
        _passed(act)


def test_what_the_app_cannot_keep_is_an_error_after_all_was_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next message is understood."""
    monkeypatch.setattr(frames, "LARGE", 1000)
    message = _request()
    arrays = {"large": Array(np.zeros(3_000_000)), "small": Array(np.ones(3)), "more": Array(np.ones(4_000))}
    message.content = RecordDict({"arrays": ArrayRecord(arrays)})
    here, there = multiprocessing.Pipe()

    def write() -> None:
        for _ in range(2):
            ask(here, message, Context(1, 2, {}, RecordDict(), {}))

    def full(pieces: Iterator[bytes]) -> bytes:
        next(pieces)
        raise FileError("the disk is full")

    thread = Thread(target=write, daemon=True)
    thread.start()
    first, _ = asked(there)
    with pytest.raises(FileError, match="the disk is full"):
        fill(there, first, full)
    second, _ = asked(there)
    fill(there, second, b"".join)
    assert second.content.object_id == message.content.object_id


def test_what_is_sent_is_received() -> None:
    big = np.arange(3_000_000, dtype=np.float32)
    content = RecordDict({
        "outcome": ConfigRecord({"a": [1, 2], "b": "text", "c": b"bytes", "d": 0.5, "e": True}),
        "numbers": MetricRecord({"loss": 0.25}),
        "arrays": ArrayRecord({"w": Array(big), "none": Array(np.empty((0, 3)))}),
        "more": ArrayRecord({"v": Array(np.ones(2))}),
    })  # fmt: skip
    state = RecordDict({"kept": ArrayRecord({"k": Array(np.eye(2))})})
    reply, after = _passed(lambda there: send(there, Message(content, reply_to=_request()), state))
    assert reply.content.object_id == content.object_id
    assert after.object_id == state.object_id
    assert (reply.metadata.reply_to_message_id, reply.metadata.dst_node_id) == ("seven", 1)
    np.testing.assert_array_equal(reply.content.array_records["arrays"]["w"].numpy(), big)


def test_an_error_is_received() -> None:
    error = Message(Error(3, "why"), reply_to=_request())
    reply, after = _passed(lambda there: send(there, error, RecordDict()))
    assert (reply.error.code, reply.error.reason, len(after)) == (3, "why", 0)


class _Writes:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (Path.write_text, (self.path, "written"))


def test_a_pickle_is_not_carried_out(tmp_path: Path) -> None:
    pickled = pickle.dumps((_Writes(tmp_path / "file"), 1))
    for sent in ([pickled], [b"content", pickled], [b"content", b"", pickled], [b"error", b"1", b"why", pickled]):
        with pytest.raises((FrameError, EOFError)):
            _passed(lambda there, sent=sent: [there.send_bytes(frame) for frame in sent])  # type: ignore[misc]
    assert not (tmp_path / "file").exists()
    pickle.loads(pickled)  # as the file would have been written
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize("frames", [[b"nothing"], [b"error", b"x", b"why", b""], [b"content", b"\xff\xff\xff"]])
def test_nonsense_is_an_error(frames: list[bytes]) -> None:
    with pytest.raises(FrameError):
        _passed(lambda there: [there.send_bytes(frame) for frame in frames])


def test_more_than_it_may_is_an_error() -> None:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(1000))})})
    message = Message(content, reply_to=_request())
    send_it: Callable[[Connection], object] = lambda there: send(there, message, RecordDict())  # noqa: E731
    assert _passed(send_it, 10_000)[0].content.object_id == content.object_id
    with pytest.raises(FrameError, match="more bytes than it may"):
        _passed(send_it, 8_000)
