"""A compression scheme: from an update to the bytes of a message, and back; the same on both sides.

The message of a client consists of a bit for each array that it was sent, which says whether it returns an update of
it, and of what the scheme makes of these arrays, in the order of their names. Number and sizes of all parts follow from
the arrays that were sent, so that a message describes nothing and no message can be read as more than was sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.wire import bounded
from florilegium.common.blocks import fill
from florilegium.common.spool import zeros
from florilegium.models.parameters import Arrays, is_statistic

Bytes = NDArray[np.uint8]
Floats = NDArray[Any]
"""An array of single or double precision."""

COMPRESSED = "compressed"
"""Name of the only array of a compressed reply: the messages of the node's clients, one after the other."""


class Reader:
    """Takes the parts of received messages one after the other."""

    def __init__(self, data: Bytes) -> None:
        self._data, self._start = data, 0

    @property
    def left(self) -> int:
        """Number of bytes that were not taken yet."""
        return len(self._data) - self._start

    def take(self, count: int, dtype: Any = np.uint8) -> NDArray[Any]:
        """Return the next ``count`` entries of type ``dtype``, (count,).

        Raises:
            ValueError: if the message is too short.
        """
        size = count * np.dtype(dtype).itemsize
        if size > self.left:
            raise ValueError(f"a compressed update ends {size - self.left} bytes too early")
        part = self._data[self._start : self._start + size]
        self._start += size
        return np.frombuffer(part.tobytes(), dtype)

    def numbers(self, count: int, dtype: Any) -> Floats:
        """Return the next ``count`` floating-point numbers.

        Raises:
            ValueError: if the message is too short, or one is not finite or too large.
        """
        found = self.take(count, dtype)
        if not bounded(found):
            raise ValueError("a compressed update has NaN, infinity or too large numbers")
        return found


class Scheme(ABC):
    """Compresses the update of a client array by array."""

    @abstractmethod
    def size(self, like: Floats) -> int:
        """Return the number of bytes that stand for an array of this shape and type."""

    @abstractmethod
    def pack(self, array: Floats, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Return the contiguous parts that stand for ``array``; what is random is drawn from ``rng``."""

    @abstractmethod
    def unpack(self, reader: Reader, like: Floats) -> Floats:
        """Return the array that the next parts of a message stand for, in the shape and type of ``like``.

        Raises:
            ValueError: if no array could have been packed so.
        """

    def whole(self, name: str, like: Floats) -> bool:
        """Return whether an array is sent as it is.

        These are running statistics of batch norm, where an error may make a variance negative; arrays that are not of
        single or double precision; and those that the scheme would not make smaller.
        """
        return is_statistic(name) or like.dtype.char not in "fd" or self.size(like) >= like.nbytes

    def message_size(self, returned: Arrays, sent: int) -> int:
        """Return the number of bytes of a client's message.

        Args:
            returned: arrays that it has received, and returns updates of.
            sent: the number of all arrays that it has received.
        """
        sizes = (like.nbytes if self.whole(name, like) else self.size(like) for name, like in returned.items())
        return -(-sent // 8) + sum(sizes)

    def compress(self, update: Arrays, sent: Arrays, rng: np.random.Generator) -> Bytes:
        """Return the message for an update.

        A large message lies in a file, and of the update only the parts of one array at a time are in memory.

        Args:
            update: the change of each array of ``sent`` that the client returns, in its shape; it is rounded to its
                type.
            sent: the arrays that the client has received.
            rng: the generator of random draws.
        """
        size = self.message_size({name: sent[name] for name in update}, len(sent))
        message: Bytes = zeros({"": (size,)}, np.uint8)[""]
        fill(message, (part.reshape(-1).view(np.uint8) for part in self._parts(update, sent, rng)))
        return message

    def _parts(self, update: Arrays, sent: Arrays, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
        names = sorted(sent)
        yield np.packbits([name in update for name in names])
        for name in names:
            if name in update:
                array = np.ascontiguousarray(update[name], sent[name].dtype)
                yield from [array] if self.whole(name, sent[name]) else self.pack(array, rng)

    def restore(self, reader: Reader, sent: Arrays) -> Arrays:
        """Return the whole update that the next message of ``reader`` stands for; see :meth:`restored`."""
        return dict(self.restored(reader, sent))

    def restored(self, reader: Reader, sent: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield name and update of each array that the next message of ``reader`` stands for.

        Args:
            reader: the messages.
            sent: the arrays that the client was sent.

        Raises:
            ValueError: if no client could have sent the message.
        """
        names = sorted(sent)
        returned = np.unpackbits(reader.take(-(-len(names) // 8)), count=len(names))
        for name, here in zip(names, returned, strict=True):
            like = sent[name]
            if here and self.whole(name, like):
                yield name, reader.take(like.size, like.dtype).reshape(like.shape)
            elif here:
                yield name, self.unpack(reader, like)
