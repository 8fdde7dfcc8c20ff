"""The fleet as ``florilegium fleet`` shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.devices.fleet_view import SECONDS, draw_fleet, fleet_rows, fleet_view
from tests.support import CACHE, settings


def test_devices_that_are_alike_take_the_time_of_the_closed_form() -> None:
    """A linear network on digits has 650 parameters of 4 bytes."""
    view = fleet_view(settings(**{
        "model": "linear", "partitioner": "iid", "num-clients": 10, "local-epochs": 2, "fleet.speed": 100.0,
        "fleet.speed-sigma": 0.0, "fleet.upload": 0.0208, "fleet.bandwidth-sigma": 0.0,
        "fleet.availability": "diurnal", "fleet.online": 0.25,
    }))  # fmt: skip
    assert list(view.quantities) == ["examples per second", "upload, Mbit/s", SECONDS]
    trained = 2 * 143.7 / 100
    assert view.quantities[SECONDS] == pytest.approx([trained + 650 * 4 * 8 / 20800] * 10, abs=0.02)
    assert view.online[:-1].mean() == pytest.approx(0.25, abs=0.01)
    assert fleet_rows(view)[0] == ["examples per second", "100", "100", "100"]
    assert len(draw_fleet(view).axes) == 4


def test_a_fleet_without_devices_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["fleet", "--set", f"cache-dir={CACHE}"])
    assert done.exit_code != 0
    assert "fleet.speed" in str(done.exception)
