"""The character alphabet of text data: LEAF's 80 characters for Shakespeare, and one code for all others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Caldas et al. 2018 (LEAF), Shakespeare task. The position of a character is its code and its class.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
OTHER = len(ALPHABET)
VOCABULARY_SIZE = len(ALPHABET) + 1
_BEYOND = 128
_CODES = np.full(_BEYOND + 1, OTHER, dtype=np.uint8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET), dtype=np.uint8)


def encode(text: str, length: int) -> NDArray[np.uint8]:
    """Encode the last ``length`` characters of ``text`` as codes (length,); a shorter text is padded in front."""
    points = np.array([ord(character) for character in text[-length:]], dtype=np.int64)
    codes = np.full(length, OTHER, dtype=np.uint8)
    if len(points):
        codes[-len(points) :] = _CODES[np.minimum(points, _BEYOND)]
    return codes


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of ``text`` that commas separate, without blanks; a part that is empty is left out."""
    return tuple(filter(None, (part.strip() for part in text.split(","))))
