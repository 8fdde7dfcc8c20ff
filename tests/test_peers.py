"""The section ``peers`` of the benchmarks, without any of the packages."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers import measuring
from benchmarks.peers.measuring import Course, Peer, PeerRow

SCRIPT = """
import json, sys, time
print("a package's own line"); print("[1, 2]"); print('{"round": 1}')
for number in range(1, int(sys.argv[1]) + 1):
    print(json.dumps({"round": number, "time": time.monotonic(), "steps": 30 * number}), flush=True)
"""


def test_a_script_is_followed_by_its_stamps(tmp_path: Path) -> None:
    before = time.monotonic()
    course = measuring.follow([sys.executable, "-c", SCRIPT, "5"], 5, tmp_path)
    assert len(course.ends) == 5
    assert 0 < course.ends[0] < course.ends[-1] < time.monotonic() - before
    assert course.steps == 30


def test_a_script_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="1 of 4 rounds ended: ValueError: no data"):
        measuring.follow([sys.executable, "-c", SCRIPT + "raise ValueError('no data')", "1"], 4, tmp_path)


def test_rounds_are_measured_after_the_first_ones() -> None:
    assert Course([9, 19, 20, 22, 25], 0, 0, 0).seconds == 2


def test_a_row_has_all_passes_and_steps_that_differ() -> None:
    courses = [Course([3, 4, 4.5], 1.25, 750, 0.9), Course([2, 3, 3.75], 1, 751, 1)]
    cells = PeerRow("fedavg", "Else, 2 workers", courses, "else==1").cells()
    assert cells[2:6] == ("0.50–0.75", "1.00–1.25", "2.0–3.0", "1.00")
    assert cells[6] == "else==1; 750–751 SGD steps a round, not 750"
    assert PeerRow("fedavg", "Else", courses[:1], "else==1").cells()[6] == "else==1"
    assert "not 1500" in PeerRow("ditto", "Else", courses[:1]).cells()[6]


def test_a_package_without_environment_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PEERS", [Peer("Else", "own", ["fedavg"], ["else==1"], python="2.0")])
    (row,) = measuring.rows(2, methods=["fedavg"])
    assert row.cells()[:6] == ("FedAvg", "Else", "–", "–", "–", "–")
    assert row.cells()[6].startswith("no environment: ")
    assert "2.0" in row.cells()[6]


def test_lines_of_other_methods_are_kept(tmp_path: Path) -> None:
    target, courses = tmp_path / "measured.md", [Course([3, 4, 4.5], 1.25, 750, 0.9)]
    measuring.write(measuring.lines([PeerRow("fedavg", "Else", courses), PeerRow("ditto", "Else", courses)], 2), target)
    measuring.write(measuring.lines([PeerRow("fedavg", "Other", courses)], 2), target)
    head, rule, first, second, end = target.read_text(encoding="utf-8").splitlines()
    assert head.count("|") == rule.count("|") == first.count("|") == second.count("|")
    assert (first[:17], second[:16], end) == ("| FedAvg | Other ", "| Ditto | Else |", "")


def test_every_script_is_there() -> None:
    for peer in measuring.PEERS:
        assert (Path(measuring.__file__).parent / f"{peer.module}.py").exists()
        assert {*peer.methods} <= measuring.METHODS.keys()
