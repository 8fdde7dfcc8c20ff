"""Where every random number of a run comes from: a generator per (seed, purpose).

Nothing in the project touches the global state of ``random``, NumPy or torch. A generator is named by the run's
seed and a path of words and numbers, for example ``(seed, "client", "17", 3, "train")``; equal names give equal
streams on every machine, whatever was drawn elsewhere before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Word = str | int


def entropy(seed: int, *path: Word) -> int:
    """Return a 128-bit integer that depends on ``seed`` and every word of ``path``, and on their types."""
    name = "\x1f".join(f"{type(word).__name__}:{word}" for word in (seed, *path))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")


def numpy_generator(seed: int, *path: Word) -> np.random.Generator:
    """Return the NumPy generator named by ``seed`` and ``path``."""
    return np.random.default_rng(entropy(seed, *path))


def torch_generator(seed: int, *path: Word) -> torch.Generator:
    """Return the CPU torch generator named by ``seed`` and ``path``."""
    import torch  # takes seconds, and the command line draws nothing with it

    return torch.Generator().manual_seed(entropy(seed, *path) % 2**63)


@contextmanager
def torch_initialisation(seed: int, *path: Word) -> Iterator[None]:
    """Let torch's initialisers, which know the global generator alone, draw from ``seed`` and ``path``.

    The global generator is given back as it was.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(entropy(seed, *path) % 2**63)
        yield
