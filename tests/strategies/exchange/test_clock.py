"""The virtual clock: how many examples a training takes, and when a device is noticed that is gone."""

from __future__ import annotations

import numpy as np
import pytest

from florilegium.strategies.exchange.clock import Clock, Load, trained
from florilegium.strategies.exchange.fleet import Fleet
from florilegium.strategies.exchange.roster import Member
from tests.support import settings

NOTHING = Load("train", 0, 1e-9)
"""Training without anything to send."""


@pytest.mark.parametrize(("examples", "expected"), [(5, 15), (16, 48), (100, 48)])
def test_a_step_takes_a_batch_or_all_examples_if_they_are_fewer(examples: int, expected: int) -> None:
    keys = {"local-steps": 3, "batch-size": 16}
    assert trained(settings(**keys), examples) == expected
    (job,) = Clock(settings(**keys, **{"fleet.speed": 50.0, "fleet.speed-sigma": 0.0})).jobs(
        [Member("a", examples, 0)], [1], NOTHING
    )
    assert job.end == pytest.approx(expected / 50.0, rel=1e-6)


@pytest.mark.parametrize("detection", [0.0, 60.0])
def test_a_device_that_drops_out_is_noticed_after_the_delay(detection: float) -> None:
    keys = {"fleet.speed": 50.0, "fleet.speed-sigma": 0.0, "fleet.dropout": 0.999, "fleet.detection": detection}
    s = settings(**keys, **{"local-epochs": 1})
    clients = [Member(str(i), 500, 0) for i in range(6)]
    shares = Fleet(s.fleet, s.seed).drop_outs([c.id for c in clients], "train", [1])
    assert not np.isnan(shares).all()
    for job, share in zip(Clock(s).jobs(clients, [1], NOTHING), shares, strict=True):
        gone = not np.isnan(share)
        assert job.end == pytest.approx(share * 10.0 + detection if gone else 10.0, rel=1e-6)
        assert bool(job.error) is gone


def test_a_device_that_goes_offline_is_noticed_after_the_delay() -> None:
    s = settings(**{
        "fleet.speed": 1.0, "fleet.speed-sigma": 0.0, "fleet.availability": "diurnal", "fleet.online": 0.5,
        "fleet.detection": 45.0, "local-epochs": 1,
    })  # fmt: skip
    fleet, clients = Fleet(s.fleet, s.seed), [Member(str(i), 10**6, 0) for i in range(8)]
    until = fleet.online_until(fleet.devices([c.id for c in clients]), 0.0)
    online = [i for i in range(8) if 0 < until[i] < 10**6]
    assert online
    jobs = Clock(s).jobs(clients, [1], NOTHING)
    for i in online:
        assert jobs[i].end == pytest.approx(until[i] + 45.0, rel=1e-9)
        assert jobs[i].error == "its device went offline"


def test_without_time_nothing_is_waited_for() -> None:
    s = settings(**{"fleet.dropout": 0.999, "fleet.detection": 60.0})
    assert {job.end for job in Clock(s).jobs([Member(str(i), 500, 0) for i in range(6)], [1], NOTHING)} == {0.0}
