"""The devices of a simulation: what each client's device can do, and when it is online.

All that is random about a client is drawn from the run's seed and the client's name when it is needed, so that memory
does not grow with the fleet.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import NormalDist

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import uniforms
from florilegium.common.settings import folder
from florilegium.strategies.core.fleet_settings import ALWAYS, DIURNAL, FleetSettings

DAY = 86400.0
"""Seconds of a day."""
_NORMAL = NormalDist()
_REMEMBERED = 1 << 12
"""Most clients whose devices are kept in memory."""
_BYTES = 1e6 / 8
"""Bytes per second of one megabit per second."""


@dataclass(frozen=True)
class Device:
    """What a client's device can do.

    Attributes:
        speed: training examples per second; infinite if computation takes no time.
        download, upload: bytes per second to and from the device; infinite if they take no time.
        memory: bytes for training; infinite if unlimited.
        phase: time of day at which its online hours begin, in seconds, for diurnal availability.
        place: number in [0, 1) that chooses its trace from a file.
    """

    speed: float
    download: float
    upload: float
    memory: float
    phase: float
    place: float

    def seconds(self, down: float, examples: float, up: float) -> float:
        """Return how long it takes to receive ``down`` bytes, train on ``examples``, and send ``up`` bytes."""
        return down / self.download + examples / self.speed + up / self.upload


class Fleet:
    """The devices of a simulation's clients.

    Args:
        settings: how they are distributed.
        seed: the run's seed.

    Attributes:
        device: returns the device of a client.
    """

    def __init__(self, settings: FleetSettings, seed: int) -> None:
        self._settings, self._seed = settings, seed
        self.device = lru_cache(maxsize=_REMEMBERED)(self._device)

    def _device(self, client: str) -> Device:
        """Return the device of a client: log-normal speed, bandwidths and memory, and its hours."""
        s, drawn = self._settings, uniforms(self._seed, "fleet", client)
        speed, down, up, memory, hour = map(_NORMAL.inv_cdf, drawn[:5])
        return Device(
            _lognormal(s.speed, s.speed_sigma, speed),
            _lognormal(s.download * _BYTES, s.bandwidth_sigma, down),
            _lognormal(s.upload * _BYTES, s.bandwidth_sigma, up),
            _lognormal(s.memory * 1e6, s.memory_sigma, memory),
            s.phase_sigma * 3600 * hour,
            drawn[5],
        )

    def online_until(self, client: str, time: float) -> float:
        """Return the end of the period, in seconds, in which a client is online at ``time``; ``time`` if it is offline.

        Raises:
            ConfigurationError: if the trace file cannot be read.
        """
        availability = self._settings.availability
        if availability == ALWAYS:
            return math.inf
        device = self.device(client)
        if availability == DIURNAL:
            since = (time - device.phase) % DAY
            return max(time, time - since + self._settings.online * DAY)
        spans, length = self._traces
        own = spans[int(device.place * len(spans))]
        begun = time - time % length
        index = bisect_right(own, (time - begun, math.inf)) - 1
        return max(time, begun + own[index][1]) if index >= 0 else time

    def drops_out(self, client: str, phase: str, path: Sequence[int]) -> float | None:
        """Return the share of its time after which a client fails in this phase of a round; None: it does not.

        ``path`` names the draw: the round's number, and another one if the client begins several times in a round.
        """
        rate = self._settings.dropout
        if not rate:
            return None
        whether, when, *_ = uniforms(self._seed, "fleet", client, phase, *path)
        return when if whether < rate else None

    @property
    def always_online(self) -> bool:
        """Whether all clients are online all the time."""
        return self._settings.availability == ALWAYS

    @cached_property
    def _traces(self) -> tuple[Sequence[Sequence[tuple[float, float]]], float]:
        return read_traces(Path(folder(self._settings.availability)))


def _lognormal(median: float, sigma: float, z: float) -> float:
    """Return median·e^(σz); infinity, which takes no time, for a median of 0."""
    return median * math.exp(sigma * z) if median else math.inf


def read_traces(path: Path) -> tuple[list[list[tuple[float, float]]], float]:
    """Return the periods in which each device of a trace file is online, in order, and the file's length in seconds.

    Args:
        path: a CSV file with the columns ``device``, ``online`` and ``offline``: names, and seconds from 0 on.

    Raises:
        ConfigurationError: if the file cannot be read, lacks a column, or has periods that are empty or overlap.
    """
    wrong = f"fleet.availability: the trace file {path}"
    found: dict[str, list[tuple[float, float]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as text:
            for line in csv.DictReader(text):
                found.setdefault(line["device"], []).append((float(line["online"]), float(line["offline"])))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{wrong} cannot be read ({type(error).__name__}: {error}); it needs the columns device, online, offline, "
            "in seconds"
        ) from error
    spans = [sorted(own) for own in found.values()]
    for name, own in zip(found, spans, strict=True):
        edges = [edge for span in own for edge in span]
        if not all(math.isfinite(edge) and edge >= 0 for edge in edges) or edges != sorted(set(edges)):
            raise ConfigurationError(f"{wrong}: periods of device '{name}' are empty, overlap, or begin before 0")
    if not spans:
        raise ConfigurationError(f"{wrong} names no device")
    return spans, max(own[-1][1] for own in spans)
