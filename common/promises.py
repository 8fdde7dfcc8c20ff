"""Promises that a class makes about itself, on privacy and on transfer to another dataset. They are not inherited.

A promise is a static method defined in the class's own body, or a shared helper function assigned there. It takes the
method's hyper-parameters and returns the reason why the promise does not hold, or "" if it holds. A subclass may send
or compute something else, so the promises of its base class do not count for it.
"""

from __future__ import annotations

from typing import Any


def gap(owner: type, promise: str, hyper: Any) -> str:
    """Return the reason why a class does not keep a promise, or "" if it does.

    Args:
        owner: the class; only promises in its own body count.
        promise: name of the promise's static method, such as "example_gap".
        hyper: the method's hyper-parameters.
    """
    stated = vars(owner).get(promise)
    if stated is None:
        return f"{owner.__name__} does not state {promise}, and what its base states does not count for it"
    if not isinstance(stated, staticmethod):
        raise TypeError(f"{owner.__name__}.{promise} must be a static method that takes the hyper-parameters")
    broken = stated.__func__(hyper)
    if not isinstance(broken, str):
        raise TypeError(f"{owner.__name__}.{promise} must return a text, empty if it is kept (found: {broken!r})")
    return broken
