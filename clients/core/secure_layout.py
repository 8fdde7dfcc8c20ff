"""What a secure sum adds up: arrays, numbers of examples and metrics as one vector, the same on both sides.

Besides the arrays a vector has the number 1 in the clear (who sends another has not kept to the protocol), the number 1
(so that the server can check the sum), the client's weight, its number of examples, and for each metric m four numbers:
whether the client reports it, m, m², and m times its number of examples. Means over clients and over examples, and
standard deviations, follow from their sums.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilegium.common.blocks import blocks, entries, fill
from florilegium.common.spool import zeros
from florilegium.models.parameters import Arrays
from florilegium.privacy.noise import draw_discrete, secret_generator
from florilegium.privacy.secure_sum.masks import Vector
from florilegium.privacy.secure_sum.ring import (
    RangeError,
    at_random,
    check_norm,
    coarse_unit,
    fine_unit,
    signed,
    to_narrow,
    to_wide,
)

METRIC_BOUND = 2.0**14
"""Metrics beyond ± this number count as it."""
_ROOM = 12
"""Standard deviations of noise for which a sum has room; an entry exceeds them with probability 4·10⁻³³."""
_BEFORE = 4
"""Numbers before those of the metrics."""
_AXES, _LONGEST, _NAMES = 32, 1 << 40, 10_000


@dataclass(frozen=True)
class Layout:
    """The names of what is added up: arrays with their shapes, and metrics."""

    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    metrics: tuple[str, ...]

    @staticmethod
    def of(arrays: Arrays, metrics: Mapping[str, float]) -> Layout:
        """Return the layout of a client's arrays and metrics."""
        return Layout(tuple((name, array.shape) for name, array in sorted(arrays.items())), tuple(sorted(metrics)))

    def text(self) -> str:
        """Return the layout as text."""
        return json.dumps([self.arrays, self.metrics])

    @staticmethod
    def read(text: object) -> Layout:
        """Return the layout that a node sent.

        Raises:
            ValueError: if it is malformed.
        """
        if not isinstance(text, str):
            raise ValueError("a layout is text")
        arrays, metrics = json.loads(text)
        if not all(isinstance(part, list) and len(part) <= _NAMES for part in (arrays, metrics)):
            raise ValueError("a layout is two lists")
        for name, shape in arrays:
            fits = isinstance(name, str) and isinstance(shape, list) and len(shape) <= _AXES
            if not fits or not all(type(length) is int and 0 <= length < _LONGEST for length in shape):
                raise ValueError("an array has a name, and a shape that can be")
        if not all(isinstance(name, str) for name in metrics):
            raise ValueError("metrics have names")
        return Layout(tuple((name, tuple(shape)) for name, shape in arrays), tuple(metrics))

    @property
    def entries(self) -> int:
        """Number of entries of all arrays."""
        return sum(math.prod(shape) for _, shape in self.arrays)


@dataclass(frozen=True)
class Sums:
    """The sums over clients that a secure sum reveals.

    Attributes:
        arrays: sums of the arrays.
        clients, weight, examples: number of clients, sum of their weights, sum of their numbers of examples.
        metrics: for each metric the four sums that the module's text names.
    """

    arrays: dict[str, NDArray[np.float64]]
    clients: float
    weight: float
    examples: float
    metrics: dict[str, tuple[float, float, float, float]]


@dataclass(frozen=True)
class Scale:
    """How large the numbers of a secure sum may be, and the units of the integers that stand for them.

    Attributes:
        parties: number of clients that the sum may have.
        examples: the most examples that all of them may have.
        uniform: whether clients have weight 1 instead of their numbers of examples.
        norm: bound of the norm of an update, before weighting; 0: arrays are statistics instead.
        range: the largest absolute value of a client's statistics.
        coarse: whether updates are 32-bit integers.
        noise: standard deviation of the noise that each client adds to its update, if that is 32-bit integers.
    """

    parties: int
    examples: float
    uniform: bool
    norm: float
    range: float
    coarse: bool
    noise: float = 0.0

    def sizes(self, layout: Layout) -> tuple[int, int]:
        """Return the numbers of 64-bit and 32-bit integers of a vector."""
        wide = _BEFORE + 4 * len(layout.metrics)
        return (wide, layout.entries) if self.coarse else (wide + layout.entries, 0)

    def encode(
        self,
        layout: Layout,
        arrays: Arrays,
        weight: float,
        examples: float,
        metrics: Mapping[str, float],
        most: float,
        draws: Callable[[], np.random.Generator] = secret_generator,
    ) -> Vector:
        """Return the vector of a client.

        Args:
            layout: the client's layout.
            arrays: its weighted update, or its statistics.
            weight, examples: its weight, and its number of examples.
            metrics: its metrics.
            most: the largest number of examples that was agreed for it.
            draws: returns what rounds 32-bit integers, if it is at random.

        Raises:
            RangeError: if a number is larger than was agreed, or is NaN, or noise would be added to what is rounded at
                random.
        """
        numbers = [1.0, 1.0, weight, examples]
        for name in layout.metrics:
            known = math.isfinite(metrics[name])
            value = min(max(metrics[name], -METRIC_BOUND), METRIC_BOUND) if known else 0.0
            numbers += [float(known), value, value * value, value * examples]
        bound, bounds = self._bounds(layout, 1, most)
        unit, units = self._units(layout)
        own = [arrays[name] for name, _ in layout.arrays]
        vector, split = Vector.zeros(*self.sizes(layout)), len(numbers)
        vector.wide[:split] = to_wide(np.array(numbers), bounds, units)
        if self.coarse:
            check_norm(own, bound)
            narrow = self._narrowing(layout, unit, draws)
            fill(vector.narrow, map(narrow, entries(own)))
        else:
            fill(vector.wide[split:], (to_wide(block, bound, unit) for block in entries(own)))
        return vector

    def _narrowing(
        self, layout: Layout, unit: float, draws: Callable[[], np.random.Generator]
    ) -> Callable[[NDArray[np.float64]], NDArray[np.uint32]]:
        """Return what makes 32-bit integers of the blocks of an update, one after the other, with noise if it has any.

        Raises:
            RangeError: if noise would be added to what is rounded at random.
        """
        chance = at_random(layout.entries, self.parties)
        if chance and self.noise:
            raise RangeError("what is rounded at random may be longer than the noise is made for")
        rounds, noise = draws() if chance else None, secret_generator() if self.noise else None

        def narrow(block: NDArray[np.float64]) -> NDArray[np.uint32]:
            found = to_narrow(block, unit, rounds)
            if noise is not None:  # added to integers, so that floating point gives nothing away
                found += draw_discrete(noise, self.noise / unit, len(block)).astype(found.dtype)
            return found

        return narrow

    def decode(self, layout: Layout, total: Vector) -> Sums:
        """Return the sums that an unmasked vector stands for; the arrays of a large model lie in a file."""
        unit, units = self._units(layout)
        split = len(units)
        numbers = (signed(total.wide[:split]) * units).tolist()
        flat = zeros({"": (layout.entries,)})[""]
        for to, integers in blocks(flat, total.narrow if self.coarse else total.wide[split:]):
            np.multiply(signed(integers), unit, out=to)
        arrays, start = {}, 0
        for name, shape in layout.arrays:
            size = math.prod(shape)
            arrays[name] = flat[start : start + size].reshape(shape)
            start += size
        four = [tuple(numbers[i : i + 4]) for i in range(_BEFORE, split, 4)]
        return Sums(arrays, numbers[1], numbers[2], numbers[3], dict(zip(layout.metrics, four, strict=True)))

    def one(self) -> int:
        """Return the integer that stands for the number 1 with which each vector begins."""
        return int(to_wide(np.ones(1), np.ones(1), np.array([fine_unit(self.parties)]))[0])

    def unit(self) -> float:
        """Return the unit of 32-bit integers: no update, and hardly any noise, makes their sum overflow."""
        weight = self.parties if self.uniform else max(self.examples, 1.0)
        return coarse_unit(weight * self.norm + _ROOM * self.noise * math.sqrt(self.parties), self.parties)

    def _bounds(self, layout: Layout, parties: float, examples: float) -> tuple[float, NDArray[np.float64]]:
        """Return the largest entry of arrays, and the largest numbers, of this many clients with this many examples."""
        examples = max(examples, 1.0)
        weight = parties if self.uniform else examples
        of_arrays = weight * self.norm if self.norm else parties * self.range
        of_metric = [parties, parties * METRIC_BOUND, parties * METRIC_BOUND**2, examples * METRIC_BOUND]
        return of_arrays, np.array([parties, parties, weight, examples, *(of_metric * len(layout.metrics))])

    def _units(self, layout: Layout) -> tuple[float, NDArray[np.float64]]:
        """Return the unit of the integers of arrays, and that of each number."""
        bound, bounds = self._bounds(layout, self.parties, self.examples)
        return self.unit() if self.coarse else fine_unit(bound), np.array([fine_unit(one) for one in bounds])
