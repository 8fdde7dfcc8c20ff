"""A hash of the content of files, by which caches know them: size and time alone do not tell changed files apart.

Copies that keep times, archives, synchronisation and images of containers leave a corrected file with the size and time
of the old one. What such a tool cannot keep is the time at which the system changed the file's entry (ctime). So the
hash of unchanged entries is remembered, and files are read again only when an entry has changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from florilegium.common.errors import DataError
from florilegium.common.files import make_once

_SETTLED = 2.0
"""Seconds after which a file that changes again gets another ctime on every file system."""
_remembered: dict[str, str] = {}


def content_of(files: Sequence[Path], cache: Path | None = None) -> str:
    """Return a hash of the names and contents of ``files``, 64 hex digits.

    Args:
        files: the files, in order.
        cache: folder in which hashes are remembered for other processes; None: in this process alone.

    Raises:
        DataError: if a file cannot be read, or changes while it is read.
    """
    before = _entries(files)
    key = hashlib.sha256(json.dumps(before).encode()).hexdigest()
    latest = max((changed for *_, changed in before), default=0)
    if time.time() - latest / 1e9 < _SETTLED:  # another change might leave the same entry
        return _read(files, before)
    if cache is not None:
        target = cache / "contents" / key
        return make_once(target, lambda: _read(files, before), _write).read_text(encoding="utf-8")
    if key not in _remembered:
        _remembered[key] = _read(files, before)
    return _remembered[key]


def _write(found: str, path: Path) -> None:
    path.write_text(found, encoding="utf-8")


def _entries(files: Sequence[Path]) -> list[tuple[str, int, int, int, int, int]]:
    """Return name, device, inode, size and both times of each file."""
    try:
        found = [(str(file), file.stat()) for file in files]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error
    return [(name, one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in found]


def _read(files: Sequence[Path], before: object) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from error
        digest.update(f"{file}\n{content}\n".encode())
    if _entries(files) != before:
        raise changed(str(files[0].parent))
    return digest.hexdigest()


def changed(where: str) -> DataError:
    """Return the error for files that have changed while they were read."""
    return DataError(f"{where}: files have changed while they were read; begin again when they are complete")
