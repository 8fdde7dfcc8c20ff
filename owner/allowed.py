"""The values that a policy allows for a key of a run's configuration: one, a list of them, a range, or any."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from florilegium.common.settings import Value

ANY = "any"
_KINDS = (bool, int, float, str)


def problem(allowed: object) -> str:
    """Return what is wrong with an entry of table ``[runs.keys]``; "" if nothing is."""
    if isinstance(allowed, Mapping):
        if unknown := allowed.keys() - {"min", "max"}:
            return f"a range has 'min' and 'max', not '{min(unknown)}'"
        numbers = [*allowed.values()]
        if not numbers or not all(type(one) in (int, float) and not math.isnan(one) for one in numbers):
            return "a range is a table of numbers, such as { min = 1, max = 50 }"
        return "" if allowed.get("min", -math.inf) <= allowed.get("max", math.inf) else "its 'min' is above its 'max'"
    if isinstance(allowed, list):
        return "" if allowed and all(type(one) in _KINDS for one in allowed) else "a list has values, at least one"
    return "" if type(allowed) in _KINDS else 'write a value, a list of values, a range { min, max }, or "any"'


def allows(allowed: Any, found: Value) -> bool:
    """Return whether a value is among those that are allowed; true and 1 differ, 1 and 1.0 do not."""
    if isinstance(allowed, Mapping):
        number = not isinstance(found, bool | str) and not math.isnan(found)
        return number and allowed.get("min", -math.inf) <= found <= allowed.get("max", math.inf)
    if isinstance(allowed, list):
        return any(_same(one, found) for one in allowed)
    return allowed == ANY or _same(allowed, found)


def described(allowed: Any) -> str:
    """Return the allowed values in words."""
    if isinstance(allowed, Mapping):
        return " and ".join(
            f"{'at least' if end == 'min' else 'at most'} {allowed[end]:g}" for end in sorted(allowed, reverse=True)
        )
    if isinstance(allowed, list):
        return " or ".join(map(repr, allowed))
    return "any value" if allowed == ANY else repr(allowed)


def _same(one: Value, other: Value) -> bool:
    kinds = {type(one), type(other)}
    return one == other and (len(kinds) == 1 or kinds == {int, float})
