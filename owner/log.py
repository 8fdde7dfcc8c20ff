"""The owner's log: JSON lines, each with the hash of the one before and a signature; a signed head says how many.

Somebody without the key cannot add or change a line unseen. A cut tail is found by the head, a file of its own; whoever
can also put an older head in its place is found by a head that was noted elsewhere (``verify --head``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from filelock import FileLock

from florilegium.common.errors import DataError, FileError
from florilegium.common.files import write_text
from florilegium.owner.keys import has_signed, public, signed

FIRST = "0" * 64
"""What the first line has in place of the hash of the one before."""
SIGNATURE = "signature"


@dataclass(frozen=True)
class Head:
    """How far a log goes: the number of its lines, and the hash of the last one."""

    count: int
    hash: str

    def __str__(self) -> str:
        return f"{self.count}:{self.hash}"

    @staticmethod
    def of(text: str) -> Head:
        """Read ``count:hash``.

        Raises:
            DataError: if it is something else.
        """
        count, _, digest = text.partition(":")
        if not count.isdecimal() or len(digest) != len(FIRST):
            raise DataError(f"'{text}' is no head of a log: write the number of its lines, ':' and 64 digits")
        return Head(int(count), digest)


EMPTY = Head(0, FIRST)


class Log:
    """Writes the log; several processes may do so.

    Args:
        path: the file; its head is beside it.
        key: signs the lines.
    """

    def __init__(self, path: Path, key: Ed25519PrivateKey) -> None:
        self._path, self._key = path, key
        self._lock = FileLock(f"{path}.lock")

    def add(self, what: str, **facts: Any) -> None:
        """Append a line and flush it to disk.

        Args:
            what: what has happened: "run", "request", "reply", "refused", …
            facts: what there is to say, as JSON.

        Raises:
            DataError: if the log does not end where its head says: it was changed, and nothing is added.
            FileError: if it cannot be written.
        """
        with self._lock:
            last = self._last()
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            entry: dict[str, Any] = {"n": last.count + 1, "at": at, "what": what, **facts, "before": last.hash}
            line = _line(entry | {SIGNATURE: signed(self._key, _line(entry))})
            try:
                with open(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                    file.write(line + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise FileError(f"cannot write the owner's log {self._path}: {error.strerror}") from error
            self._write_head(Head(last.count + 1, _hash(line)))

    def _last(self) -> Head:
        """Return where the log ends; a last line that a power cut has torn is removed first."""
        head = read_head(self._path, public(self._key))
        size = self._path.stat().st_size if self._path.exists() else 0
        last, before = EMPTY, FIRST
        if size:
            with self._path.open("rb+") as file:
                whole, torn = _last_lines(file, size)
                if torn:
                    file.truncate(size - len(torn))
            if whole:
                found = _parsed(whole, -1, self._path)
                last, before = Head(int(found["n"]), _hash(whole)), str(found["before"])
        # The power may have gone after a line was written, and before its head.
        if head not in (last, Head(last.count - 1, before)):
            raise DataError(f"{self._path} does not end where its head says: it was changed; keep both files")
        return last

    def _write_head(self, head: Head) -> None:
        content = vars(head) | {SIGNATURE: signed(self._key, _line(vars(head)))}
        write_text(_head_file(self._path), json.dumps(content) + "\n", private=True)


def read_head(path: Path, key: str) -> Head:
    """Return the head of the log ``path``, signed by ``key``; :data:`EMPTY` if there is none.

    Raises:
        DataError: if another key, or none, has signed it.
    """
    file = _head_file(path)
    if not file.exists():
        return EMPTY
    try:
        found = json.loads(file.read_bytes())
        head = Head(int(found["count"]), str(found["hash"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is no head of a log ({error})") from error
    if not has_signed(key, found.get(SIGNATURE), _line(vars(head))):
        raise DataError(f"{file}: this device's key has not signed it")
    return head


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log, unchecked.

    Raises:
        DataError: if there is no log, or a line is no JSON object.
    """
    if not path.exists():
        raise DataError(f"there is no log {path} yet: `florilegium device serve --owner` writes it")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield _parsed(line, number, path)


def verify_log(path: Path, key: str, *, noted: Head | None = None) -> Head:
    """Check a whole log: every line's number, hash and signature, and that it ends where its head says.

    Args:
        path: the log.
        key: public half of the device's key.
        noted: a head that was noted earlier, elsewhere; None: none.

    Raises:
        DataError: naming the first line that is not as it was written, or what is missing.
    """
    last, head = EMPTY, read_head(path, key)
    wanted = [head, *([noted] if noted else [])]
    hashes = {one.count: FIRST if not one.count else "" for one in wanted}
    for entry in read_log(path) if path.exists() else ():
        number, signature = last.count + 1, entry.pop(SIGNATURE, None)
        if entry.get("n") != number or entry.get("before") != last.hash:
            raise DataError(f"{path}: line {number} does not follow the one before: lines were removed or replaced")
        if not has_signed(key, signature, _line(entry)):
            raise DataError(f"{path}: line {number} was changed: its signature is not that of this device")
        last = Head(number, _hash(_line(entry | {SIGNATURE: signature})))
        if number in hashes:
            hashes[number] = last.hash
    for one in wanted:
        if one.count > last.count:
            raise DataError(f"{path} has {last.count} lines, but {one.count} were written: its tail was cut")
        if hashes[one.count] != one.hash:
            raise DataError(f"{path}: line {one.count} is another than was written: the tail was replaced")
    if head.count < last.count - 1:  # between a line and its head the power may go
        raise DataError(f"{path} has {last.count} lines, but its head counts {head.count}: the head is an older one")
    return last


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=True, separators=(",", ":")).encode()


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _parsed(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{path}: line {number} is no entry of a log; a power cut tears at most the last one")
    return found


def _last_lines(file: BinaryIO, size: int) -> tuple[bytes, bytes]:
    """Return the last whole line of a file of ``size`` bytes, without its end, and what follows it."""
    length = 1 << 16
    while True:
        start = max(0, size - length)
        file.seek(start)
        found, _, torn = file.read().rpartition(b"\n")
        if b"\n" in found or not start:
            return found.rpartition(b"\n")[2], torn
        length *= 4


def _head_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}.head")
