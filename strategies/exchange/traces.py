"""Traces of availability from a file: when devices are online."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError

Floats = NDArray[np.float64]
Span = tuple[float, float]
"""A period in which a device is online: its begin and its end, in seconds."""


class Traces:
    """Traces that repeat, so that a period that ends with the file's length goes on with one that begins at 0.

    Args:
        spans: for each trace its periods, in order.
        length: seconds after which all traces repeat.
    """

    def __init__(self, spans: Sequence[Sequence[Span]], length: float) -> None:
        self._count, self._length = len(spans), length
        self._edges = np.cumsum([0, *map(len, spans)])  # of trace i: the periods from edge i to edge i + 1
        flat = np.array([span for own in spans for span in own])
        self._begins, self._ends = flat[:, 0], flat[:, 1].copy()
        for own, last in zip(spans, self._edges[1:] - 1, strict=True):
            if own[0][0] == 0 and own[-1][1] == length:
                self._ends[last] = length + own[0][1] if len(own) > 1 else math.inf
        # Traces one after the other, so that one search finds the periods of any number of devices.
        self._keys = np.repeat(np.arange(self._count), np.diff(self._edges)) * length + self._begins

    def online_until(self, places: Floats, time: float) -> Floats:
        """Return the end of the period in which each device is online at ``time``; ``time`` if it is offline.

        Args:
            places: numbers in [0, 1), which choose the devices' traces.
            time: seconds since the run's start.
        """
        begun, index, first, _ = self._find(places, time)
        return np.where(index >= first, np.maximum(time, begun + self._ends[index]), time)

    def next_begin(self, places: Floats, time: float) -> Floats:
        """Return when the first period begins after ``time``, for each device."""
        begun, index, first, last = self._find(places, time)
        wraps = index + 1 == last
        return begun + np.where(wraps, self._length, 0.0) + self._begins[np.where(wraps, first, index + 1)]

    def _find(self, places: Floats, time: float) -> tuple[float, NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Return when the traces last began anew, and for each device the last period that has begun since.

        The latter precedes the device's first period if none has. Its first period, and the one after its last, follow.
        """
        trace = (places * self._count).astype(int)
        since = time % self._length
        first, last = self._edges[trace], self._edges[trace + 1]
        index = np.searchsorted(self._keys, trace * self._length + since, side="right") - 1
        return time - since, np.minimum(index, last - 1), first, last


def read_traces(path: Path) -> tuple[list[list[Span]], float]:
    """Return the periods in which each device of a trace file is online, in order, and the file's length in seconds.

    Args:
        path: a CSV file with the columns ``device``, ``online`` and ``offline``: names, and seconds from 0 on.

    Raises:
        ConfigurationError: if the file cannot be read, lacks a column, or has periods that are empty or overlap.
    """
    wrong = f"fleet.availability: the trace file {path}"
    found: dict[str, list[Span]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as text:
            for line in csv.DictReader(text):
                found.setdefault(line["device"], []).append((float(line["online"]), float(line["offline"])))
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
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
