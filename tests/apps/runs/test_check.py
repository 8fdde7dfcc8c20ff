"""``florilegium check``: what a run would refuse, what differs from the defaults, and an estimate that runs confirm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from florilegium.apps.runs import check
from florilegium.apps.runs.check import check_run
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import Value
from tests.grid import run_app
from tests.support import CACHE, config

KEYS: dict[str, Value] = {
    "num-clients": 6, "rounds": 4, "participation": 0.5, "local-steps": 2, "evaluate-every": 2, "cache-dir": str(CACHE),
}  # fmt: skip


def test_bytes_and_counts_are_those_of_the_run(tmp_path: Path) -> None:
    found = check_run(KEYS)
    assert (found.clients, found.cohort, found.rounds) == (6, 3, 4)
    assert found.estimate["client trainings"] == 12
    assert found.estimate["client tests"] == 12  # of six, after rounds 2 and 4
    run_app(config(**KEYS, **{"runs-dir": str(tmp_path), "run-name": "run"}))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found.estimate["MB received"] == pytest.approx(summary["bytes_up"] / 1e6)
    assert found.estimate["MB sent to clients"] == pytest.approx(summary["bytes_down"] / 1e6)
    assert found.estimate["seconds, one worker"] > 0


def test_changed_keys_stand_beside_their_defaults() -> None:
    changed = check_run({**KEYS, "learning-rate": 0.25}).changed
    assert changed["learning-rate"] == (0.25, config()["learning-rate"])
    assert changed.keys() == {*KEYS, "learning-rate"} - {"participation"}  # 0.5 is the default


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rounds": -1}, "rounds"), ({"method": "fedsilly"}, "method"), ({"num-clients": 5000}, "num-clients"),
        ({"cohort-size": 7}, "cohort-size"), ({"init": "nowhere"}, "there is no run 'nowhere'"),
    ],
)  # fmt: skip
def test_what_a_run_refuses_is_refused(keys: dict[str, Value], said: str) -> None:
    with pytest.raises((ConfigurationError, DataError), match=said):
        check_run({**KEYS, **keys})


def test_where_one_client_cannot_be_rehearsed_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(keys: object) -> dict[str, float]:
        raise ConfigurationError("rounds: the stages need 60")

    monkeypatch.setattr(check, "_rehearsed", refuse)
    found = check_run(KEYS)
    assert (found.estimate, found.why) == ({}, "rounds: the stages need 60")
