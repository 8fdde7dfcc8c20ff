"""Records that travel as one: what is joined comes apart as it was, in fewer objects; what is malformed is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from florilegium.clients.core.joining import NAMES, RECORD, apart, is_joined, together
from florilegium.clients.core.wire import Query, Reply, Request, Work, flat
from florilegium.common.errors import RunError
from florilegium.strategies.exchange.flower_inside import identify


def _content() -> RecordDict:
    return RecordDict({
        "config": ConfigRecord({"clients": ["a"], "none": [], "a/b": 1.5, "bytes": b"\x00/", "yes": True, "n": [1, 2]}),
        "empty": ConfigRecord(),
        "arrays": flat({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}),
        "numbers": MetricRecord({"loss": 0.5}),
        "others": ArrayRecord([np.ones(2)]),
    })  # fmt: skip


def test_records_come_apart_as_they_were() -> None:
    content = _content()
    one = together(content, 1000)
    assert is_joined(one)
    assert not is_joined(content)
    assert [*one] == [RECORD, "numbers", "others"]  # only records of plain values are joined
    assert apart(one) == content
    assert apart(content) is content


@pytest.mark.parametrize("entries", [250, 251])  # of four bytes, beside a layout of 22
def test_a_large_record_stays_apart(entries: int) -> None:
    content = RecordDict({"arrays": flat({"w": np.zeros(entries, np.float32)})})
    most = 1000 + len(str(content["arrays"]["layout"]))
    one = together(content, most)
    assert ("arrays" in one) == (entries == 251)
    assert apart(one) == content


def test_a_message_of_small_records_is_three_objects() -> None:
    """The message, its content and the record: Flower stores and transfers each object by itself."""
    identify()
    arrays = {f"layer{i}.weight": np.full((3, 2), i, np.float32) for i in range(20)}
    asked = Message(together(Request(["a"], "train", "delta", Work(1)).pack(flat(arrays)), 10_000), 1, "train")
    reply = Reply(["a"], arrays, {"loss": [0.5], "weight": [2.0]}, {"b": "no data"})
    for message in (asked, Message(together(reply.pack(), 10_000), reply_to=asked)):
        assert len(get_all_nested_objects(message)) == 3
    assert Query.unpack(apart(together(Query("abc").pack(), 100))).frozen == "abc"


@pytest.mark.parametrize(
    "one",
    [
        MetricRecord({"names": 1}),
        ConfigRecord({"config/run": "x"}),
        ConfigRecord({NAMES: "config", "config/run": "x"}),
        ConfigRecord({NAMES: [1]}),
        ConfigRecord({NAMES: ["other"]}),
        ConfigRecord({NAMES: ["config"], "outcome/run": "x"}),
    ],
    ids=["other type", "no names", "a text", "numbers", "there already", "of no name"],
)
def test_malformed_records_are_refused(one: Any) -> None:
    with pytest.raises(RunError, match=RECORD):
        apart(RecordDict({RECORD: one, "other": ConfigRecord()}))
