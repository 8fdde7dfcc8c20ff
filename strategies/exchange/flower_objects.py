"""The objects that Flower makes of a message, a few at a time in memory on their way to the SuperLink and from there.

Flower's own functions hold the contents of all objects of a message at once, where they send as where they receive: for
a model that is some copies of it. Here the chunks of arrays lie in a file until the message is put together, and memory
that is free again goes back to the system.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Event, Lock, Semaphore
from typing import cast

from flwr.app import Array, Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)

from florilegium.common.memory import Passing, settle
from florilegium.common.spool import LARGE, Spool, opened, spooled, unwritten
from florilegium.strategies.exchange.flower_inside import bear_internal_errors

FIRST_RETRY = 0.05
"""Seconds after which an object that has not arrived at the SuperLink yet is asked for again; then twice as long."""
_SMALL = 1 << 16
"""The most bytes of an object that stays in memory."""
_IN_THE_AIR = 4
"""The most objects whose contents are in memory while a message is sent."""


def use_files(grid: Grid) -> None:
    """Let a ServerApp's connection to the SuperLink send and receive with these functions."""
    from flwr.superlink.grid import http_grid  # only where messages are sent

    ours = {"pull_objects": pull, "push_objects": push, "inflate_object_from_contents": put_together}
    if all(hasattr(http_grid, name) for name in ours):  # other versions of Flower may lack them
        for name, function in ours.items():
            setattr(http_grid, name, function)
        settle()
    if invoker := getattr(grid, "_retry_invoker", None):
        bear_internal_errors(invoker)


class Contents(dict[str, bytes]):
    """The contents of objects by their ids; :meth:`keep` puts those that are not small in a file."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, tuple[int, int]] = {}
        self._lock, self._end = Lock(), 0
        self._file = opened()

    def keep(self, name: str, content: bytes) -> None:
        """Add an object. Several threads may do so at a time.

        Raises:
            FileError: if the file cannot be written.
        """
        if len(content) <= _SMALL:
            self[name] = content
            return
        with self._lock:
            start, self._end = self._end, self._end + len(content)
        try:
            _write(self._file.fileno(), content, start)
        except OSError as error:
            raise unwritten(error) from error
        self._places[name] = (start, len(content))
        self[name] = b""

    def __getitem__(self, name: str) -> bytes:
        """Return an object's content, from the file if it is there."""
        held = super().__getitem__(name)
        if held or name not in self._places:
            return held
        start, size = self._places[name]
        return os.pread(self._file.fileno(), size, start)

    def size(self, name: str) -> int:
        """Return the bytes of an object's content."""
        return self._places[name][1] if name in self._places else len(super().__getitem__(name))

    def arrays(self) -> Iterator[tuple[str, bytes]]:
        """Return the ids and contents of the objects that are arrays, whose numbers are in chunks."""
        small = [(name, content) for name, content in self.items() if content]
        return ((n, c) for n, c in small if get_object_head_values_from_object_content(c)[0] == Array.__qualname__)


def _write(file: int, content: bytes, start: int) -> None:
    """Write ``content`` at ``start`` of a file, which the system may do in parts."""
    left = memoryview(content)
    while left:
        done = os.pwrite(file, left, start)
        left, start = left[done:], start + done


def pull(object_ids: Iterable[str], pull_object_fn: Callable[[str], bytes]) -> Contents:
    """Return the contents of the objects of these ids; has Flower's name for its arguments, since it takes its place.

    Raises:
        Exception: of several kinds, if the SuperLink does not have all of them.
    """
    contents, passing = Contents(), Passing()

    def keep(name: str) -> bytes:
        content = pull_object_fn(name)
        contents.keep(name, content)
        passing.add(len(content))
        return b""

    pull_objects([*dict.fromkeys(object_ids)], keep, initial_backoff=FIRST_RETRY)
    return contents


def put_together(name: str, contents: Contents) -> Message:
    """Return a received message, of the contents of its objects by their ids, with its large arrays in files.

    Raises:
        Exception: of several kinds, if something is lacking or malformed.
    """
    files, stand_ins = dict[bytes, Spool](), dict[str, InflatableObject]()
    for one, content in contents.arrays():
        told = json.loads(get_object_body(content, Array))
        parts = get_object_head_values_from_object_content(content)[1]
        chunks = [parts[index] for index in told["arraychunk_ids"]]
        if sum(map(contents.size, chunks)) >= LARGE:
            files[one.encode()] = spooled(get_object_body(contents[chunk], ArrayChunk) for chunk in chunks)
            stand_ins[one] = Array(told["dtype"], tuple(told["shape"]), told["stype"], one.encode())
    message = inflate_object_from_contents(name, contents, objects=stand_ins)
    if not isinstance(message, Message):
        raise TypeError(f"received was a {type(message).__name__} in place of a message")
    for record in message.content.array_records.values() if files and message.has_content() else ():
        for array in record.values():
            if array.data in files:  # Flower takes arrays of bytes alone, so that it was given their names
                array.data = cast(bytes, files[array.data])
    return message


def push(
    objects: Mapping[str, InflatableObject],
    push_object_fn: Callable[[str, bytes], None],
    object_ids_to_push: Iterable[str] | None = None,
) -> None:
    """Send objects; has Flower's names for its arguments, since it takes its place.

    Args:
        objects: a message's, by id; children before those that have them.
        push_object_fn: sends one, of an id and its content.
        object_ids_to_push: those that the SuperLink lacks; None: it lacks all.

    Raises:
        Exception: of several kinds, if one cannot be sent.
    """
    room, failed, passing = Semaphore(_IN_THE_AIR), Event(), Passing()
    wanted = None if object_ids_to_push is None else {*object_ids_to_push}

    def contents() -> Iterator[tuple[str, bytes]]:
        for name, one in objects.items():
            if wanted is None or name in wanted:
                room.acquire()
                if failed.is_set():
                    return
                yield name, one.deflate()

    def send(name: str, content: bytes) -> None:
        try:
            push_object_fn(name, content)
            passing.add(len(content))
        except BaseException:
            failed.set()
            raise
        finally:
            room.release()

    push_object_contents_from_iterable(contents(), send)
