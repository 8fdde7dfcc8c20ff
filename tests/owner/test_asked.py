"""What a server asks: read before any process gets it, and refused by the line of the policy that does not allow it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from florilegium.clients.core.secure_wire import Stage, Terms
from florilegium.owner.denied import DeniedError
from tests.owner.made import (
    CLIENT,
    HEAD,
    RUN,
    TEST,
    TRAIN,
    begun,
    entries,
    exchanged,
    kept,
    made,
    message,
    record,
    reply,
)
from tests.owner.made import request as asked

MASKED = TRAIN.replace('reduce = "delta"', 'reduce = "delta"\nmasked = true\nparties = 3\ntold-noise = 0.5')


def _terms(**changes: Any) -> Terms:
    usual = {"token": b"t" * 16, "parties": 3, "total": 90.0, "examples": {CLIENT: 30.0}, "norm": 2.0, "coarse": False,
             "noise": 0.5, "messages": {CLIENT: b""}}  # fmt: skip
    return Terms(**{**usual, **changes})


def _stage(client: str = CLIENT) -> Message:
    return message(Stage("keys", b"t" * 16, "trial", "abc", {client: b"x"}).pack(), "query.secure")


@pytest.mark.parametrize(
    ("question", "text", "line"),
    [
        (asked("gradient"), HEAD + TRAIN, "reply"),
        (asked(reduce="stack"), HEAD + TRAIN, "reply"),
        (asked(reduce="deltas"), HEAD + TRAIN, "reply"),
        (asked(clients=["other"]), HEAD + TRAIN, "message"),
        (asked(clients=[CLIENT, "other"]), HEAD + TRAIN, "message"),
        (asked(clients=[]), HEAD + TRAIN, "reply"),
        (asked(round=51), HEAD + TRAIN, "runs.keys.rounds"),
        (message(record(phase="train")), HEAD + TRAIN, "reply"),
        (message(record(clients=[CLIENT], phase=3)), HEAD + TRAIN, "message"),
        (message(record(clients=[CLIENT], round=float("nan"))), HEAD + TRAIN, "message"),
        (message(RecordDict({})), HEAD + TRAIN, "message"),
        (message(RecordDict({"more": ConfigRecord({})})), HEAD + TRAIN, "message"),
        (message(RecordDict({}), "query.rows"), HEAD + TRAIN, "message"),
        (message(RecordDict({"frozen": ConfigRecord({"hash": 3})}), "query.roster"), HEAD, "message"),
        (_stage(), HEAD + TRAIN, "reply"),
        (_stage("other"), HEAD + MASKED, "message"),
        (message(RecordDict({}), "query.secure"), HEAD + MASKED, "message"),
        (asked(), HEAD + MASKED, "reply"),
        (asked(secure=_terms()), HEAD + TRAIN, "reply"),
        (asked(secure=_terms(parties=2)), HEAD + MASKED, "reply.parties"),
        (asked(secure=_terms(norm=2.1)), HEAD + MASKED, "reply.norm"),
        (asked(secure=_terms(noise=0.4)), HEAD + MASKED, "reply.told-noise"),
        (asked(protection={"noise": 0.4}), HEAD + TRAIN + "told-noise = 0.5\n", "reply.told-noise"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_by_its_line(tmp_path: Path, question: Message, text: str, line: str) -> None:
    keeper = begun(tmp_path / "owner", text)
    with pytest.raises(DeniedError) as refused:
        keeper.ask(question)
    assert refused.value.line == line
    (entry,) = entries(keeper.home, "refused")
    assert (entry["line"], entry["run_id"], entry["of"]) == (line, RUN, "request")


def test_secure_sums_that_are_allowed_pass(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner", HEAD + MASKED)
    keeper.ask(_stage())
    question = asked(secure=_terms())
    allowed = keeper.ask(question)
    masked = reply({"wide": np.zeros(3, np.uint64), "narrow": np.zeros(9, np.uint32)}, loss=3.0)
    masked["secure"] = ConfigRecord({"layout": "[]"})
    left = keeper.leave(question, allowed, masked)
    assert left.config_records["secure"]["layout"] == "[]"
    assert left.config_records["outcome"]["metrics"] == ["loss"]
    question = asked(round=2, secure=_terms())
    masked["arrays"] = reply({"wide": np.zeros(100, np.uint64)})["arrays"]
    with pytest.raises(DeniedError, match="800 bytes of arrays; at most 400"):
        keeper.leave(question, keeper.ask(question), masked)


def test_a_phase_is_asked_for_once_a_round(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner", HEAD + TRAIN + TEST + "times = 2\n")
    exchanged(keeper, asked(), reply())
    for question, times in (
        (asked(), 0),
        (asked("test", "sum"), 2),
        (asked(round=2), 1),
        (asked(), 0),
        (asked(round=3), 1),
    ):
        for _ in range(times):
            keeper.ask(question)
        with pytest.raises(DeniedError) as refused:
            keeper.ask(question)
        assert refused.value.line == "reply.times"
    exchanged(keeper, asked(lineage=[1]), reply())  # the run was resumed from its first round
    again = begun(tmp_path / "owner", HEAD + TRAIN)  # the device starts again
    with pytest.raises(DeniedError, match="asked for 1 times"):
        again.ask(asked(lineage=[1]))


def test_bytes_of_runs_and_days_are_bounded(tmp_path: Path) -> None:
    """Twenty bytes of arrays and eight for each number and name: of the 1000 of a run, 1500 of a day."""
    keeper = begun(tmp_path / "owner")
    sizes = []

    def many(run: str) -> None:
        for round in range(1, 50):
            question = asked(round=round)
            question.content["config"]["identity"] = run  # type: ignore[index]
            exchanged(keeper, question, reply())
            sizes.append(round)

    with pytest.raises(DeniedError, match=r"limits\.run-bytes"):
        many("one")
    first = len(sizes)
    with pytest.raises(DeniedError, match=r"limits\.day-bytes"):
        many("two")
    assert 0 < len(sizes) - first < first
    assert first * 20 <= 1000
    tomorrow = kept(keeper.home, datetime(2026, 11, 30, 12, 0))
    tomorrow.trust(RUN, b"a bundle")
    tomorrow.admit(RUN, {"rounds": 50, "method": "fedavg", "num-clients": 3}, "ann")
    question = asked(round=49)
    question.content["config"]["identity"] = "two"  # type: ignore[index]
    exchanged(tomorrow, question, reply())


def test_hours_count_for_every_request(tmp_path: Path) -> None:
    home, now = made(tmp_path / "owner"), datetime(2026, 11, 29, 17, 59)
    times = [now]
    keeper = kept(home)
    keeper._now = lambda: times[0]
    keeper.trust(RUN, b"a bundle")
    keeper.admit(RUN, {"rounds": 50, "method": "fedavg", "num-clients": 3}, "ann")
    keeper.ask(asked())
    times[0] = now + timedelta(minutes=1)
    with pytest.raises(DeniedError, match=r"limits\.hours"):
        keeper.ask(asked(round=2))


def test_a_policy_that_is_damaged_allows_nothing(tmp_path: Path) -> None:
    keeper = begun(tmp_path / "owner")
    policy = keeper.home.policy_file
    policy.write_text(HEAD + TRAIN + "norm = 3")
    with pytest.raises(DeniedError, match="policy"):
        keeper.ask(asked())
    policy.write_text(HEAD + TRAIN)
    keeper.ask(asked())
    policy.chmod(0o666)
    with pytest.raises(DeniedError, match="chmod go-w"):
        keeper.ask(asked(round=2))


def test_what_a_run_promises_counts_once(tmp_path: Path) -> None:
    text = HEAD.replace("[data]", '"privacy.unit" = "any"\n"privacy.epsilon" = "any"\n[data]')
    home = made(tmp_path / "owner", text + "[budget]\nepsilon = 5.0\n" + TRAIN)
    keeper = kept(home)

    def admit(run: int, epsilon: float) -> None:
        keeper.trust(run, b"a bundle")
        keeper.admit(run, {"rounds": 50, "method": "fedavg", "num-clients": 3, "privacy.unit": "example",
                           "privacy.epsilon": epsilon}, "ann")  # fmt: skip

    admit(1, 3.0)
    admit(1, 3.0)
    with pytest.raises(DeniedError, match=r"ε would be 6; at most 5"):
        admit(2, 3.0)
    admit(3, 2.0)
    with pytest.raises(DeniedError, match=r"no privacy\.epsilon"):
        admit(4, 0.0)


def test_endless_questions_do_not_fill_the_log(tmp_path: Path) -> None:
    """Of 300 refusals by one line 100 are logged, the 128th and the 256th; those by another line begin anew."""
    keeper = begun(tmp_path / "owner")
    for _ in range(300):
        with pytest.raises(DeniedError):
            keeper.ask(asked("gradient"))
    with pytest.raises(DeniedError):
        keeper.ask(asked(round=51))
    assert [entry["times"] for entry in entries(keeper.home, "refused")] == [*range(1, 101), 128, 256, 1]
