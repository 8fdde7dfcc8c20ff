"""The devices of a simulation: what the clients' devices can do, and when they are online.

All that is random about a client is drawn from the run's seed and the client's name when it is needed, for many clients
at once, so that memory does not grow with the fleet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from florilegium.common.seeds import uniforms
from florilegium.common.settings import folder
from florilegium.strategies.exchange.traces import Traces, read_traces
from florilegium.strategies.settings.fleet import ALWAYS, DIURNAL, FleetSettings

DAY = 86400.0
"""Seconds of a day."""
_BYTES = 1e6 / 8
"""Bytes per second of one megabit per second."""
_NORMAL = NormalDist()

Floats = NDArray[np.float64]


class Devices:
    """What the devices of some clients can do: arrays in the order of the clients, computed when they are needed.

    Args:
        settings: how devices are distributed.
        drawn: eight uniform numbers for each client.
    """

    def __init__(self, settings: FleetSettings, drawn: Floats) -> None:
        self._settings, self._drawn = settings, drawn

    @cached_property
    def speed(self) -> Floats:
        """Training examples per second; infinite if computation takes no time."""
        return self._lognormal(self._settings.speed, self._settings.speed_sigma, 0)

    @cached_property
    def download(self) -> Floats:
        """Bytes per second to the devices; infinite if downloads take no time."""
        return self._lognormal(self._settings.download * _BYTES, self._settings.bandwidth_sigma, 1)

    @cached_property
    def upload(self) -> Floats:
        """Bytes per second from the devices; infinite if uploads take no time."""
        return self._lognormal(self._settings.upload * _BYTES, self._settings.bandwidth_sigma, 2)

    @cached_property
    def memory(self) -> Floats:
        """Bytes for training; infinite if unlimited."""
        return self._lognormal(self._settings.memory * 1e6, self._settings.memory_sigma, 3)

    @cached_property
    def phase(self) -> Floats:
        """Time of day at which online hours begin, in seconds, for diurnal availability."""
        return self._settings.phase_sigma * 3600 * self._normal(4)

    @property
    def place(self) -> Floats:
        """Numbers in [0, 1) that choose traces from a file."""
        return self._drawn[:, 5]

    def seconds(self, down: float, examples: Floats, up: float) -> Floats:
        """Return how long it takes to receive ``down`` bytes, train on ``examples``, and send ``up`` bytes."""
        return down / self.download + examples / self.speed + up / self.upload

    def _lognormal(self, median: float, sigma: float, column: int) -> Floats:
        """Return median·e^(σz); infinity, which takes no time, for a median of 0."""
        if not median:
            return np.full(len(self._drawn), math.inf)
        values: Floats = median * np.exp(sigma * self._normal(column))
        return values

    def _normal(self, column: int) -> Floats:
        return np.array([_NORMAL.inv_cdf(u) for u in self._drawn[:, column].tolist()])


class Fleet:
    """The devices of a simulation's clients.

    Args:
        settings: how they are distributed.
        seed: the run's seed.
    """

    def __init__(self, settings: FleetSettings, seed: int) -> None:
        self._settings, self._seed = settings, seed

    def devices(self, clients: Sequence[str]) -> Devices:
        """Return the devices of clients: log-normal speed, bandwidths and memory, and their hours."""
        return Devices(self._settings, uniforms(self._seed, ["fleet"], clients))

    def online_until(self, devices: Devices, time: float) -> Floats:
        """Return the end of the period, in seconds, in which each device is online at ``time``; ``time`` if offline.

        Raises:
            ConfigurationError: if the trace file cannot be read.
        """
        availability = self._settings.availability
        if availability == ALWAYS:
            return np.full(len(devices.place), math.inf)
        if availability == DIURNAL:
            since = (time - devices.phase) % DAY
            return np.maximum(time, time - since + self._settings.online * DAY)
        return self._traces.online_until(devices.place, time)

    def next_begin(self, devices: Devices, time: float) -> Floats:
        """Return when the next period begins in which each device is online, after ``time``; it may be online now.

        Raises:
            ConfigurationError: if the trace file cannot be read.
        """
        if self._settings.availability == DIURNAL:
            return time - (time - devices.phase) % DAY + DAY
        return self._traces.next_begin(devices.place, time)

    def drop_outs(self, clients: Sequence[str], phase: str, path: Sequence[int]) -> Floats:
        """Return the share of its time after which each client fails in this phase of a round; NaN: it does not.

        ``path`` names the draw: the round's number, and another one if clients begin several times in a round.
        """
        rate = self._settings.dropout
        if not rate:
            return np.full(len(clients), math.nan)
        whether, when = uniforms(self._seed, ["fleet"], clients, [phase, *path])[:, :2].T
        return np.where(whether < rate, when, math.nan)

    @property
    def always_online(self) -> bool:
        """Whether all clients are online all the time."""
        return self._settings.availability == ALWAYS

    @cached_property
    def _traces(self) -> Traces:
        return Traces(*read_traces(Path(folder(self._settings.availability))))
