"""The pace of a run, its expected end, and its curve of characters."""

from __future__ import annotations

import pytest

from florilegium.apps.runs.pace import RECENT, Pace, curve, in_words, pace_of


def test_pace_is_that_of_the_last_rounds() -> None:
    """Ten slow rounds of 9 s, then 20 of 2 s with four clients each, one of which fails: 3 ÷ 2 clients a second."""
    seconds = [9.0 * number for number in range(1, 11)] + [90 + 2.0 * number for number in range(1, RECENT + 1)]
    lines = [
        {"round": number, "seconds": at, "training": {"clients": 4, "failed": 1}}
        for number, at in enumerate(seconds, start=1)
    ]
    assert pace_of(lines, 100) == Pace(clients=1.5, left=70 * 2.0)
    assert pace_of(lines, 30) == Pace(clients=1.5, left=0.0)
    assert pace_of(lines[:1], 100) is None
    assert pace_of([], 100) is None
    assert pace_of([lines[0], {**lines[1], "seconds": 9.0}], 100) is None  # a clock that stands still


def test_a_curve_rises_from_the_smallest_to_the_largest_value() -> None:
    rising = curve([(number, number / 10) for number in range(1, 9)], 40, height=1)
    assert rising == ["0.8 ▁▂▃▄▅▆▇█", "    1      8"]
    tall = curve([(0, 2.0), (1, 1.0)], 40, height=2)
    assert tall == ["2 █", "1 █▁", "  0–1"]
    flat = curve([(5, 0.5), (10, 0.5)], 40, height=1)
    assert flat[0] == "0.5 " + 6 * "▁"


def test_a_long_curve_fits_and_keeps_its_last_value() -> None:
    points = [(number, 0.0) for number in range(1, 1000)] + [(1000, 1.0)]
    lines = curve(points, 60)
    assert max(map(len, lines)) == 60
    assert lines[0].startswith("1 ")
    assert lines[0].endswith("█")
    assert lines[-1].split() == ["1", "1000"]


@pytest.mark.parametrize(("seconds", "words"), [(40.4, "40 s"), (180, "3 min"), (5300, "88 min"), (7500, "2 h 5 min")])
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
