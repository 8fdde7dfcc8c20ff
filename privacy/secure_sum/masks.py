"""Vectors in a ring, and the masks that are added to them: a stream cipher's output from a secret seed.

A vector has two parts: ``wide`` of 64-bit integers modulo 2^64, and ``narrow`` of 32-bit integers modulo 2^32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from florilegium.common import spool

WIDE, NARROW = np.dtype("<u8"), np.dtype("<u4")
_CHUNK = 1 << 18
"""Bytes of the cipher's output that are made at once; they stay in the processor's cache."""
_ZEROS = bytes(_CHUNK)


@dataclass
class Vector:
    """A vector in the ring.

    Attributes:
        wide: unsigned integers of 64 bits, (m,).
        narrow: unsigned integers of 32 bits, (d,).
    """

    wide: NDArray[np.uint64]
    narrow: NDArray[np.uint32]

    @staticmethod
    def zeros(wide: int, narrow: int) -> Vector:
        """Return the vector of zeros with these numbers of entries; a large part of it lies in a file."""
        return Vector(spool.zeros({"": (wide,)}, WIDE)[""], spool.zeros({"": (narrow,)}, NARROW)[""])

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of entries of the two parts."""
        return len(self.wide), len(self.narrow)

    def add(self, other: Vector) -> None:
        """Add a vector of the same sizes."""
        self.wide += other.wide
        self.narrow += other.narrow

    def add_mask(self, seed: bytes, sign: int) -> None:
        """Add, or with ``sign`` = −1 subtract, the mask of a seed of 32 bytes; every seed is used for one mask."""
        self.add_masks([(seed, sign)])

    def add_masks(self, masks: Iterable[tuple[bytes, int]]) -> None:
        """Add masks, each given by its seed and sign, to one part of the vector after the other, which stays in cache.

        AES-256 in counter mode needs no nonce where its key is used once.
        """
        streams = [(Cipher(AES256(seed), CTR(bytes(16))).encryptor().update_into, sign) for seed, sign in masks]
        buffer = bytearray(_CHUNK + 16)
        parts: tuple[NDArray[Any], ...] = (self.wide, self.narrow)
        for part in parts:
            step = _CHUNK // part.itemsize
            for start in range(0, len(part), step):
                chunk = part[start : start + step]
                zeros, mask = memoryview(_ZEROS)[: chunk.nbytes], np.frombuffer(buffer, part.dtype, len(chunk))
                for fill, sign in streams:
                    fill(zeros, buffer)
                    if sign > 0:
                        np.add(chunk, mask, out=chunk)
                    else:
                        np.subtract(chunk, mask, out=chunk)
