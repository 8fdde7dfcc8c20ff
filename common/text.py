"""The character alphabet of text data: LEAF's 80 characters for Shakespeare, and a code for everything else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Caldas et al. 2018 (LEAF), Shakespeare task. The position of a character is its code and its class.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
OTHER = len(ALPHABET)
VOCABULARY_SIZE = len(ALPHABET) + 1
_CODES = np.full(128, OTHER, dtype=np.uint8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET), dtype=np.uint8)


def encode(text: str, length: int) -> NDArray[np.uint8]:
    """Return ``text`` as ``length`` character codes: the end of a long text, a short one padded in front."""
    raw = np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8)[-length:]
    codes = np.full(length, OTHER, dtype=np.uint8)
    if len(raw):
        codes[-len(raw) :] = _CODES[raw]
    return codes
