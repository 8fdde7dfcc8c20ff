"""Write files atomically, to a temporary file beside the target that is then renamed; and append to files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from florilegium.common.errors import DataError, FileError
from florilegium.common.spool import LARGE, kept

T = TypeVar("T")


class Draft:
    """The new content of a file, in a temporary file beside it; the file itself is unchanged until :meth:`publish`.

    Args:
        path: the file; or a new folder, which appears whole.
        write: fills the temporary file or folder, whose path it is given.

    Raises:
        FileError: if the file cannot be written (disk full, no permission). Nothing is left then.
    """

    def __init__(self, path: Path, write: Callable[[Path], object]) -> None:
        self._path, self._temporary = path, path.parent / f".{path.name}.{uuid4().hex[:16]}"
        self._flushed = False
        with self._all_or_nothing():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(self._temporary)

    @property
    def unpublished(self) -> bool:
        """Whether the temporary file or folder is still there."""
        return self._temporary.exists()

    def publish(self) -> None:
        """Flush the temporary file to disk, unless that is done, and rename it to the file.

        Raises:
            FileError: if that cannot be done. The file is then unchanged.
        """
        if not self._flushed:
            self.flush()
        with self._all_or_nothing():
            self._temporary.replace(self._path)

    def flush(self) -> None:
        """Flush the temporary file to disk; raise :class:`FileError` if that cannot be done."""
        with self._all_or_nothing():
            for path in (self._temporary, *self._temporary.rglob("*")):
                if path.is_file():
                    flush_to_disk(path)
        self._flushed = True

    def discard(self) -> None:
        """Delete the temporary file or folder, if the draft was not published."""
        with suppress(OSError):
            if self._temporary.is_dir():
                shutil.rmtree(self._temporary)
            else:
                self._temporary.unlink()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError | SafetensorError):
                raise _unwritten(self._path, error, "nothing was left half-written") from error
            raise


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk, and rename it to ``path``.

    Raises:
        FileError: if the file cannot be written (disk full, no permission). ``path`` is then unchanged.
    """
    Draft(path, write).publish()


def make_once(target: Path, make: Callable[[], T], write: Callable[[T, Path], object]) -> Path:
    """Return ``target``, a file or folder of the cache; make it unless it is there, one process at a time.

    Args:
        target: the file or folder; it appears whole, or not at all.
        make: returns its content.
        write: writes the content to a temporary file, or makes and fills a temporary folder, whose path it is given.

    Raises:
        DataError: if the folder of the cache cannot be made.
        FileError: if the content cannot be written.
    """
    if not target.exists():
        cache = target.parent
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"cache-dir: {cache} cannot be made ({error.strerror}); name another folder") from error
        with FileLock(cache / f".{target.name}.lock"):
            if not target.exists():
                write_atomically(target, partial(write, make()))
    return target


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write ``text`` to ``path`` atomically, as UTF-8; ``private``: others than owner and group cannot read it."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")
        if private:
            restrict(temporary)

    write_atomically(path, write)


def restrict(path: Path) -> None:
    """Let nobody but the owner change a file, and nobody but the owner and the group read it: mode 0640 at most."""
    path.chmod(path.stat().st_mode & 0o640)


def overwrite_text(path: Path, text: str) -> None:
    """Write ``text`` over a small file in place: on a full disk there is no room for another one beside it.

    Use it only where the alternative is a file that says what is no longer true.

    Raises:
        FileError: if it cannot be written.
    """
    try:
        with path.open("r+", encoding="utf-8") as file:
            file.write(text)
            file.truncate()
    except OSError as error:
        raise _unwritten(path, error, "it is as it was") from error


def append_text(path: Path, text: str, *, private: bool = False) -> None:
    """Append whole lines to ``path``, as UTF-8; after a power cut the last ones may be torn or missing.

    Args:
        path: the file, which is made if it is not there.
        text: the lines.
        private: whether others than owner and group cannot read it.

    Raises:
        FileError: if the file cannot be written (disk full, no permission).
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            if private:
                restrict(path)
            file.write(text)
    except OSError as error:
        raise _unwritten(path, error, "its last line may be incomplete") from error


def flush_to_disk(path: Path) -> None:
    """Make sure that what was appended to ``path`` outlasts a power cut; do nothing if there is no such file."""
    if path.exists():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _unwritten(path: Path, error: Exception, left: str) -> FileError:
    reason = getattr(error, "strerror", None) or error
    return FileError(
        f"cannot write {path}: {reason}. Free some space or choose another folder (keys runs-dir, state-dir, "
        f"cache-dir); {left}."
    )


_CHECKSUM = "checksum"


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write named ``arrays`` and ``metadata`` to ``path`` atomically, as safetensors, with a checksum over both."""
    draft_tensors(path, arrays, metadata).publish()


def draft_tensors(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> Draft:
    """Return a draft of what :func:`write_tensors` writes; models and states are their owner's (:func:`restrict`)."""
    # safetensors writes the raw memory, which matches the declared shape only in C order.
    ordered = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    told = {**(metadata or {}), _CHECKSUM: _checksum(ordered, ordered.__getitem__, metadata or {})}

    def write(temporary: Path) -> None:
        save_file(ordered, temporary, metadata=told)
        restrict(temporary)

    return Draft(path, write)


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays and metadata that :func:`write_tensors` wrote to ``path``; the arrays in no certain order.

    Large arrays lie in a temporary file, since ``path`` may be deleted or written anew.

    Raises:
        ValueError: if the checksum is wrong, or an earlier version has written the file without one.
        Exception: of several kinds, if it cannot be read.
    """
    with safe_open(path, framework="numpy") as file:
        read = ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 (no mapping)
        arrays = kept(read) if path.stat().st_size >= LARGE else dict(read)
        return arrays, _checked(file.metadata(), arrays, arrays.__getitem__)


def check_tensors(path: Path) -> dict[str, str]:
    """Return the metadata of a file; raise as :func:`read_tensors`. Its arrays are read one at a time."""
    with safe_open(path, framework="numpy") as file:
        return _checked(file.metadata(), file.keys(), file.get_tensor)


def _checked(
    metadata: Mapping[str, str] | None, names: Iterable[str], read: Callable[[str], NDArray[Any]]
) -> dict[str, str]:
    found = dict(metadata or {})
    if (said := found.pop(_CHECKSUM, None)) is None:
        raise ValueError("it has no checksum, as files of versions up to 0.2.0, which alone can read them")
    if said != _checksum(names, read, found):
        raise ValueError("its checksum is wrong")
    return found


def _checksum(names: Iterable[str], read: Callable[[str], NDArray[Any]], metadata: Mapping[str, str]) -> str:
    found = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name in sorted(names):
        array = read(name)
        found.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()
