"""Simulated devices and the virtual clock, against closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from florilegium.apps.assembly.early_checks import check_early
from florilegium.clients.core.wire import Reply
from florilegium.clients.fedavg import FedAvgClient
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import NoHyper, Value
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.readiness import check_ready
from florilegium.strategies.exchange.clock import Clock, Job, Load
from florilegium.strategies.exchange.fleet import DAY, Fleet
from florilegium.strategies.exchange.roster import Member, Roster
from florilegium.strategies.exchange.traces import Traces, read_traces
from florilegium.strategies.fedavg import FedAvg
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.settings.fleet import FleetSettings
from tests.runs import Runs
from tests.support import config, settings

EQUAL: dict[str, Value] = {
    "fleet.speed": 50.0, "fleet.speed-sigma": 0.0, "fleet.download": 4.0, "fleet.upload": 1.0,
    "fleet.bandwidth-sigma": 0.0,
}  # fmt: skip
"""Devices that are all alike."""
NOTHING = Load("train", 0, 1e-9)
"""Training without anything to send."""
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
        devices = fleet.devices([str(client) for client in range(2000)])
        assert stats.kstest(devices.speed, stats.lognorm(0.5, scale=20).cdf).pvalue > 0.01
        assert stats.kstest(devices.upload, stats.lognorm(0.7, scale=1e6).cdf).pvalue > 0.01  # 8 Mbit/s is 1 MB/s
        assert abs(stats.spearmanr(devices.speed, devices.upload).statistic) < 0.06
        assert np.isinf([devices.download, devices.memory]).all()
        again = Fleet(FleetSettings(speed=20.0, speed_sigma=0.5, upload=8.0), 3).devices(["7"])  # asked for alone
        assert (again.speed[0], again.upload[0]) == (devices.speed[7], devices.upload[7])

    def test_diurnal_clients_are_online_once_a_day_for_their_share(self) -> None:
        fleet = Fleet(FleetSettings(speed=1.0, availability="diurnal", online=0.3), 1)
        times = np.arange(0, 2 * DAY, 300.0)
        devices = fleet.devices(["5"])
        online = np.array([fleet.online_until(devices, time)[0] > time for time in times])
        assert online.mean() == pytest.approx(0.3, abs=0.01)
        assert np.count_nonzero(np.diff(online.astype(int)) == 1) in (1, 2)
        first = float(times[np.flatnonzero(np.diff(online.astype(int)) == 1)[0] + 1])
        assert fleet.online_until(devices, first)[0] == pytest.approx(first + 0.3 * DAY, abs=300)
        assert fleet.next_begin(devices, first - 300)[0] == pytest.approx(first, abs=300)

    def test_traces_say_when_a_device_is_online_and_repeat(self, tmp_path: Path) -> None:
        file = tmp_path / "traces.csv"
        file.write_text("device,online,offline\na,10,20\na,40,100\n", encoding="utf-8")
        fleet = Fleet(FleetSettings(speed=1.0, availability=str(file)), 1)
        devices, times = fleet.devices(["0"]), (0.0, 10.0, 19.0, 20.0, 99.0, 105.0, 115.0)
        assert [fleet.online_until(devices, time)[0] for time in times] == [0, 20, 20, 20, 100, 105, 120]
        assert [fleet.next_begin(devices, time)[0] for time in times] == [10, 40, 40, 40, 110, 110, 140]

    def test_a_file_that_cannot_be_read_is_noticed_before_a_run_starts(self, tmp_path: Path) -> None:
        keys: dict[str, Value] = {"fleet.speed": 50.0, "fleet.availability": str(tmp_path / "traces.csv")}
        with pytest.raises(ConfigurationError, match=r"file .* cannot be read"):
            check_early(config(**keys))
        (tmp_path / "traces.csv").write_text("device,online,offline\na,0," + "9" * 200_000)  # too long for a field
        with pytest.raises(ConfigurationError, match=r"file .* cannot be read"):
            check_early(config(**keys))
        (tmp_path / "traces.csv").write_text("device,online,offline\na,0,5\n")
        check_early(config(**keys))

    def test_periods_that_meet_where_traces_repeat_are_one(self) -> None:
        night, always, day = [(0.0, 30.0), (70.0, 100.0)], [(0.0, 100.0)], [(0.0, 40.0), (50.0, 99.0)]
        traces, places = Traces([night, always, day], 100.0), np.array([0.0, 0.4, 0.7])
        assert traces.online_until(places, 80.0).tolist() == [130, math.inf, 99]
        assert traces.online_until(places, 120.0).tolist() == [130, math.inf, 140]
        assert traces.online_until(places, 150.0).tolist() == [150, math.inf, 199]

    def test_many_devices_follow_traces_as_each_alone_would(self) -> None:
        rng = np.random.default_rng(5)
        spans = []
        for _ in range(40):
            edges = np.sort(rng.choice(np.arange(1, 1000), 2 * rng.integers(1, 6), replace=False)).astype(float)
            spans.append([(a, b) for a, b in edges.reshape(-1, 2).tolist()])
        traces, places = Traces(spans, 1000.0), rng.random(200)
        for time in [0.0, 1000.0, *rng.integers(0, 5000, 50).astype(float)]:
            own = [[(k * 1000 + a, k * 1000 + b) for k in range(7) for a, b in spans[int(p * 40)]] for p in places]
            until = [next((b for a, b in periods if a <= time < b), time) for periods in own]
            assert traces.online_until(places, time).tolist() == until
            assert traces.next_begin(places, time).tolist() == [min(a for a, _ in o if a > time) for o in own]

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
        unused = clock.wait((jobs, 2))
        assert clock.now == 7.0
        assert unused["b"] == "lost"
        assert unused["c"].startswith("not among the first 2")
        assert unused.keys() == {"b", "c"}

    def test_the_deadline_ends_an_exchange_that_lacks_replies(self) -> None:
        clock = _clock(**{"round-timeout": 8.0})
        clock.now = 1.0
        unused = clock.wait(([Job("a", 5.0), Job("b", 9.5), Job("c", 50.0)], 3))
        assert clock.now == 9.0
        assert unused.keys() == {"b", "c"}
        assert "round-timeout" in unused["b"]

    def test_who_will_fail_is_waited_for_until_the_server_notices(self) -> None:
        clock = _clock()
        assert clock.wait(([Job("a", 5.0), Job("b", 90.0, "lost"), Job("c", 2.0, "lost")], 3)) == {
            "b": "lost", "c": "lost",
        }  # fmt: skip
        assert clock.now == 90.0

    def test_failures_that_the_server_has_not_noticed_are_late_replies(self) -> None:
        clock = _clock(**{"round-timeout": 60.0})
        unused = clock.wait(([Job("a", 5.0), Job("b", 90.0, "lost")], 2))
        assert (clock.now, [*unused]) == (60.0, ["b"])
        assert "round-timeout" in unused["b"]
        clock = _clock()
        assert clock.wait(([Job("a", 5.0), Job("b", 90.0, "lost")], 1))["b"].startswith("not among the first 1")
        assert clock.now == 5.0

    def test_groups_that_are_asked_together_share_a_start(self) -> None:
        clock = _clock()
        clock.now = 10.0
        first, second = [Job("a", 30.0), Job("b", 70.0)], [Job("c", 40.0), Job("d", 50.0)]
        assert [*clock.wait((first, 1), (second, 2))] == ["b"]
        assert clock.now == 50.0

    def test_a_reply_is_as_much_larger_or_smaller_than_foreseen_as_in_the_last_exchange(self) -> None:
        clock, member = _clock(**EQUAL), [Member("0", 0, 0)]  # 500,000 and 125,000 bytes per second

        def seconds(load: Load) -> float:
            return clock.jobs(member, [1], load)[0].end

        assert seconds(Load("count", 1e6, 1e6)) == 2 + 8
        clock.heard(Load("count", 1e6, 1e6), 4, 4 * 125.0)  # clients were sent a model, and returned numbers
        assert seconds(Load("count", 1e6, 1e6)) == pytest.approx(2 + 0.001)
        assert seconds(Load("count", 5e5, 5e5)) == pytest.approx(1 + 0.0005)  # half the model
        assert seconds(Load("train", 1e6, 1e6)) == 2 + 8
        clock.heard(Load("make", 0, 1), 2, 2 * 125000.0)  # nothing was sent, and models came back
        assert seconds(Load("make", 0, 1)) == pytest.approx(1)
        again = _clock(**EQUAL)
        again.take_back(json.loads(json.dumps(clock.facts())))
        assert again.jobs(member, [1], Load("count", 1e6, 1e6)) == clock.jobs(member, [1], Load("count", 1e6, 1e6))

    def test_validation_examples_take_no_time(self) -> None:
        clock = _clock(**EQUAL, **{"validation-fraction": 0.25, "local-epochs": 2})
        labeled, unlabeled = Member("0", 200, 0), Member("1", 200, 0, labeled=False)
        ends = {phase: [job.end for job in clock.jobs([labeled, unlabeled], [1], Load(phase, 0, 1e-9))]
                for phase in ("train", "gradient")}  # fmt: skip
        assert ends["train"] == pytest.approx([2 * 150 / 50, 2 * 200 / 50])
        assert ends["gradient"] == pytest.approx([150 / 50, 200 / 50])

    def test_drop_outs_occur_at_their_rate(self) -> None:
        clock = _clock(**EQUAL, **{"fleet.dropout": 0.25})
        jobs = clock.jobs([Member(str(i), 100, 0) for i in range(2000)], [1], NOTHING)
        failed = [job.end - 60 for job in jobs if job.error]  # the server notices a minute later
        assert stats.binomtest(len(failed), 2000, 0.25).pvalue > 0.01
        whole = next(job.end for job in jobs if not job.error)
        assert stats.kstest(np.array(failed) / whole, "uniform").pvalue > 0.01

    def test_a_client_that_goes_offline_fails(self) -> None:
        clock = _clock(**EQUAL, **{"fleet.availability": "diurnal", "fleet.online": 0.5})
        member = Member("0", 10**7, 0)  # takes longer than a day
        clock.draw(["0"], 1, np.random.default_rng(0))  # waits until it is online
        begun = clock.now
        job = clock.jobs([member], [1], NOTHING)[0]
        assert "offline" in job.error
        assert begun < job.end - 60 <= begun + DAY / 2

    def test_only_clients_that_are_online_are_drawn(self) -> None:
        clock = _clock(**EQUAL, **{"fleet.availability": "diurnal", "fleet.phase-sigma": 12.0})
        clients = [str(i) for i in range(200)]
        fleet = Fleet(settings(**EQUAL, **{"fleet.availability": "diurnal", "fleet.phase-sigma": 12.0}).fleet, 1)
        online = {i for i in range(200) if fleet.online_until(fleet.devices([str(i)]), 0.0)[0] > 0.0}
        assert {*clock.draw(clients, 200, np.random.default_rng(0))} == online
        for count in (9, 60):
            order = np.random.default_rng(count).permutation(200).tolist()
            drawn = clock.draw(clients, count, np.random.default_rng(count))
            assert drawn == [i for i in order if i in online][:count]

    def test_the_server_looks_every_minute_for_clients_that_are_online(self, tmp_path: Path) -> None:
        file = tmp_path / "traces.csv"
        file.write_text("device,online,offline\na,130,140\na,1000,1200.5\n", encoding="utf-8")
        clock = _clock(**EQUAL, **{"fleet.availability": str(file)})
        clock.now = 7.0
        assert clock.draw(["0"], 1, np.random.default_rng(0)) == [0]  # the first period begins and ends between looks
        assert clock.now == 7 + 17 * 60

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

    def test_compressed_uploads_are_foreseen(self, tmp_path: Path) -> None:
        """The first upload is as short as the second, and as the bytes that are counted."""
        keys: dict[str, Value] = {"fleet.upload": 1.0, "fleet.bandwidth-sigma": 0.0}
        path = Runs(tmp_path, KEYS)("one", **keys, **{"compression.scheme": "quantise", "compression.bits": 2})
        counted = [line["training"]["bytes_up"] / 4 for line in read_metrics(path)[:2]]
        assert counted[0] < 650  # of 2600 bytes
        assert _simulated(path)[:2] == pytest.approx(np.cumsum(counted) * 8 / 1e6, abs=1e-3)

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
        assert {*left_out} == {str(i) for i in range(8) if fleet.devices([str(i)]).memory[0] < 7800}
        assert 0 < len(left_out) < 8

    def test_real_devices_have_no_law(self) -> None:
        roster: Any = Roster(list, 1, "code")
        roster.deployed, roster.clients = True, {"0": Member("0", 9, 9)}
        setup = Setup(settings(**EQUAL), NoHyper(), FedAvgClient, roster, cast(Any, None))
        with pytest.raises(ConfigurationError, match="fleet"):
            check_ready(FedAvg(setup))
