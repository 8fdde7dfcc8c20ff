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

BUCKET = 512
"""Number of consecutive entries of an array that share their levels, as in QSGD's experiments with 4 bits."""


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
        size, buckets = array.size, _buckets(array.size)
        entries = np.empty((buckets, BUCKET), array.dtype)
        entries.reshape(-1)[:size] = array.reshape(-1)
        entries.reshape(-1)[size:] = entries.reshape(-1)[size - 1]  # changes no bound
        bounds = np.stack([entries.min(axis=1), entries.max(axis=1)])
        steps = self._steps(bounds)
        entries -= bounds[0][:, None]
        entries /= np.where(steps > 0, steps, 1)[:, None]
        entries += rng.random(entries.shape, entries.dtype)
        codes = np.minimum(entries, self._most, out=entries).astype(np.uint8).reshape(-1)[:size]  # rounds down
        return [bounds, *(np.packbits(codes & (1 << plane)) for plane in range(self._bits))]

    def unpack(self, reader: Reader, like: Floats) -> Floats:
        """Return the levels that the codes stand for."""
        size, buckets = like.size, _buckets(like.size)
        bounds = reader.numbers(2 * buckets, like.dtype).reshape(2, buckets)
        if (bounds[0] > bounds[1]).any():
            raise ValueError("a bucket of a quantised update ends below its start")
        codes = np.zeros(buckets * BUCKET, np.uint8)
        for plane in range(self._bits):
            codes[:size] |= np.unpackbits(reader.take(-(-size // 8)), count=size) << plane
        entries = codes.reshape(buckets, BUCKET).astype(like.dtype)
        entries *= self._steps(bounds)[:, None]
        entries += bounds[0][:, None]
        return entries.reshape(-1)[:size].reshape(like.shape)

    def _steps(self, bounds: Floats) -> Floats:
        """Return the distance between the levels of each bucket."""
        steps: Floats = (bounds[1] - bounds[0]) / bounds.dtype.type(self._most)
        return steps


def _buckets(size: int) -> int:
    return -(-size // BUCKET)
