"""Messages: what is packed is what is unpacked, in few objects; what is malformed is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from hypothesis import given
from hypothesis import strategies as st

from florilegium.clients.core import wire
from florilegium.clients.core.wire import Announcement, Reply, Request, Work, flat, pack, unpack
from florilegium.strategies.exchange.flower_inside import identify

TYPES = st.sampled_from(["<f4", "<f8", "<i8", "<i4", "|b1", "|u1", "<f2", "<c8", "<U3"])
ARRAYS = st.dictionaries(
    st.text(max_size=8),
    TYPES.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, min_side=0))),
    max_size=5,
)


@given(ARRAYS, st.sampled_from(["small", "in parts", "in a file"]))
def test_arrays_come_back_as_they_were(arrays: dict[str, Any], kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if kind == "in parts":
            patch.setattr(wire, "_ONE_OBJECT", -1)
        elif kind == "in a file":
            patch.setattr(wire, "LARGE", 1)
        record, packed = flat(arrays), pack(arrays)
    full = any(array.nbytes for array in arrays.values())
    assert isinstance(record, ArrayRecord if kind == "in parts" or (full and kind != "small") else ConfigRecord)
    for found in (unpack(record), unpack(packed)):
        assert [*found] == [*arrays]
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()
            assert found[name].flags.writeable


def test_received_arrays_of_a_file_are_the_receivers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No receiver has a copy in memory, and what it changes is changed for it alone."""
    monkeypatch.setattr(wire, "LARGE", 1)
    record = flat({"a": np.arange(3.0), "b": np.ones(2, np.float32)})
    first, second = unpack(record), unpack(record)
    first["a"] += 1
    assert second["a"].tolist() == unpack(record)["a"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        unpack(record, copy=False)["a"][0] = 1


def test_a_large_message_is_cut_into_chunks_that_name_their_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are Flower's, of 5 MB, where one protobuf message may have 2 GB; each is named by its SHA-256."""
    identify()
    numbers = np.random.default_rng(1).bytes(12_000_000)
    monkeypatch.setattr(wire, "LARGE", 1)
    request = Request(["0"], "train", "delta", Work(1)).pack(flat({"a": np.frombuffer(numbers, np.uint8)}))
    objects = get_all_nested_objects(Message(request, 1, "train"))
    contents = {name: one.deflate() for name, one in objects.items()}
    assert all(name == hashlib.sha256(content).hexdigest() for name, content in contents.items())
    chunks = [content for content in contents.values() if content.startswith(b"ArrayChunk")]
    assert [len(content.partition(b"\0")[2]) for content in chunks] == [5 << 20, 5 << 20, 12_000_000 - (10 << 20)]
    assert b"".join(content.partition(b"\0")[2] for content in chunks) == numbers


@pytest.mark.parametrize("database", [FLWR_IN_MEMORY_DB_NAME, "file"])
def test_a_changed_byte_is_refused_and_only_missing_chunks_are_sent_again(tmp_path: Path, database: str) -> None:
    """What the SuperLink's stores guarantee; ``deploy/`` uses the one in a file."""
    identify()
    store = ObjectStoreFactory(database if database != "file" else str(tmp_path / "objects.db")).store()
    message = Message(Request(["0"], "train", "delta", Work(1)).pack(flat({"a": np.arange(2.0e6)})), 1, "train")
    contents = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    tree = get_object_tree(message)
    assert {*store.preregister(1, tree)} == contents.keys()
    first, second, *rest = contents
    changed = bytearray(contents[first])
    changed[-1] ^= 1
    with pytest.raises(ValueError, match=f"Object ID {first} does not match content hash"):
        store.put(first, bytes(changed))
    store.put(second, contents[second])
    assert {*store.preregister(1, tree)} == {first, *rest}  # an upload that begins again leaves out what is there


def test_arrays_that_are_no_block_of_memory() -> None:
    array = np.arange(24.0).reshape(4, 6)
    for view in (array.T, array[::2, ::-1], np.broadcast_to(array[:1], (3, 6))):
        np.testing.assert_array_equal(unpack(flat({"x": view}))["x"], view)


def _record(layout: Any, data: bytes = bytes(16)) -> ConfigRecord:
    return ConfigRecord({"layout": layout if isinstance(layout, str) else json.dumps(layout), "data": data})


@pytest.mark.parametrize(
    "record",
    [
        _record("no json"),
        _record([["x", "<f4", [5]]]),  # more than there is
        _record([["x", "<f4", [2, -2]]]),
        _record([["x", "<f4", [-1]]]),
        _record([["x", "<f4", [1.0]]]),
        _record([["x", "O", [1]]]),
        _record([["x", "V8", [1]]]),
        _record([["x", "<f4", [10**30]]]),
        _record([["x", "<f4"]]),
        _record(5),
        ConfigRecord({"layout": "[]"}),
        ConfigRecord({"layout": 3, "data": b""}),
        ConfigRecord({"layout": "[]", "data": 1 << 33}),  # not to be taken for a size
        _record([["x", "<f4", ["a", 1 << 33]]]),
        _record([["x", "<f4", [1] * 33]]),
        _record([["x", "<f4", {"2": 1}]]),
        ArrayRecord({"flat": Array("[", (1,), wire._FLAT, b"x")}),
    ],
)
def test_malformed_arrays_are_refused(record: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, OverflowError, AttributeError)):
        unpack(record)


def test_a_message_is_four_objects() -> None:
    """Whatever the network: Flower stores and transfers each object by itself."""
    identify()
    arrays = {f"layer{i}.weight": np.full((3, 2), i, np.float32) for i in range(20)}
    asked = Message(Request(["a"], "train", "delta", Work(1)).pack(flat(arrays)), 1, "train")
    answer = Reply(["a"], arrays, {"loss": [0.5], "weight": [2.0]}, {"b": "no data"})
    for message in (asked, Message(answer.pack(), reply_to=asked)):
        assert len(get_all_nested_objects(message)) == 4


@pytest.mark.parametrize("clients", [[], ["a"], ["b", "a", "c"]])
def test_a_reply_comes_back(clients: list[str]) -> None:
    metrics = {name: [float("nan"), 1.0, -2.5][: len(clients)] for name in ("loss", "weight")} if clients else {}
    reply = Reply(clients, {"x": np.arange(3.0)} if clients else {}, metrics, {"d": "its log says why"})
    found = Reply.unpack(reply.pack())
    assert (found.clients, found.failures) == (reply.clients, reply.failures)
    assert found.metrics.keys() == metrics.keys()
    for name, values in metrics.items():
        np.testing.assert_array_equal(found.metrics[name], values)
    assert found.arrays.keys() == reply.arrays.keys()


@pytest.mark.parametrize(
    ("key", "value"),
    [("values", [1.0]), ("values", ["a", "b"]), ("reasons", ["one", "more"]), ("metrics", ["loss", "weight", "more"])],
)
def test_a_malformed_reply_is_refused(key: str, value: Any) -> None:
    content = Reply(["a"], {}, {"loss": [0.5], "weight": [2.0]}, {"b": "no data"}).pack()
    content["outcome"][key] = value  # type: ignore[index]
    with pytest.raises(ValueError):  # noqa: PT011 - NumPy's and zip's own words
        Reply.unpack(content)


def test_an_announcement_comes_back() -> None:
    announced = Announcement(True, "c0de", ["a"], [10], [3], [False], ["own 1.0"], [0.25])
    assert Announcement.unpack(announced.pack()) == announced
    content = announced.pack()
    content["roster"]["train"] = [float("nan")]  # type: ignore[index]
    with pytest.raises(ValueError, match="it announces train"):
        Announcement.unpack(content)
