"""The messages between server and node, packed and unpacked by the same classes on both sides.

Flower's records are loosely typed; here every field has a name and a type. docs/wire.md
explains the fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from mmap import mmap
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from florilegium.clients.core.secure_wire import RECORD, Terms
from florilegium.common.errors import RunError
from florilegium.common.foreign import printable
from florilegium.common.spool import LARGE, Spool, spooled

if TYPE_CHECKING:  # PyTorch is not needed to read messages
    from florilegium.models.parameters import Arrays

BESIDE = "beside."
"""Prefix of the names of arrays that are sent with a network but are no part of it. Clients need not return them."""


def of_network(arrays: Arrays) -> Arrays:
    """Return those of the received ``arrays`` that are the network's, without those beside it."""
    return {name: array for name, array in arrays.items() if not name.startswith(BESIDE)}


CLIP_NORM, NOISE, WITHIN_NOISE = "clip-norm", "noise", "within-noise"
"""Fields of requests with client-level privacy: the bound C, if it is adaptive; and, if clients add the noise, its
standard deviation on the update and on the array ``within-bound``."""
PROTECTION = (CLIP_NORM, NOISE, WITHIN_NOISE)

USED = "used"
"""Field of requests to clients that keep residuals: the last round whose update the server has used, for each."""

POISONING = "poisoning"
"""Field of requests of a simulation with attackers: the clients that train on poisoned examples."""

BYTES_DOWN, BYTES_UP = "bytes-down", "bytes-up"
"""Metrics that a host adds to those of a client: bytes of the arrays that it received, and that it returns."""

UPDATE_NORM, GRADIENT_NORM = "update-norm", "gradient-norm"
"""Metrics that a host adds to those of a client that trains without privacy: the Euclidean norms of its update, and of
the gradient of its last step."""


VERSION = 3
"""Version of the messages (docs/wire.md); 1, which announced none, sent frozen parameters as the others, and 2 every
record as an object of its own."""

REFUSED = "the owner of this device has refused"
"""Beginning of the error with which a device refuses what its owner does not allow (docs/owner.md)."""

OTHER_DATA = "the files of the data have changed since the run began"
"""Beginning of the reply of a simulation's worker that reads other data than the server."""

LARGEST = 1e15
"""The largest absolute value of an entry of an array that a client returns, and of most numbers that it reports.

Sums of squares of such entries still fit single precision.
"""
MOST_EXAMPLES = 10**9
"""The most training or test examples that a client may announce."""


def bounded(array: NDArray[Any]) -> bool:
    """Return whether all entries of an array of numbers are finite and not larger than :data:`LARGEST`."""
    return not array.size or bool(array.min() >= -LARGEST and array.max() <= LARGEST)


_NUMPY = "numpy.ndarray"
"""Serialisation type of Flower's for the bytes of NumPy's files."""
_FLAT = "florilegium.flat"
"""Serialisation type of a Flower array that holds several arrays, one after the other (:func:`flat`)."""
_ALIGNED = 8
"""Each of them begins at a multiple of this number of bytes."""
_AXES, _LONGEST = 32, 1 << 40
"""The most axes, and the longest axis, that a received array may claim to have."""
_ONE_OBJECT = 5_000_000
"""Bytes of arrays that may travel as one object; Flower sends larger ones in parts."""


def pack(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return ``arrays`` as a Flower record of the same names, in the same order."""
    ordered = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    if sum(array.nbytes for array in ordered.values()) < LARGE:
        return ArrayRecord({name: Array(array) for name, array in ordered.items()})
    heads = {name: _head(array) for name, array in ordered.items()}
    data = memoryview(spooled(part for name, array in ordered.items() for part in (heads[name], array)))
    record, start = ArrayRecord(), 0
    for name, array in ordered.items():
        end = start + len(heads[name]) + array.nbytes
        record[name] = holding(str(array.dtype), array.shape, _NUMPY, data[start:end])
        start = end
    return record


def _head(array: NDArray[Any]) -> bytes:
    """Return what stands before an array's numbers in a file of NumPy's."""
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    return head.getvalue()


def holding(dtype: str, shape: tuple[int, ...], kind: str, data: bytes | Spool | memoryview) -> Array:
    """Return a Flower array with bytes, also of a file: its constructor takes none, though all readers do."""
    array = Array(dtype, shape, kind, b"")
    array.data = cast(bytes, data)
    return array


def flat(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord | ConfigRecord:
    """Return ``arrays`` as a record of a message, in as few objects as possible.

    Flower stores every array of a record as two objects and every record as one, and asks for each object in a request
    of its own: a device would wait longer for fifty small arrays than for a large one. Here the arrays follow one
    another in a single value; its layout is a list of names, types and shapes, as JSON.
    """
    layout = json.dumps([(name, array.dtype.str, array.shape) for name, array in arrays.items()])
    parts = (
        part
        for array in arrays.values()
        for part in (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, bytes(-array.nbytes % _ALIGNED))
    )
    size = sum(-(-array.nbytes // _ALIGNED) * _ALIGNED for array in arrays.values())
    if size >= LARGE:
        record = ArrayRecord()  # whose own constructor would take bytes alone
        record["flat"] = holding(layout, (size,), _FLAT, spooled(parts))
        return record
    data = b"".join(parts)
    if size <= _ONE_OBJECT:
        return ConfigRecord({"layout": layout, "data": data})
    return ArrayRecord({"flat": Array(layout, (size,), _FLAT, data)})


def to_files(content: RecordDict) -> None:
    """Move the large arrays of a message that has been received from memory to files."""
    for record in content.array_records.values():
        for name, array in [*record.items()]:
            if isinstance(array.data, bytes) and len(array.data) >= LARGE:
                record[name] = holding(array.dtype, array.shape, array.stype, spooled([array.data]))


def unpack(record: ArrayRecord | ConfigRecord, *, copy: bool = True) -> Arrays:
    """Return the arrays of ``record`` by name, in order, however they were packed; ``copy``: they may be written to.

    Raises:
        Exception: of several kinds, if the record is malformed.
    """
    if isinstance(record, ConfigRecord):
        return _split(record["layout"], record["data"], copy=copy)
    arrays: Arrays = {}
    for name, array in record.items():
        arrays |= _split(array.dtype, array.data, copy=copy) if array.stype == _FLAT else {name: array.numpy()}
    return arrays


def _split(layout: object, data: object, *, copy: bool) -> Arrays:
    if not isinstance(layout, str) or not isinstance(data, bytes | Spool):
        raise TypeError(f"arrays are a layout and bytes, not {type(layout).__name__} and {type(data).__name__}")
    arrays: Arrays = {}
    buffer: bytes | bytearray | mmap = data
    if copy:
        buffer = data.private() if isinstance(data, Spool) else bytearray(data)
    start = 0
    for name, kind, shape in json.loads(layout):
        fits = type(shape) is list and len(shape) <= _AXES
        if not fits or not all(type(length) is int and 0 <= length < _LONGEST for length in shape):
            raise ValueError(f"array '{str(name)[:80]}' has no shape that can be")
        dtype, count = np.dtype(kind), math.prod(shape)
        if dtype.kind not in "biufcSU":
            raise ValueError(f"array '{str(name)[:80]}' is of type {dtype}")
        values = np.frombuffer(buffer, dtype, count, start) if count else np.empty(0, dtype)
        arrays[str(name)] = values.reshape(shape)
        start += -(-values.nbytes // _ALIGNED) * _ALIGNED
    return arrays


def _arrays(content: RecordDict, name: str, *, copy: bool = True) -> Arrays:
    return unpack(cast(ArrayRecord | ConfigRecord, content[name]), copy=copy) if name in content else {}


@dataclass(frozen=True)
class Work:
    """The round and the run that a request belongs to.

    Attributes:
        round: number of the round.
        run: name of the run.
        identity: distinguishes the run from others of its name; letters and digits.
        lineage: the rounds from which the run was resumed so far.
        checkpoint: the last round of which the server holds a checkpoint.
        best: the round whose models may be kept at the end, of which the server holds a checkpoint, too; None: none.
        keep: whether a device saves the model that it tests.
        trainings: expected number of rounds in which a client trains, if its privacy budget depends on it.
        tests: number of times a client is tested, if its privacy budget depends on it.
        heaviest: the largest weight of a client's update; None: no limit.
        frozen: hash of the network's frozen parameters (:func:`florilegium.models.frozen.hash_of`); None: it has none.
    """

    round: int
    run: str = "run"
    identity: str = "0"
    lineage: Sequence[int] = ()
    checkpoint: int = 0
    keep: bool = False
    trainings: float | None = None
    tests: float | None = None
    heaviest: float | None = None
    frozen: str | None = None
    best: int | None = None

    def mark(self, phase: str) -> str:
        """Return what a reply names, so that none is taken for one to another request: run, attempt, round, phase."""
        return f"run {self.identity}, attempt {1 + len(self.lineage)}, round {self.round}, phase '{phase}'"


@dataclass(frozen=True)
class Request:
    """A request to a node: the clients that it shall run, and the phase that they shall carry out.

    Attributes:
        clients: ids of the clients, in order; empty in a request from a stock Flower strategy.
        phase: name of the phase.
        reduce: how clients' arrays are combined into one reply (:class:`florilegium.clients.core.reduce.Reduction`).
        work: the round and the run.
        arguments: the phase's own arguments.
        protection: bound and noise for client-level privacy (:mod:`florilegium.clients.layers.noise`).
        arrays: sent to every client.
        scatter: arrays with a leading axis in the order of ``clients``; each client gets its own entry.
        secure: the terms of the secure sum, if the reply is to be masked.
        used: for each client the last round whose update of this phase the server has used, 0: none; empty unless
            clients keep residuals of their updates (:mod:`florilegium.clients.core.compression`).
        poisoning: those of the clients that train on poisoned examples (:mod:`florilegium.clients.attacks`).
    """

    clients: Sequence[str]
    phase: str
    reduce: str
    work: Work
    arguments: Mapping[str, Any] = field(default_factory=dict)
    protection: Mapping[str, float] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    scatter: Arrays = field(default_factory=dict)
    secure: Terms | None = None
    used: Sequence[int] = ()
    poisoning: Sequence[str] = ()

    def pack(self, arrays: ArrayRecord | ConfigRecord | None) -> RecordDict:
        """Return the content of a message; ``arrays`` is packed beforehand (:func:`flat`), so that all can share it."""
        own = {name: value for name, value in vars(self.work).items() if value is not None}
        config = {**own, "lineage": list(self.work.lineage), "phase": self.phase, "reduce": self.reduce}
        config |= {"clients": list(self.clients), **self.arguments, **self.protection}
        config |= {USED: list(self.used)} if self.used else {}
        config |= {POISONING: list(self.poisoning)} if self.poisoning else {}
        content = RecordDict({"config": ConfigRecord(config)})
        if arrays is not None:
            content["arrays"] = arrays
        if self.scatter:
            content["scatter"] = flat(self.scatter)
        if self.secure is not None:
            content[RECORD] = self.secure.pack()
        return content

    @staticmethod
    def unpack(content: RecordDict, *, trains: bool, run: str, copy: bool = True) -> Request:
        """Read the content of a message.

        Args:
            content: content of the received message.
            trains: whether it is a train message; of a stock strategy's message this determines the phase.
            run: the run's name to use for a stock strategy, whose messages have none.
            copy: whether its arrays may be written to.

        Raises:
            RunError: if a field is missing or of another type.
        """
        if "config" not in content:
            raise RunError("the request has no record 'config'")
        config = dict(cast(ConfigRecord, content["config"]))
        arrays, scatter = (_arrays(content, name, copy=copy) for name in ("arrays", "scatter"))
        if not config.get("clients"):
            config.pop("clients", None)
            work = Work(int(cast(int, config.pop("server-round", 0))), run)
            return Request([], "train" if trains else "test", "", work, config, {}, arrays, scatter)
        take = partial(_take, config)
        work = Work(
            take("round", int), take("run", str), take("identity", str), take("lineage", list, of=int),
            take("checkpoint", int), take("keep", bool, False),
            take("trainings", float, None), take("tests", float, None), take("heaviest", float, None),
            take("frozen", str, None), take("best", int, None),
        )  # fmt: skip
        clients, phase, reduce = take("clients", list), take("phase", str), take("reduce", str)
        protection = {name: take(name, float) for name in PROTECTION if name in config}
        used = tuple(take(USED, list, [], of=int))
        poisoning = tuple(take(POISONING, list, []))
        secure = Terms.unpack(content, clients)
        return Request(clients, phase, reduce, work, config, protection, arrays, scatter, secure, used, poisoning)


def _take(config: dict[str, Any], name: str, kind: type, default: Any = ..., *, of: type = str) -> Any:
    """Remove a field of a request and return it; ``of`` is the type of a list's elements.

    Raises:
        RunError: if it is missing, of another type, negative, NaN or infinite.
    """
    value = config.pop(name, default)
    fits = value is not ... and type(value) is kind
    if fits and kind is list:
        fits = all(type(entry) is of for entry in value) and (of is str or min(value, default=0) >= 0)
    if fits and kind in (int, float):
        fits = math.isfinite(value) and value >= 0
    if not fits and (value is ... or value is not default):
        found = "nothing" if value is ... else repr(value)
        wanted = f"a list of {of.__name__}" if kind is list else kind.__name__
        raise RunError(
            f"the request's field '{name}' must be of type {wanted}, finite and not negative (found: {found})"
        )
    return value


@dataclass(frozen=True)
class Reply:
    """The reply of a node for its clients.

    Attributes:
        clients: ids of the clients that succeeded.
        arrays: their arrays, reduced as the request asked.
        metrics: for each metric a list of numbers, in the order of ``clients``.
        failures: the error of each client that failed.
        mark: which request it is to (:meth:`Work.mark`); "" if it does not say it.
    """

    clients: list[str]
    arrays: Arrays
    metrics: dict[str, list[float]]
    failures: dict[str, str]
    mark: str = ""

    def pack(self) -> RecordDict:
        """Return the content of a message."""
        outcome: dict[str, Any] = {"clients": self.clients, "failed": [*self.failures]}
        outcome |= {"reasons": [*self.failures.values()], "metrics": [*self.metrics]}
        outcome["values"] = [float(value) for values in self.metrics.values() for value in values]
        outcome |= {"mark": self.mark} if self.mark else {}
        content = RecordDict({"outcome": ConfigRecord(outcome)})
        if self.arrays:
            content["arrays"] = flat(self.arrays)
        return content

    @staticmethod
    def unpack(content: RecordDict, *, copy: bool = True) -> Reply:
        """Read the content of a message; ``copy``: its arrays may be written to.

        Raises:
            Exception: of several kinds, if it is malformed.
        """
        outcome = cast(dict[str, list[Any]], content["outcome"])
        clients, names = [str(client) for client in outcome["clients"]], [str(name) for name in outcome["metrics"]]
        values = np.array(outcome["values"], dtype=float).reshape(len(names), len(clients)).tolist()
        failures = {str(one): printable(why) for one, why in zip(outcome["failed"], outcome["reasons"], strict=True)}
        mark = printable(outcome.get("mark", ""), 200)
        arrays = _arrays(content, "arrays", copy=copy)
        return Reply(clients, arrays, dict(zip(names, values, strict=True)), failures, mark)

    def expect(self, mark: str) -> None:
        """Raise ``ValueError`` if this is a reply to another request than ``mark`` names, such as one sent before."""
        if self.mark and mark and self.mark != mark:
            raise ValueError(f"it is a reply to another request: to {self.mark}, expected is {mark}")


@dataclass(frozen=True)
class Query:
    """The roster query.

    Attributes:
        frozen: hash of the frozen parameters that the run trains with; "": it has none.
        arrays: these parameters, for a node that has said that it does not hold them; else {}.
    """

    frozen: str = ""
    arrays: Arrays = field(default_factory=dict)

    def pack(self) -> RecordDict:
        """Return the content of a message."""
        content = RecordDict({"frozen": ConfigRecord({"hash": self.frozen})} if self.frozen else {})
        if self.arrays:
            content["arrays"] = flat(self.arrays)
        return content

    @staticmethod
    def unpack(content: RecordDict) -> Query:
        """Read the content of a message.

        Raises:
            RunError: if a field is of another type.
        """
        if "frozen" not in content:
            return Query()
        return Query(_take(dict(cast(ConfigRecord, content["frozen"])), "hash", str), _arrays(content, "arrays"))


@dataclass(frozen=True)
class Announcement:
    """The clients of a node: its reply to the roster query.

    Attributes:
        pinned: whether it holds the data of certain clients only (a device), or can run any client (simulation).
        code: hash of the code it runs.
        clients: ids of its clients, if pinned.
        train, test: numbers of their examples.
        validation: numbers of validation examples that they have besides, if any client has some.
        labeled: whether they have labels to train with.
        packages: packages outside this one that the run needs, with the versions that the node has.
        capacities: the share of each layer's channels that each client can hold, in (0, 1].
        frozen: hash of the network's frozen parameters: the one asked for, if the node holds these.
        wire: the version of the messages that it speaks (:data:`VERSION`).
    """

    pinned: bool
    code: str
    clients: list[str] = field(default_factory=list)
    train: list[int] = field(default_factory=list)
    test: list[int] = field(default_factory=list)
    labeled: list[bool] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    capacities: list[float] = field(default_factory=list)
    frozen: str = ""
    wire: int = VERSION
    validation: list[int] = field(default_factory=list)

    def pack(self) -> RecordDict:
        """Return the content of a message."""
        optional = ("frozen", "validation")
        return RecordDict({"roster": ConfigRecord({k: v for k, v in vars(self).items() if k not in optional or v})})

    @staticmethod
    def unpack(content: RecordDict) -> Announcement:
        """Read the content of a message.

        Raises:
            Exception: of several kinds, if it is malformed.
        """
        said = cast(dict[str, Any], content["roster"])
        kinds = {"clients": str, "train": int, "test": int, "labeled": bool, "capacities": float}
        lists = {name: list(said[name]) for name in kinds}
        kinds, lists["validation"] = kinds | {"validation": int}, list(said.get("validation", []))
        for name, values in lists.items():
            if not all(type(value) is kinds[name] for value in values):
                raise ValueError(f"it announces {name} = {values}")
        for name in ("train", "test", "validation"):
            if not all(0 <= count <= MOST_EXAMPLES for count in lists[name]):
                raise ValueError(f"it announces {name} = {lists[name]}; allowed are 0 to {MOST_EXAMPLES} examples")
        if not all(0 < capacity <= 1 for capacity in lists["capacities"]):
            raise ValueError(f"it announces capacities = {lists['capacities']}; allowed are numbers above 0, at most 1")
        if type(wire := said.get("wire", 1)) is not int or not 0 < wire < 1000:
            raise ValueError(f"it announces version {wire} of the messages; allowed are 1 to 999")
        packages = [printable(package, 80) for package in said.get("packages", [])[:20]]
        return Announcement(
            said["pinned"] is True, printable(said["code"], 80), **lists, packages=packages,
            frozen=printable(said.get("frozen", ""), 80), wire=wire,
        )  # fmt: skip
