"""What a class declares of itself in its own body: a value, or a static method that makes it of the method's keys.

A declaration is not inherited: a subclass may send or compute anything else, so that what its bases declare does not
count for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def gap(owner: type, kind: type[T], derive: Callable[[T], str], hyper: Any) -> str:
    """Return why something does not go with a class: what follows from its declaration, or that it has none.

    Args:
        owner: the class; only its own body counts.
        kind: the type of the declaration, which stands under this type's name in lower case.
        derive: returns for a declaration the reason; "" if there is none.
        hyper: the method's hyper-parameters, for declarations that depend on them.

    Raises:
        TypeError: if the declaration is of another type.
    """
    name = kind.__name__.lower()
    if name not in vars(owner):
        return f"{owner.__name__} does not state '{name}', and what its base states does not count for it"
    found = vars(owner)[name]
    found = found.__func__(hyper) if isinstance(found, staticmethod) else found
    if not isinstance(found, kind):
        raise TypeError(
            f"{owner.__name__}.{name} must be of type {kind.__name__}, or a static method that takes the "
            f"hyper-parameters and returns one (found: {found!r})"
        )
    return derive(found)
