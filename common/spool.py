"""Large bytes and arrays in files without names, whose pages the system takes back when it needs memory.

A file lies in the folder for temporary files (environment variable ``TMPDIR``), is deleted as soon as it is opened, and
is gone with the last process that maps it, however that ends.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from mmap import ACCESS_COPY, ACCESS_READ, ACCESS_WRITE, mmap
from pickle import PickleBuffer
from typing import Any, BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import FileError

LARGE = 1 << 26
"""Bytes from which on arrays that belong together are worth a file."""
ALIGNED = 64
"""Each array of a file begins at a multiple of this number of bytes."""


class Spool(mmap):
    """Bytes in a file without a name, which can be read but not changed.

    A pickle has the bytes themselves. Where buffers are passed beside it, as Ray does, large ones are read into a file,
    and a process of the same machine can be given the file instead.

    Args:
        file: the file, of one byte or more.

    Attributes:
        file: the file.
    """

    file: BinaryIO

    def __new__(cls, file: BinaryIO) -> Self:
        """Map the file."""
        made = super().__new__(cls, file.fileno(), 0, access=ACCESS_READ)
        made.file = file
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Return what makes a copy of the bytes, or this object where buffers are passed beside a pickle."""
        return (_as_given, (PickleBuffer(self),)) if protocol >= 5 else (bytes, (self[:],))

    def private(self) -> mmap:
        """Return the bytes so that they can be changed for the caller alone; only changed pages take up memory."""
        return mmap(self.file.fileno(), 0, access=ACCESS_COPY)


def _as_given(buffer: Any) -> Any:
    if isinstance(buffer, Spool | bytes):
        return buffer
    return spooled([buffer]) if memoryview(buffer).nbytes >= LARGE else bytes(buffer)


def spooled(parts: Iterable[Any]) -> Spool:
    """Return the bytes of ``parts``, objects that have their bytes in one piece, one after the other in a file.

    Raises:
        FileError: if it cannot be written.
    """
    file = opened()
    try:
        for part in parts:
            file.write(part)
        file.flush()
    except OSError as error:
        raise unwritten(error) from error
    return Spool(file)


def kept(arrays: Iterable[tuple[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return arrays, given with their names, in a file; they are contiguous, and can be changed for the caller alone.

    One at a time needs to be in memory.

    Raises:
        FileError: if the file cannot be written.
    """
    layout: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []

    def parts() -> Iterator[Any]:
        for name, array in arrays:
            layout.append((name, array.dtype, array.shape))
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            yield bytes(-array.nbytes % ALIGNED)

    memory, found, start = spooled(parts()).private(), dict[str, NDArray[Any]](), 0
    for name, dtype, shape in layout:
        values = np.frombuffer(memory, dtype, math.prod(shape), start) if math.prod(shape) else np.empty(0, dtype)
        found[name] = values.reshape(shape)
        start += -(-values.nbytes // ALIGNED) * ALIGNED
    return found


def zeros(shapes: Mapping[str, tuple[int, ...]], dtype: Any = np.float64) -> dict[str, NDArray[Any]]:
    """Return arrays of zeros by name: together in a file if they have :data:`LARGE` bytes or more, else in memory.

    Args:
        shapes: their shapes, by name.
        dtype: the type of all, or a mapping with that of each.

    Raises:
        FileError: if the file cannot be made.
    """
    each = dtype if isinstance(dtype, Mapping) else dict.fromkeys(shapes, dtype)
    kinds, places, size = {name: np.dtype(each[name]) for name in shapes}, dict[str, int](), 0
    for name, shape in shapes.items():
        places[name], size = size, size - (-math.prod(shape) * kinds[name].itemsize // ALIGNED) * ALIGNED
    if size < LARGE:
        return {name: np.zeros(shape, kinds[name]) for name, shape in shapes.items()}
    file = opened()
    try:
        _reserve(file, size)
        memory = mmap(file.fileno(), size, access=ACCESS_WRITE)
    except OSError as error:
        raise unwritten(error) from error
    finally:
        file.close()
    return {
        name: np.frombuffer(memory, kinds[name], math.prod(shape), places[name]).reshape(shape)
        for name, shape in shapes.items()
    }


def _reserve(file: BinaryIO, size: int) -> None:
    """Give a file a size; where the disk is full, that is an error now, and no dead process later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def opened() -> BinaryIO:
    """Return a file without a name; raise :class:`FileError` if it cannot be made."""
    try:
        return cast(BinaryIO, tempfile.TemporaryFile())
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> FileError:
    """Return the error of a file without a name that could not be made or written."""
    return FileError(
        f"cannot write a temporary file in {tempfile.gettempdir()} ({error.strerror}): free some space, or set the "
        "environment variable TMPDIR to a folder on a larger disk"
    )
