"""Stochastic uniform quantisation: b bits for each entry, unbiased.

Suresh, Yu, Kumar, McMahan, *Distributed Mean Estimation with Limited Communication*, ICML 2017, section 2.2, for
buckets of entries as in QSGD (Alistarh, Grubic, Li, Tomioka, Vojnovic, NeurIPS 2017). In a bucket with the least entry
l and the largest h, the 2^b levels are l + c·(h − l)/(2^b − 1), c = 0, 1, …. An entry is rounded to one of the two
levels next to it, at random, so that its expectation is the entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.compression.scheme import Floats, Reader, Scheme
from florilegium.common.blocks import blocks

BUCKET = 512
"""Number of consecutive entries of an array that share their levels, as in QSGD's experiments with 4 bits; a block
(:data:`florilegium.common.blocks.BLOCK`) is a whole number of buckets."""


class Quantise(Scheme):
    """Rounds entries at random to 2^b levels.

    A bucket's bounds are sent as numbers of the array's type. The codes c are sent as b planes of bits.
    """

    def __init__(self, bits: int) -> None:
        self._bits, self._most = bits, (1 << bits) - 1

    def size(self, like: Floats) -> int:
        """Return the number of bytes for the bounds of all buckets, and for b bits of each entry."""
        return 2 * _buckets(like.size) * like.itemsize + self._bits * -(-like.size // 8)

    def pack(self, array: Floats, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Return the bounds of the buckets, (2, buckets), and the planes of bits of the codes."""
        bounds = np.empty((2, _buckets(array.size)), array.dtype)
        planes = np.empty((self._bits, -(-array.size // 8)), np.uint8)
        first = 0
        for (block,) in blocks(array):
            codes = self._codes(block, bounds[:, first : first + _buckets(len(block))], rng)
            for plane, bits in enumerate(planes):
                packed = np.packbits(codes & (1 << plane))
                bits[first * BUCKET // 8 :][: len(packed)] = packed
            first += _buckets(len(block))
        return [bounds, planes]

    def _codes(self, block: Floats, bounds: Floats, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return the codes of entries, (n,), and write the bounds of their buckets to ``bounds``, (2, buckets)."""
        size = len(block)
        entries = np.empty((bounds.shape[1], BUCKET), block.dtype)
        entries.reshape(-1)[:size] = block
        entries.reshape(-1)[size:] = block[size - 1]  # changes no bound
        np.min(entries, axis=1, out=bounds[0])
        np.max(entries, axis=1, out=bounds[1])
        steps = self._steps(bounds)
        entries -= bounds[0][:, None]
        entries /= np.where(steps > 0, steps, 1)[:, None]
        entries += rng.random(entries.shape, entries.dtype)
        return np.minimum(entries, self._most, out=entries).astype(np.uint8).reshape(-1)[:size]  # rounds down

    def unpack(self, reader: Reader, like: Floats) -> Floats:
        """Return the levels that the codes stand for."""
        size, buckets = like.size, _buckets(like.size)
        bounds = reader.numbers(2 * buckets, like.dtype).reshape(2, buckets)
        if (bounds[0] > bounds[1]).any():
            raise ValueError("a bucket of a quantised update ends below its start")
        planes = reader.take(self._bits * -(-size // 8)).reshape(self._bits, -1)
        steps, found, first = self._steps(bounds), np.empty(like.shape, like.dtype), 0
        for (block,) in blocks(found):
            here = slice(first, first + _buckets(len(block)))
            codes = np.zeros((here.stop - first, BUCKET), np.uint8)
            for plane, bits in enumerate(planes):
                part = np.unpackbits(bits[first * BUCKET // 8 :][: -(-len(block) // 8)], count=len(block))
                codes.reshape(-1)[: len(block)] |= part << plane
            entries = codes.astype(like.dtype)
            entries *= steps[here, None]
            entries += bounds[0][here, None]
            block[:] = entries.reshape(-1)[: len(block)]
            first = here.stop
        return found

    def _steps(self, bounds: Floats) -> Floats:
        """Return the distance between the levels of each bucket."""
        steps: Floats = (bounds[1] - bounds[0]) / bounds.dtype.type(self._most)
        return steps


def _buckets(size: int) -> int:
    return -(-size // BUCKET)
