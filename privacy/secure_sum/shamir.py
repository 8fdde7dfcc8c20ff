"""Shamir's secret sharing over a prime field: any ``threshold`` shares give the secret, fewer give nothing.

PyCryptodome's implementation, which Flower uses, works bit by bit in GF(2^128) and takes a hundred times as long.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
"""The smallest prime above 2^256, so that every secret of 32 bytes is an element of the field."""
SECRET, SHARE = 32, 33
"""Lengths of a secret and of a share in bytes."""


def split(secret: bytes, threshold: int, places: Sequence[int]) -> list[bytes]:
    """Return a share of ``secret`` for each of ``places``.

    Args:
        secret: 32 bytes.
        threshold: t ≥ 1, the number of shares that give the secret.
        places: distinct points from 1 to ``PRIME`` − 1 at which the polynomial of degree t − 1 is evaluated.
    """
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes, not {len(secret)}")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares = []
    for place in places:
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * place % PRIME
        shares.append(((value + int.from_bytes(secret)) % PRIME).to_bytes(SHARE))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of exactly as many shares, by place, as the threshold asks for.

    Raises:
        ValueError: if the shares cannot belong to a secret of 32 bytes. Wrong shares may also give a wrong secret.
    """
    total = 0
    for place, share in shares.items():
        numerator, denominator = int.from_bytes(share), 1
        for other in shares:
            if other != place:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - place) % PRIME
        total += numerator * pow(denominator, -1, PRIME)
    secret = total % PRIME
    if secret >= 2 ** (8 * SECRET):
        raise ValueError("the shares belong to no secret")
    return secret.to_bytes(SECRET)
