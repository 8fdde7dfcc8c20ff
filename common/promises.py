"""What a class promises of itself: privacy, transfer. A promise counts only where the class states it; never inherited.

A promise is a static method of the class's own body, or a shared helper that is named there. It takes the method's
hyper-parameters and returns what breaks the promise, "" if nothing does. A subclass may send or compute anything else,
so that what its base promises says nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Promise = Callable[[Any], str]


def gap(owner: type, promise: str, hyper: Any) -> str:
    """Return what breaks the ``promise`` of a class, by what stands in its own body.

    Args:
        owner: the class.
        promise: the name of its static method, such as "example_gap".
        hyper: the method's hyper-parameters.
    """
    stated = vars(owner).get(promise)
    if stated is None:
        return f"{owner.__name__} does not state {promise}, and what its base states does not count for it"
    function: Promise = stated.__func__ if isinstance(stated, staticmethod) else stated
    return function(hyper)
