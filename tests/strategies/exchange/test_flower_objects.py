"""Messages that are sent and received with few of their objects in memory are those that Flower sends and receives."""

from __future__ import annotations

import hashlib
import tempfile
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid import http_grid

from florilegium.clients.core.wire import pack, unpack
from florilegium.common.errors import FileError
from florilegium.common.spool import Spool
from florilegium.strategies.exchange import flower_objects
from florilegium.strategies.exchange.flower_inside import identify
from florilegium.strategies.exchange.flower_objects import pull, push, put_together, use_files

SIZE = 12_000_000
ARRAYS = {"zeros": np.zeros(SIZE, np.uint8), "other": np.arange(SIZE // 4, dtype=np.float32), "small": np.ones(3)}


@pytest.fixture
def message() -> Message:
    """Two arrays of several chunks each, of which many are equal, and a small one."""
    identify()
    return Message(RecordDict({"arrays": pack(ARRAYS), "c": ConfigRecord({"a": 1})}), 5, "train")


@pytest.fixture
def contents(message: Message) -> dict[str, bytes]:
    return {name: one.deflate() for name, one in get_all_nested_objects(message).items()}


def _peak(act: Any) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("large", [True, False])
def test_a_message_is_received_as_by_flower(
    large: bool, message: Message, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large arrays take memory for a few chunks."""
    monkeypatch.setattr(flower_objects, "LARGE", SIZE if large else 1 << 40)
    theirs = cast(Message, inflate_object_from_contents(message.object_id, {**contents}))
    found: list[Message] = []

    def receive() -> None:  # each content is new bytes, as from a socket
        pulled = pull([*contents, *contents], lambda name: bytes(bytearray(contents[name])))
        found.append(put_together(message.object_id, pulled))

    peak = _peak(receive)
    # Three objects at a time are in memory at most: two that are pulled, or one and the part of it that is written.
    assert peak < 2 * SIZE if large else peak > 2 * SIZE
    (ours,) = found
    assert ours.content["c"] == theirs.content["c"]
    for name, array in unpack(ours.content.array_records["arrays"]).items():
        assert array.tobytes() == ARRAYS[name].tobytes()
        assert isinstance(ours.content.array_records["arrays"][name].data, Spool) == (large and name != "small")


def test_what_is_lacking_is_an_error(message: Message, contents: dict[str, bytes]) -> None:
    lacking = [name for name, content in contents.items() if not content.startswith(b"ArrayChunk")]
    with pytest.raises(KeyError):
        put_together(message.object_id, pull(lacking, contents.__getitem__))


def test_what_is_not_there_yet_is_asked_for_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: waits.append(timeout))
    asked: list[str] = []

    def fetch(name: str) -> bytes:
        asked.append(name)
        if len(asked) < 3:
            raise ObjectUnavailableError(name)
        return b"there"

    assert pull(["a"], fetch)["a"] == b"there"
    assert asked == ["a"] * 3
    assert [0.03 < wait < 0.13 for wait in waits if wait is not None] == [True, True]

    def never(name: str) -> bytes:
        raise ObjectPullError(name, "it is gone")

    with pytest.raises(ObjectPullError):
        pull(["a"], never)


def test_a_full_disk_is_said(contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(flower_objects.os, "pwrite", full)
    with pytest.raises(FileError, match=f"{tmp_path}.*No space left.*TMPDIR"):
        pull([*contents], contents.__getitem__)


def test_the_system_may_write_in_parts(contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    write = flower_objects.os.pwrite
    monkeypatch.setattr(flower_objects.os, "pwrite", lambda file, data, start: write(file, data[:100_000], start))
    assert {name: pull([name], contents.__getitem__)[name] for name in contents} == contents


def test_a_message_is_sent_as_by_flower(message: Message, contents: dict[str, bytes]) -> None:
    """Children come before those that have them, in whatever order threads send; only what is wanted is sent."""
    sent: dict[str, str] = {}

    def send(name: str, content: bytes) -> None:
        sent[name] = hashlib.sha256(content).hexdigest()

    objects = get_all_nested_objects(message)
    push(objects, send, object_ids_to_push=objects.keys())
    assert sent == {name: name for name in contents}
    sent.clear()
    push(objects, send, [message.object_id])
    assert [*sent] == [message.object_id]


def test_few_objects_of_a_message_are_in_memory_while_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        def deflate(self) -> bytes:
            return bytes(bytearray(1_000_000))

    objects: Any = {str(number): Part() for number in range(50)}
    received: list[str] = []
    assert _peak(lambda: push(objects, lambda name, _: received.append(name))) < 8_000_000
    assert sorted(received) == sorted(objects)


@pytest.mark.parametrize("at", [0, 7, 49])
def test_one_that_cannot_be_sent_is_an_error_and_no_wait(at: int) -> None:
    class Part:
        def deflate(self) -> bytes:
            return b"content"

    def send(name: str, _: bytes) -> None:
        if name == str(at):
            raise OSError("cut off")

    objects: Any = {str(number): Part() for number in range(50)}
    outcome: list[BaseException] = []

    def act() -> None:
        try:
            push(objects, send)
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(20)
    assert [str(error) for error in outcome] == ["cut off"]


@pytest.fixture
def _grid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pull_objects", "push_objects", "inflate_object_from_contents"):
        monkeypatch.setattr(http_grid, name, getattr(http_grid, name))


@pytest.mark.usefixtures("_grid")
def test_the_server_uses_them() -> None:
    use_files(SimpleNamespace())
    assert (http_grid.pull_objects, http_grid.push_objects) == (pull, push)
    assert http_grid.inflate_object_from_contents is put_together


@pytest.mark.usefixtures("_grid")
def test_another_version_of_flower_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = http_grid.pull_objects
    monkeypatch.delattr(http_grid, "push_objects")
    use_files(SimpleNamespace())
    assert http_grid.pull_objects is before
