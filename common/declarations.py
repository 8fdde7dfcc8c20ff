"""What a class declares of itself in its own body: a value, or a static method that makes it of the method's keys.

A declaration is not inherited: a subclass may send or compute anything else, so that what its bases declare does not
count for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def declared(owner: type, kind: type[T], hyper: Any) -> T | None:
    """Return what a class declares in its own body, None if it declares nothing.

    Args:
        owner: the class.
        kind: the type of the declaration, which stands under this type's name in lower case.
        hyper: the method's hyper-parameters, for declarations that depend on them.

    Raises:
        TypeError: if the declaration is of another type.
    """
    name = kind.__name__.lower()
    if name not in vars(owner):
        return None
    found = vars(owner)[name]
    found = found.__func__(hyper) if isinstance(found, staticmethod) else found
    if not isinstance(found, kind):
        raise TypeError(
            f"{owner.__name__}.{name} must be of type {kind.__name__}, or a static method that takes the "
            f"hyper-parameters and returns one (found: {found!r})"
        )
    return found


def gap(owner: type, kind: type[T], derive: Callable[[T], str], hyper: Any) -> str:
    """Return why something does not go with a class: what follows from its declaration, or that it has none.

    Args:
        owner, kind, hyper: those of :func:`declared`.
        derive: returns for a declaration the reason; "" if there is none.
    """
    found = declared(owner, kind, hyper)
    if found is None:
        return (
            f"{owner.__name__} does not state '{kind.__name__.lower()}', and what its base states does not count for it"
        )
    return derive(found)
