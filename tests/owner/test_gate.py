"""The gate: what leaves is bounded, noised and made anew, whatever an app returns."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from scipy.stats import kstest, norm

from florilegium.clients.core.wire import Announcement, Reply, flat
from florilegium.models.parameters import Arrays
from florilegium.owner.denied import DeniedError
from florilegium.owner.figures import bits, rounded
from tests.owner.made import CLIENT, HEAD, TEST, TRAIN, announcement, begun, entries, exchanged, reply, request, roster

LENGTH = math.sqrt(5) * 0.1
"""Norm of the usual update: five entries of 0.1, for each of 30 examples."""


def test_a_reply_within_the_bounds_leaves_as_it_is(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner")
    left = exchanged(keeper, request(), reply(loss=0.25))
    np.testing.assert_array_equal(left.arrays["w"], np.full((2, 2), 3, np.float32))
    assert left.metrics == {
        "num-examples": [30], "weight": [30], "bytes-up": [20], "bytes-down": [20], "loss": [0.25]
    }  # fmt: skip
    assert left.mark == "run abc, attempt 1, round 1, phase 'train'"  # the app's own mark does not leave
    (entry,) = entries(keeper.home, "reply")
    assert (entry["bytes"], entry["rows"], entry["scaled"], entry["phase"]) == (20, 30, False, "train")
    assert entry["norm"] == pytest.approx(LENGTH)


def test_a_long_update_is_scaled_down(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner")
    arrays = {"w": np.full((2, 2), 30 * 8, np.float32), "b": np.array(0, np.float32)}  # for each example norm 16
    left = exchanged(keeper, request(), reply(arrays))
    np.testing.assert_allclose(left.arrays["w"], 30.0, rtol=1e-6)  # norm 2 in each of 30
    assert entries(keeper.home, "reply")[0]["norm"] == pytest.approx(16)
    assert entries(keeper.home, "reply")[0]["scaled"]


def test_an_app_cannot_claim_a_small_norm(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner", HEAD + TRAIN.replace('["loss"]', '["loss", "update-norm"]'))
    arrays = {"w": np.full((2, 2), 1e15, np.float32), "b": np.array(0, np.float32)}
    left = exchanged(keeper, request(), reply(arrays, **{"update-norm": 0.001}))
    total = math.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in left.arrays.values()))
    assert total <= 2.0 * 30 * (1 + 1e-6)


def test_noise_has_the_deviation_of_the_policy(tmp_path: Path) -> None:
    """Noise 1.5 relative to norm 2, a third of the variance, weight 30: deviation 30·2·1.5/√3."""
    size = 200_000
    rule = TRAIN.replace("bytes = 400", "bytes = 1_000_000\nnoise = 1.5\nshare = 3")
    keeper = begun(tmp_path / "owner", HEAD.replace("= 1000", "= 10_000_000").replace("= 1500", "= 10_000_000") + rule)
    sent = {"w": np.zeros(size, np.float32)}
    left = exchanged(keeper, request(sent=sent), reply({"w": np.zeros(size, np.float32)}))
    assert kstest(left.arrays["w"], norm(scale=30 * 2 * 1.5 / math.sqrt(3)).cdf).pvalue > 1e-4
    again = exchanged(keeper, request(sent=sent, round=2), reply({"w": np.zeros(size, np.float32)}))
    assert abs(np.corrcoef(left.arrays["w"], again.arrays["w"])[0, 1]) < 0.01


def test_every_noised_reply_is_charged(tmp_path: Path) -> None:
    """k releases of noise z·C, whose sensitivity is 2C, are one of z/(2√k): δ(ε) of a Gaussian mechanism."""
    rule = TRAIN.replace("bytes = 400", "bytes = 400\nnoise = 8.0")
    keeper = begun(tmp_path / "owner", HEAD + "[budget]\nepsilon = 2.5\ndelta = 1e-5\n" + rule)

    def delta(epsilon: float, multiplier: float) -> float:
        a, b = 1 / (2 * multiplier), epsilon * multiplier
        return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))

    for round in range(1, 4):
        exchanged(keeper, request(round=round), reply())
        epsilon = entries(keeper.home, "reply")[-1]["epsilon"]
        assert delta(epsilon, 4 / math.sqrt(round)) == pytest.approx(1e-5, rel=1e-3)

    def many() -> None:
        for round in range(4, 50):
            exchanged(keeper, request(round=round), reply())

    with pytest.raises(DeniedError, match=r"budget\.epsilon"):
        many()
    assert epsilon < entries(keeper.home, "reply")[-1]["epsilon"] <= 2.5
    left = len(entries(keeper.home, "reply"))
    fresh = begun(tmp_path / "owner", HEAD + "[budget]\nepsilon = 2.5\ndelta = 1e-5\n" + rule)  # after a restart
    with pytest.raises(DeniedError, match=r"budget\.epsilon"):
        exchanged(fresh, request(round=49, lineage=[1]), reply())
    assert len(entries(keeper.home, "reply")) == left


def _one(array: object) -> Arrays:
    return {"w": np.zeros((2, 2), np.float32), "b": np.array(array)}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (reply(_one(np.float64(1))), "is float64"),
        (reply({"w": np.zeros((2, 2), np.float32)}), "array 'b' is not that of an update"),
        (reply({"w": np.zeros((2, 3), np.float32), "b": np.array(1, np.float32)}), "(2, 3)"),
        (reply(_one(np.float32(1)) | {"x": np.zeros(1)}), "array 'x'"),
        (reply(_one(np.float32("nan"))), "no finite numbers"),
        (reply(_one(np.float32("inf"))), "no finite numbers"),
        (reply({}), "array"),
        (reply(rows=10), "at least 20"),
        (reply(rows=30.5), "30.5 examples"),
        (reply(rows=-30), "examples"),
        (reply(rows=float("nan")), "examples"),
        (reply(weight=31), "weight 31"),
        (reply(weight=0), "weight 0"),
        (reply(weight=float("nan")), "weight nan"),
        (reply(clients=["other"]), "does not speak"),
        (reply(clients=[CLIENT, "other"]), "does not speak"),
        (reply(failures={"other": "x"}), "does not speak"),
        (RecordDict({}), "cannot be read"),
        (RecordDict({"outcome": ConfigRecord({"clients": [CLIENT]})}), "cannot be read"),
        (RecordDict({"outcome": MetricRecord({"loss": 1.0})}), "cannot be read"),
        (RecordDict({**reply(), "more": ConfigRecord({"row": [1.0, 2.0]})}), "a record 'more'"),
    ],
)  # fmt: skip
def test_what_is_no_reply_does_not_leave(tmp_path: Path, content: RecordDict, line: str) -> None:
    keeper = begun(tmp_path / "owner")
    asked = request()
    allowed = keeper.ask(asked)
    if line == "array":  # no arrays at all are none to bound
        assert not Reply.unpack(keeper.leave(asked, allowed, content)).arrays
        return
    with pytest.raises(DeniedError, match=re.escape(line)):
        keeper.leave(asked, allowed, content)
    assert not entries(keeper.home, "reply")
    assert line in entries(keeper.home, "refused")[0]["why"]


def test_nothing_hides_in_the_encoding(tmp_path: Path) -> None:
    """Names in another order, unknown fields, texts, padding between arrays and other numbers do not leave."""
    keeper = begun(tmp_path / "owner")
    usual = reply(loss=0.123456789, accuracy=0.5, gradient=3.0)
    arrays = {"b": np.array(3, np.float32), "w": np.full((2, 2), 3, np.float32)}
    packed = dict(flat(arrays))  # type: ignore[arg-type]
    data = bytearray(packed["data"])  # type: ignore[arg-type]
    data[4:8] = b"row1"  # a scalar of four bytes begins at a multiple of eight
    hidden = dict(usual["outcome"]) | {"mark": "row 7", "secret": "a row"}  # type: ignore[arg-type]
    content = RecordDict({
        "outcome": ConfigRecord(hidden),
        "arrays": ConfigRecord({"layout": f"{packed['layout']}   ", "data": bytes(data) + b"row", "more": "row"}),
    })  # fmt: skip
    asked = request()
    left = keeper.leave(asked, keeper.ask(asked), content)
    plain = begun(tmp_path / "other")
    expected = plain.leave(asked, plain.ask(asked), reply(loss=0.123))
    assert left.object_id == expected.object_id


def test_why_an_app_failed_does_not_leave(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner")
    failed = Reply([], {}, {}, {CLIENT: "row 7 is 3.25"}).pack()
    left = exchanged(keeper, request(), failed)
    assert left.failures == {CLIENT: "it failed; the device's log says why"}
    assert entries(keeper.home, "reply")[0]["failure"] == "row 7 is 3.25"
    spent = Reply([], {}, {}, {CLIENT: "its budget is spent: row 7"}).pack()
    assert exchanged(keeper, request(round=2), spent).failures == {CLIENT: "its budget is spent"}


def test_a_test_returns_figures_alone(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner")
    left = exchanged(keeper, request("test", "sum"), reply({}, accuracy=0.98765, loss=3.0))
    assert (left.arrays, left.metrics["accuracy"]) == ({}, [0.988])
    assert "loss" not in left.metrics
    with pytest.raises(DeniedError, match="at most 0"):
        exchanged(keeper, request("test", "sum", round=2), reply({"row": np.zeros(3)}))


def test_what_the_owner_states_leaves_in_place_of_the_counts(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner", HEAD.replace("rows = 20", "rows = 20\nannounce = 100") + TRAIN + TEST)
    left = exchanged(keeper, request(), reply())
    assert (left.metrics["num-examples"], left.metrics["weight"]) == ([100], [100])
    np.testing.assert_allclose(left.arrays["w"], 10, rtol=1e-6)  # 0.1 for each of a hundred
    left = exchanged(keeper, request(round=2, heaviest=50.0), reply())
    assert (left.metrics["num-examples"], left.metrics["weight"]) == ([100], [50])
    np.testing.assert_allclose(left.arrays["w"], 5, rtol=1e-6)
    left = exchanged(keeper, request(round=3), reply(weight=1))
    np.testing.assert_allclose(left.arrays["w"].ravel(), 3 * 2 / math.sqrt(45), rtol=1e-6)  # norm √45, of weight 1
    assert left.metrics["weight"] == [1]
    asked = roster()
    found = Announcement.unpack(keeper.leave(asked, keeper.ask(asked), announcement()))
    assert (found.train, found.test) == ([100], [100])


def test_stacked_updates_are_bounded_too(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner", HEAD + TRAIN.replace('"delta"', '"deltas"'))
    arrays = {"w": np.full((1, 2, 2), 8, np.float32), "b": np.zeros(1, np.float32)}
    left = exchanged(keeper, request(reduce="deltas"), reply(arrays))
    np.testing.assert_allclose(left.arrays["w"], np.ones((1, 2, 2)), rtol=1e-6)


def test_sums_have_a_bound_of_their_own(tmp_path: Path) -> None:
    rule = TRAIN.replace('"delta"', '"sum"').replace('"train"', '"counts"')
    keeper = begun(tmp_path / "owner", HEAD + rule)
    left = exchanged(keeper, request("counts", "sum"), reply({"n": np.array([30.0, 40.0])}))
    np.testing.assert_allclose(left.arrays["n"], [1.2, 1.6], rtol=1e-6)  # 3-4-5, norm 2
    whole = reply({"n": np.array([30, 40])})
    with pytest.raises(DeniedError, match="cannot be scaled"):
        exchanged(keeper, request("counts", "sum", round=2), whole)


def test_arrays_of_flower_are_read_without_code(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner")
    arrays = ArrayRecord({"w": Array(np.full((2, 2), 3, np.float32)), "b": Array(np.array(3, np.float32))})
    content = reply()
    content["arrays"] = arrays
    left = exchanged(keeper, request(), content)
    np.testing.assert_array_equal(left.arrays["w"], np.full((2, 2), 3, np.float32))
    content["arrays"] = ArrayRecord({"w": Array("float32", (2, 2), "numpy.ndarray", b"\x93NUMPY no")})
    with pytest.raises(DeniedError, match="cannot be read"):
        exchanged(keeper, request(round=2), content)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"train": [19]}, "at least 20"),
        ({"clients": ["other"]}, "other clients"),
        ({"clients": [CLIENT, "other"]}, "other clients"),
        ({"train": [30, 31]}, "one number"),
        ({"train": []}, "one number"),
        ({"code": "row 7 is 3.25"}, "hash that is none"),
        ({"frozen": "row"}, "hash that is none"),
        ({"train": ["row"]}, "cannot be read"),
    ],
)
def test_announcements_are_checked(tmp_path: Path, fields: dict[str, object], line: str) -> None:
    keeper = begun(tmp_path / "owner")
    asked, content = roster(), announcement()
    told = dict(content["roster"]) | fields  # type: ignore[arg-type]
    content["roster"] = ConfigRecord(told)  # type: ignore[arg-type]
    with pytest.raises(DeniedError, match=line):
        keeper.leave(asked, keeper.ask(asked), content)


def test_a_run_is_announced_once(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner")
    asked = roster()
    keeper.leave(asked, keeper.ask(asked), announcement())
    keeper.leave(asked, keeper.ask(asked), announcement())
    for change in ({"train": [31]}, {"packages": ["row 7"]}, {"capacities": [0.25]}):
        with pytest.raises(DeniedError, match="another"):
            keeper.leave(asked, keeper.ask(asked), announcement(**change))


@pytest.mark.parametrize(
    ("value", "digits", "sent"),
    [(0.987654, 3, 0.988), (-1234.5, 2, -1200.0), (0.0, 3, 0.0), (1e-20, 3, 0.0), (7, 1, 7.0), (99.96, 3, 100.0)],
)
def test_figures_are_rounded(value: float, digits: int, sent: float) -> None:
    assert rounded(value, digits) == sent


def test_figures_tell_few_bits() -> None:
    """All values with one digit: 30 powers of ten with nine digits each, the largest, both signs, 0 and NaN."""
    values = {rounded(sign * digit * 10.0**power, 1) for sign in (1, -1) for digit in range(1, 10)
              for power in range(-15, 15)} | {1e15, -1e15, 0.0}  # fmt: skip
    assert 2 ** bits(1) == pytest.approx(len(values) + 1)
    assert all(math.isnan(rounded(value, 3)) for value in (math.inf, math.nan, 2e15))
