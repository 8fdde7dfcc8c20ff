"""The gate: what may leave of a reply, made anew from what the supervisor itself has read, bounded and noised.

Nothing of the app's own encoding leaves: names, their order, types, texts and marks come from the request and the
policy; of the app's reply only numbers remain, the arrays' and those of figures that the policy names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from florilegium.clients.core.reports import ALWAYS
from florilegium.clients.core.secure_wire import STAGE, StageReply
from florilegium.clients.core.wire import (
    BESIDE,
    BYTES_DOWN,
    BYTES_UP,
    MOST_EXAMPLES,
    Announcement,
    Reply,
    Request,
    bounded,
)
from florilegium.common.foreign import printable
from florilegium.owner.asked import ROSTER, Asked
from florilegium.owner.denied import DeniedError
from florilegium.owner.figures import rounded
from florilegium.owner.policy import Policy, ReplyRule
from florilegium.privacy.ledger import SPENT
from florilegium.privacy.noise import draw, secret_generator

Arrays = Mapping[str, NDArray[Any]]
FAILED = "it failed; the device's log says why"
_EXAMPLES, _WEIGHT = "num-examples", "weight"
_WORD = re.compile("[0-9a-f]{0,64}")
_LAYOUT = 1 << 20
"""The longest layout of a masked reply, in characters."""


@dataclass(frozen=True)
class Leaving:
    """What leaves the device.

    Attributes:
        content: the content of the reply.
        bytes: bytes of its arrays.
        norm: norm of the arrays that the app returned, relative to a weight of 1; NaN if there are none to bound.
        rows: the number of examples that the app states.
        scaled: whether the arrays were scaled down.
        multiplier: noise ÷ sensitivity of what is released; None: nothing that noise protects.
        failure: why the app failed, for the owner's log alone.
    """

    content: RecordDict
    bytes: int = 0
    norm: float = math.nan
    rows: float = math.nan
    scaled: bool = False
    multiplier: float | None = None
    failure: str = ""


def passed(asked: Asked, content: RecordDict, policy: Policy, client: str) -> Leaving:
    """Return what leaves of a reply.

    Args:
        asked: the request.
        content: what the app's process has returned.
        policy: the policy.
        client: the device's client id.

    Raises:
        DeniedError: if nothing of it may leave.
    """
    masked = asked.rule is not None and asked.rule.masked
    work = {"outcome", "arrays", *(["secure"] if masked else [])}
    records = {ROSTER: {"roster"}, STAGE: {"secure"}}.get(asked.type, work)
    if other := {*content} - records:
        raise DeniedError("reply", f"the reply has a record '{printable(min(other), 80)}'")
    try:
        if asked.type == ROSTER:
            return _announced(Announcement.unpack(content), policy, client)
        if asked.type == STAGE:
            return _stage(StageReply.unpack(content), client)
        if not isinstance(content.get("arrays", ConfigRecord()), ConfigRecord | ArrayRecord):
            raise TypeError("its arrays are no arrays")
        reply = Reply.unpack(content, copy=False)
    except DeniedError:
        raise
    except Exception as error:  # an app may return anything
        raise DeniedError("reply", f"the reply cannot be read: {printable(error)}") from error
    assert asked.rule is not None
    assert asked.request is not None
    leaving = _work(reply, asked.request, asked.rule, policy, client)
    if masked and "secure" in content:
        leaving.content["secure"] = _layout(content)
    return leaving


def _layout(content: RecordDict) -> ConfigRecord:
    """Return the layout of a masked reply, which the app states: the gate cannot see into the sum."""
    layout = cast(Mapping[str, Any], content["secure"]).get("layout")
    if not isinstance(layout, str) or len(layout) > _LAYOUT:
        raise DeniedError("reply", "the layout of its masked sum is none")
    return ConfigRecord({"layout": layout})


def _announced(found: Announcement, policy: Policy, client: str) -> Leaving:
    if not found.pinned or found.clients not in ([], [client]):
        raise DeniedError("reply", "it announces other clients than this device's")
    if not all(_WORD.fullmatch(text) for text in (found.code, found.frozen)):
        raise DeniedError("reply", "it announces a hash that is none")
    if not found.clients:
        return Leaving(Announcement(True, found.code, packages=found.packages, wire=found.wire).pack())
    if not all(len(values) == 1 for values in (found.train, found.test, found.labeled, found.capacities)):
        raise DeniedError("reply", "it does not announce one number of examples")
    rows, stated = found.train[0], policy.data.announce
    if rows < policy.data.rows:
        raise DeniedError("data.rows", f"there are {rows} training examples; at least {policy.data.rows}")
    if stated:
        found = replace(found, train=[stated], test=[stated if found.test[0] else 0], validation=[])
    return Leaving(found.pack(), rows=rows)


def _stage(found: StageReply, client: str) -> Leaving:
    if {*found.messages, *found.failures} - {client}:
        raise DeniedError("reply", "it speaks for other clients than this device's")
    failures = dict.fromkeys(found.failures, FAILED)
    why = "; ".join(printable(reason) for reason in found.failures.values())
    size = sum(map(len, found.messages.values()))
    return Leaving(StageReply(found.messages, failures).pack(), size, failure=why)


def _work(reply: Reply, request: Request, rule: ReplyRule, policy: Policy, client: str) -> Leaving:
    mark = request.work.mark(request.phase)
    if [*reply.clients, *reply.failures] != [client]:
        raise DeniedError("reply", "it does not speak for this device's client alone")
    if reply.failures:
        why = reply.failures[client]
        said = SPENT if why.startswith(SPENT) else FAILED  # what the server does next depends on it
        return Leaving(Reply([], {}, {}, {client: said}, mark).pack(), failure=why)
    numbers = {name: values[0] for name, values in reply.metrics.items()}
    rows, weight = numbers.get(_EXAMPLES, math.nan), numbers.get(_WEIGHT, math.nan)
    if not rule.masked:
        _check_rows(rows, weight, policy)
    size = sum(array.nbytes for array in reply.arrays.values())
    if size > rule.bytes:
        raise DeniedError("reply.bytes", f"{size} bytes of arrays; at most {rule.bytes}")
    if reply.arrays and not rule.norm:
        raise DeniedError("reply.norm", f"phase '{rule.phase}' may return no arrays")
    arrays, bound = (
        (reply.arrays, None) if rule.masked or not reply.arrays else _bounded(reply.arrays, request, rule, weight)
    )
    stated = _stated(numbers, policy, weight, request.work.heaviest) if not rule.masked else {}
    if bound is not None and stated[_WEIGHT] != weight:
        arrays = {name: (array * (stated[_WEIGHT] / weight)).astype(array.dtype) for name, array in arrays.items()}
    figures = {name: rounded(value, rule.digits) for name, value in numbers.items() if name in rule.figures}
    down = sum(array.nbytes for array in (*request.arrays.values(), *request.scatter.values()))
    counted = {} if rule.masked else {**stated, BYTES_UP: float(size), BYTES_DOWN: float(down)}
    told = {name: [value] for name, value in {**counted, **figures}.items() if name in numbers}
    return Leaving(
        Reply([client], dict(arrays), told, {}, mark).pack(), size, bound.norm if bound else math.nan, rows,
        bool(bound and bound.scaled), bound.multiplier if bound else None,
    )  # fmt: skip


def _check_rows(rows: float, weight: float, policy: Policy) -> None:
    """Check the numbers of every reply, which decide how much the device counts."""
    if not (0 <= rows <= MOST_EXAMPLES and rows == int(rows)):
        raise DeniedError("reply", f"it states {rows:g} examples")
    if rows < policy.data.rows:
        raise DeniedError("data.rows", f"the reply is about {rows:g} examples; at least {policy.data.rows}")
    if not (weight == 1 or 0 < weight <= rows):
        raise DeniedError("reply", f"it states weight {weight:g} of {rows:g} examples")


def _stated(numbers: Mapping[str, float], policy: Policy, weight: float, heaviest: float | None) -> dict[str, float]:
    """Return number of examples and weight as they leave: as the app states them, or as the owner does."""
    announce = float(policy.data.announce)
    if not announce:
        return {_EXAMPLES: numbers[_EXAMPLES], _WEIGHT: weight}
    own = announce if heaviest is None else min(announce, heaviest)
    return {_EXAMPLES: announce, _WEIGHT: 1.0 if weight == 1 else own}


@dataclass(frozen=True)
class Bound:
    """What the gate has done to arrays."""

    norm: float
    scaled: bool
    multiplier: float | None


def _bounded(arrays: Arrays, request: Request, rule: ReplyRule, weight: float) -> tuple[dict[str, NDArray[Any]], Bound]:
    """Return the arrays of a reply, scaled down and with noise, in the order and the types of the request's."""
    weight = weight if rule.reduce == "delta" else 1.0
    if rule.reduce in ("delta", "deltas"):
        arrays = _like_sent(arrays, request.arrays, stacked=rule.reduce == "deltas")
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or not bounded(array):
            raise DeniedError("reply.norm", f"array '{printable(name, 80)}' has no finite numbers")
    norm = math.sqrt(sum(_square(array) for array in arrays.values())) / weight
    factor = rule.norm / norm if norm > rule.norm else 1.0
    deviation = rule.noise * rule.norm * weight / math.sqrt(rule.share) if rule.noise else 0.0
    if factor < 1 or deviation:
        if other := [name for name, array in arrays.items() if array.dtype.kind != "f"]:
            raise DeniedError("reply.norm", f"array '{printable(other[0], 80)}' of whole numbers cannot be scaled")
        rng = secret_generator() if deviation else None
        arrays = {name: _changed(array, factor, deviation, rng) for name, array in arrays.items()}
    # Two data sets may give any two arrays within the bound, which differ by twice the norm.
    multiplier = rule.noise / 2 if rule.noise else None
    return {**arrays}, Bound(norm, factor < 1, multiplier)


def _like_sent(arrays: Arrays, sent: Arrays, *, stacked: bool) -> Arrays:
    """Return an update's arrays in the order of those that were sent, whose names, shapes and types it must have."""
    for name in arrays.keys() ^ sent.keys():
        if name not in sent or not name.startswith(BESIDE):
            raise DeniedError("reply.norm", f"array '{printable(name, 80)}' is not that of an update")
    for name, array in arrays.items():
        shape = (1, *sent[name].shape) if stacked else sent[name].shape
        if array.shape != shape or array.dtype != sent[name].dtype:
            raise DeniedError(
                "reply.norm", f"array '{name}' is {array.dtype} {array.shape}, not {sent[name].dtype} {shape}"
            )
    return {name: arrays[name] for name in sent if name in arrays}


def _square(array: NDArray[Any]) -> float:
    flat = np.ascontiguousarray(array).reshape(-1)
    total = 0.0
    for start in range(0, len(flat), 1 << 16):  # in double precision, a block at a time
        block = flat[start : start + (1 << 16)].astype(np.float64)
        total += float(np.dot(block, block))
    return total


def _changed(array: NDArray[Any], factor: float, deviation: float, rng: np.random.Generator | None) -> NDArray[Any]:
    result = array * array.dtype.type(factor)
    if rng is not None:
        result = result + draw(rng, "gaussian", deviation, array.shape)
    return cast(NDArray[Any], result.astype(array.dtype))


assert {_EXAMPLES, _WEIGHT, BYTES_UP, BYTES_DOWN} == {*ALWAYS}
