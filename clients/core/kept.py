"""What a process keeps of clients' examples between the requests of a run, such as rows that are ready for sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

LIMIT = 256 * 2**20
"""Bytes that a process keeps of all its clients together."""


class Kept:
    """One value of each client, as long as all fit together; what does not fit is made anew for each request.

    Nothing is pushed out: where clients take turns, the oldest value would be needed next.

    Args:
        limit: most bytes of all values together.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit, self._used = limit, 0
        self._values: dict[str, tuple[bytes, Any, int]] = {}

    def get(self, client: str, key: bytes, make: Callable[[T | None], tuple[T, int]]) -> T:
        """Return a client's value.

        Args:
            client: the client's id.
            key: what the value depends on besides the client's examples; another one replaces the value.
            make: returns value and size in bytes, if none of this key is kept; it is given that of the key before.
        """
        if client in self._values and self._values[client][0] == key:
            kept: T = self._values[client][1]
            return kept
        _, before, freed = self._values.pop(client, (b"", None, 0))
        self._used -= freed
        value, size = make(before)
        if self._used + size <= self._limit:
            self._values[client] = key, value, size
            self._used += size
        return value
