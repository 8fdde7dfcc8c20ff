"""Top-k sparsification: of each array the entries with the largest absolute values, as they are.

Aji and Heafield, *Sparse Communication for Distributed Gradient Descent*, EMNLP 2017; with error feedback as in Stich,
Cordonnier, Jaggi, *Sparsified SGD with Memory*, NeurIPS 2018.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.compression.scheme import Floats, Reader, Scheme
from florilegium.common.blocks import blocks

_INDEX = np.dtype(np.uint32)


class TopK(Scheme):
    """Sends the k = ⌈share · d⌉ largest entries of an array of d entries, and their places in ascending order."""

    def __init__(self, share: float) -> None:
        self._share = share

    def _count(self, size: int) -> int:
        return math.ceil(self._share * size)

    def size(self, like: Floats) -> int:
        """Return the number of bytes for k places and k entries."""
        return self._count(like.size) * (_INDEX.itemsize + like.itemsize)

    def pack(self, array: Floats, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Return the places and the entries, each (k,)."""
        entries = array.reshape(-1)
        count = self._count(len(entries))
        lengths = entries[entries != 0]  # among many equal ones, partition would take twenty times as long
        np.abs(lengths, out=lengths)
        if len(lengths) >= count:
            lengths.partition(len(lengths) - count)
        least = lengths[-count] if len(lengths) >= count else 0
        places = _reaching(entries, least)
        if len(places) > count:  # several entries are as large as the least that is sent: the first of them are
            sent = np.abs(entries[places]) > least
            sent[np.flatnonzero(~sent)[: count - np.count_nonzero(sent)]] = True
            places = places[sent]
        return [places, entries[places]]

    def unpack(self, reader: Reader, like: Floats) -> Floats:
        """Return the array with the entries in their places, and zeros elsewhere."""
        places = reader.take(self._count(like.size), _INDEX)
        if places[-1] >= like.size or (places[1:] <= places[:-1]).any():
            raise ValueError("the places of a sparse update are not different ones of its array, in ascending order")
        entries = np.zeros(like.size, like.dtype)
        entries[places] = reader.numbers(len(places), like.dtype)
        return entries.reshape(like.shape)


def _reaching(entries: Floats, least: float) -> NDArray[np.uint32]:
    """Return the places of the entries whose absolute values are ``least`` or more, in ascending order."""
    found, start = [np.zeros(0, _INDEX)], 0
    for (block,) in blocks(entries):
        found.append((start + np.flatnonzero(np.abs(block) >= least)).astype(_INDEX))
        start += len(block)
    return np.concatenate(found)
