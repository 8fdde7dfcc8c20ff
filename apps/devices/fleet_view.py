"""What table ``fleet`` makes of a federation's clients: numbers and a picture, for ``florilegium fleet``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from florilegium.apps.assembly.parts import population
from florilegium.apps.settings.configuration import Settings
from florilegium.clients.core.network import network_for
from florilegium.common.figures import ShownFigure
from florilegium.models.parameters import get_arrays, num_bytes
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.exchange.clock import trained
from florilegium.strategies.exchange.fleet import DAY, Fleet

SECONDS = "seconds for a round"
_TIMES = np.arange(0, 97) * DAY / 96
"""Times of the first day for which the share of clients online is counted, in seconds."""


@dataclass(frozen=True)
class FleetView:
    """The devices of all clients.

    Attributes:
        quantities: for each quantity that takes time or is limited, its value for every client.
        online: share of the clients that are online, at each time of ``_TIMES``.
    """

    quantities: Mapping[str, NDArray[np.float64]]
    online: NDArray[np.float64]


def fleet_view(settings: Settings) -> FleetView:
    """Return the devices of a federation's clients. A round sends the whole network both ways, and trains.

    Raises:
        ConfigurationError, DataError: if the federation cannot be made.
    """
    members, fleet = population(settings), Fleet(settings.fleet, settings.seed)
    examples = [trained(settings, member.without_validation(settings.validation_fraction)) for member in members]
    size = num_bytes(get_arrays(network_for(dataset_of(settings), settings, settings.seed)))
    devices = fleet.devices([member.id for member in members])
    quantities = {
        "examples per second": devices.speed,
        "download, Mbit/s": devices.download * 8 / 1e6,
        "upload, Mbit/s": devices.upload * 8 / 1e6,
        "memory, MB": devices.memory / 1e6,
        SECONDS: devices.seconds(size, np.array(examples), size),
    }
    online = [np.mean(fleet.online_until(devices, time) > time) for time in _TIMES]
    limited = {name: values for name, values in quantities.items() if 0 < values.min() <= values.max() < np.inf}
    return FleetView(limited, np.array(online))


def fleet_rows(view: FleetView) -> list[list[str]]:
    """Return a row for each quantity: its value for a slow, the median and a fast client."""
    rows = []
    for name, values in view.quantities.items():
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
        slow, fast = (high, low) if name == SECONDS else (low, high)
        rows.append([name, *(f"{value:.4g}" for value in (slow, middle, fast))])
    return rows


def draw_fleet(view: FleetView) -> Figure:
    """Draw the distribution of each quantity over clients, and the share of clients online during the first day."""
    figure = ShownFigure(3.6 * (len(view.quantities) + 1), 3.4)
    *axes, last = figure.subplots(1, len(view.quantities) + 1)
    for one, (name, values) in zip(axes, view.quantities.items(), strict=True):
        one.step(np.sort(values), np.arange(1, len(values) + 1) / len(values), where="post")
        one.set(xlabel=name, ylabel="share of clients at or below", xscale="log")
        one.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        one.xaxis.set_major_formatter("{x:g}")
        one.xaxis.set_minor_locator(NullLocator())
    last.plot(_TIMES / 3600, view.online)
    last.set(xlabel="hour of the first day", ylabel="share of clients online", ylim=(-0.03, 1.03))
    for one in (*axes, last):
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure
