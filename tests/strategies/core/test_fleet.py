"""Simulated devices and the virtual clock, against closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from florilegium.clients.core.wire import Reply
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.strategies.core.clock import Clock, Job
from florilegium.strategies.core.fleet import DAY, Fleet, read_traces
from florilegium.strategies.core.fleet_settings import FleetSettings
from florilegium.strategies.core.metrics_file import read_metrics
from florilegium.strategies.core.roster import Member
from florilegium.strategies.core.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import settings

EQUAL: dict[str, Value] = {
    "fleet.speed": 50.0, "fleet.speed-sigma": 0.0, "fleet.download": 4.0, "fleet.upload": 1.0,
    "fleet.bandwidth-sigma": 0.0,
}  # fmt: skip
"""Devices that are all alike."""
KEYS: dict[str, Value] = {
    "model": "linear", "num-clients": 8, "cohort-size": 4, "rounds": 2, "local-epochs": 2, "evaluate-every": 0,
    "checkpoint-every": 1,
}  # fmt: skip


def _simulated(path: Path) -> list[float]:
    return [line["simulated_seconds"] for line in read_metrics(path)]


def _clock(**keys: Value) -> Clock:
    return Clock(settings(**keys))


class TestFleet:
    def test_speeds_are_lognormal(self) -> None:
        fleet = Fleet(FleetSettings(speed=20.0, speed_sigma=0.5, upload=8.0), 3)
        devices = [fleet.device(str(client)) for client in range(2000)]
        speeds, uploads = (np.array([getattr(d, name) for d in devices]) for name in ("speed", "upload"))
        assert stats.kstest(speeds, stats.lognorm(0.5, scale=20).cdf).pvalue > 0.01
        assert stats.kstest(uploads, stats.lognorm(0.7, scale=1e6).cdf).pvalue > 0.01  # 8 Mbit/s is 1 MB/s
        assert abs(stats.spearmanr(speeds, uploads).statistic) < 0.06
        assert all(math.isinf(device.download) and math.isinf(device.memory) for device in devices)
        assert fleet.device("7") == Fleet(FleetSettings(speed=20.0, speed_sigma=0.5, upload=8.0), 3).device("7")

    def test_diurnal_clients_are_online_once_a_day_for_their_share(self) -> None:
        fleet = Fleet(FleetSettings(speed=1.0, availability="diurnal", online=0.3), 1)
        times = np.arange(0, 2 * DAY, 300.0)
        online = np.array([fleet.online_until("5", time) > time for time in times])
        assert online.mean() == pytest.approx(0.3, abs=0.01)
        assert np.count_nonzero(np.diff(online.astype(int)) == 1) in (1, 2)
        first = float(times[np.flatnonzero(np.diff(online.astype(int)) == 1)[0] + 1])
        assert fleet.online_until("5", first) == pytest.approx(first + 0.3 * DAY, abs=300)

    def test_traces_say_when_a_device_is_online_and_repeat(self, tmp_path: Path) -> None:
        file = tmp_path / "traces.csv"
        file.write_text("device,online,offline\na,10,20\na,40,100\n", encoding="utf-8")
        fleet = Fleet(FleetSettings(speed=1.0, availability=str(file)), 1)
        ends = [fleet.online_until("0", time) for time in (0.0, 10.0, 19.0, 20.0, 99.0, 105.0, 115.0)]
        assert ends == [0.0, 20.0, 20.0, 20.0, 100.0, 105.0, 120.0]

    @pytest.mark.parametrize(("text", "said"), [
        ("device,online\na,1\n", "columns"), ("device,online,offline\na,5,9\na,8,12\n", "overlap"),
        ("device,online,offline\n", "no device"),
    ])  # fmt: skip
    def test_wrong_traces_are_refused(self, tmp_path: Path, text: str, said: str) -> None:
        file = tmp_path / "traces.csv"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigurationError, match=said):
            read_traces(file)

    def test_availability_without_time_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="time, which does not pass"):
            settings(**{"fleet.availability": "diurnal"})


class TestClock:
    def test_the_slowest_reply_that_is_used_ends_an_exchange(self) -> None:
        clock = _clock(**{"round-timeout": 100.0})
        jobs = [Job("a", 5.0), Job("b", 3.0, "lost"), Job("c", 9.0), Job("d", 7.0)]
        unused = clock.wait(jobs, 2)
        assert clock.now == 7.0
        assert unused["b"] == "lost"
        assert unused["c"].startswith("not among the first 2")
        assert unused.keys() == {"b", "c"}

    def test_the_deadline_ends_an_exchange_that_lacks_replies(self) -> None:
        clock = _clock(**{"round-timeout": 8.0})
        clock.now = 1.0
        unused = clock.wait([Job("a", 5.0), Job("b", 9.5), Job("c", 50.0)], 3)
        assert clock.now == 9.0
        assert unused.keys() == {"b", "c"}
        assert "round-timeout" in unused["b"]

    def test_who_fails_is_not_waited_for(self) -> None:
        clock = _clock()
        assert clock.wait([Job("a", 5.0), Job("b", 90.0, "lost")], 2) == {"b": "lost"}
        assert clock.now == 5.0

    def test_drop_outs_occur_at_their_rate(self) -> None:
        clock = _clock(**EQUAL, **{"fleet.dropout": 0.25})
        jobs = clock.jobs([Member(str(i), 100, 0) for i in range(2000)], "train", [1], 0.0, 0.0)
        failed = [job.end for job in jobs if job.error]
        assert stats.binomtest(len(failed), 2000, 0.25).pvalue > 0.01
        whole = next(job.end for job in jobs if not job.error)
        assert stats.kstest(np.array(failed) / whole, "uniform").pvalue > 0.01

    def test_a_client_that_goes_offline_fails(self) -> None:
        clock = _clock(**EQUAL, **{"fleet.availability": "diurnal", "fleet.online": 0.5})
        member = Member("0", 10**7, 0)  # takes longer than a day
        clock.draw(["0"], 1, np.random.default_rng(0))  # waits until it is online
        begun = clock.now
        job = clock.jobs([member], "train", [1], 0.0, 0.0)[0]
        assert "offline" in job.error
        assert begun < job.end <= begun + DAY / 2

    def test_only_clients_that_are_online_are_drawn(self) -> None:
        clock = _clock(**EQUAL, **{"fleet.availability": "diurnal", "fleet.phase-sigma": 12.0})
        clients = [str(i) for i in range(200)]
        fleet = Fleet(settings(**EQUAL, **{"fleet.availability": "diurnal", "fleet.phase-sigma": 12.0}).fleet, 1)
        online = {i for i in range(200) if fleet.online_until(str(i), 0.0) > 0.0}
        assert {*clock.draw(clients, 200, np.random.default_rng(0))} == online
        assert len({*clock.draw(clients, 9, np.random.default_rng(0))} & online) == 9

    def test_nobody_online_for_a_week_ends_the_run(self, tmp_path: Path) -> None:
        file = tmp_path / "traces.csv"
        file.write_text("device,online,offline\na,9e6,9.1e6\n", encoding="utf-8")
        with pytest.raises(RunError, match="a week"):
            _clock(**EQUAL, **{"fleet.availability": str(file)}).draw(["0"], 1, np.random.default_rng(0))


class TestRuns:
    def test_time_is_download_training_and_upload_of_the_slowest(self, tmp_path: Path) -> None:
        runs = Runs(tmp_path, KEYS)
        path = runs("one", **EQUAL)
        replies = [Reply.unpack(got.content) for asked, got in zip(runs.grid.sent, runs.grid.received, strict=True)
                   if asked.metadata.message_type == "train"]  # fmt: skip
        numbers = [reply.metrics for reply in replies]
        sizes = [max(n["num-examples"][0] for n in numbers[i : i + 2]) for i in (0, 2)]  # the largest comes first
        down, up = numbers[0]["bytes-down"][0], numbers[0]["bytes-up"][0]
        spent = [down * 8 / 4e6 + 2 * size / 50 + up * 8 / 1e6 for size in sizes]
        assert _simulated(path)[:2] == pytest.approx(np.cumsum(spent), abs=2e-3)
        assert json.loads((path / "summary.json").read_text())["simulated_seconds"] == _simulated(path)[-1]

    @pytest.mark.long
    def test_time_changes_no_result(self, tmp_path: Path) -> None:
        runs = Runs(tmp_path, KEYS)
        timed, timeless = (read_checkpoint(runs(name, **keys)) for name, keys in (("a", EQUAL), ("b", {})))
        assert all(np.array_equal(timed.arrays[name], array) for name, array in timeless.arrays.items())

    @pytest.mark.long
    def test_oversampling_takes_the_fastest(self, tmp_path: Path) -> None:
        runs = Runs(tmp_path, {**KEYS, "fleet.speed": 50.0, "fleet.speed-sigma": 2.0, "rounds": 3})
        plain, over = runs("plain"), runs("over", oversample=2.0)
        assert _simulated(over)[-1] < _simulated(plain)[-1]
        asked = [message for message in runs.grid.sent if message.metadata.message_type == "train"]
        assert sum(len(message.content["config"]["clients"]) for message in asked) == 3 * 4  # the others never train

    @pytest.mark.long
    def test_resume_continues_the_clock(self, tmp_path: Path) -> None:
        keys: dict[str, Value] = {"fleet.speed": 50.0, "fleet.dropout": 0.1, "rounds": 3}
        whole, broken = Runs(tmp_path, KEYS).whole_and_broken(3, **keys)
        assert _simulated(whole) == _simulated(broken)

    @pytest.mark.long
    def test_clients_without_memory_take_no_part(self, tmp_path: Path) -> None:
        """A linear network on digits has 650 parameters: 7,800 bytes as received, as trained, and as gradient."""
        path = Runs(tmp_path, KEYS)("small", **{"fleet.memory": 0.0078, "fleet.memory-sigma": 1.0, "cohort-size": 1})
        left_out = json.loads((path / "summary.json").read_text())["left_out"]
        fleet = Fleet(FleetSettings(memory=0.0078, memory_sigma=1.0), 1)
        assert {*left_out} == {str(i) for i in range(8) if fleet.device(str(i)).memory < 7800}
        assert 0 < len(left_out) < 8

    def test_real_devices_have_no_law(self) -> None:
        from florilegium.strategies.fedavg import FedAvg

        found = settings(**EQUAL)
        roster = SimpleNamespace(deployed=True, ids=lambda *groups: ["0"])
        strategy = cast(Any, SimpleNamespace(
            settings=found, roster=roster, trainable=lambda: ["0"], makes_models=False,
        ))  # fmt: skip
        with pytest.raises(ConfigurationError, match="fleet"):
            FedAvg.check_roster(strategy)
