"""Marks public functions and classes that a later version removes: since when, until when, and what to use instead.

``docs/stability.md`` lists what is marked, and a test fails once the version or day has come (``docs/generate``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any, TypeVar

import typing_extensions

T = TypeVar("T", bound=Callable[..., Any])


def deprecated(instead: str, *, since: str, until: str, day: str) -> Callable[[T], T]:
    """Return a decorator of a function or class: each call warns with ``DeprecationWarning``, which names all four.

    The arguments are literals, so that the documentation reads them without importing the module.

    Args:
        instead: what to use.
        since: the first version that warns, such as ``"0.3.0"``.
        until: the first version that may lack it.
        day: the first day on which it may be gone, such as ``"2027-06-01"``.

    Raises:
        ValueError: if ``day`` is no date, or ``until`` is not above ``since``.
    """
    date.fromisoformat(day)
    if numbers(until) <= numbers(since):
        raise ValueError(f"until: expected a version above {since} (found: {until})")

    def mark(what: T) -> T:
        told = (
            f"{what.__qualname__} is deprecated since {since} and may be gone from {until} on, after {day}; {instead}"
        )
        return typing_extensions.deprecated(told)(what)

    return mark


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as ``"0.3.0"``, which compare as versions do."""
    return tuple(int(part) for part in version.split("."))
