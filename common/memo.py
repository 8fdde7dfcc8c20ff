"""Results that a process remembers until the next run begins in it.

A worker process serves one run. A notebook carries out many, and between two of them files, functions and classes may
change without changing their names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import Any, TypeVar

T = TypeVar("T")

_REMEMBERED: list[_lru_cache_wrapper[Any]] = []


def remembered(size: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """Return a decorator that remembers a function's last ``size`` results by its arguments, until :func:`forget`."""

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        cached = lru_cache(maxsize=size)(function)
        _REMEMBERED.append(cached)
        return cached

    return decorate


def forget() -> None:
    """Forget all remembered results."""
    for cached in _REMEMBERED:
        cached.cache_clear()
