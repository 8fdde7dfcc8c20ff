"""Random generators for all draws of a run: one per seed and purpose.

Nothing in the project touches the global state of ``random``, NumPy or PyTorch. A generator is identified by the run's
seed and a path of words and numbers, for example ``(seed, "client", "17", 3, "train")``. Equal seeds and paths give
equal streams on every machine, whatever was drawn before from other generators.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Word = str | int


def entropy(seed: int, *path: Word) -> int:
    """Return a 128-bit integer that depends on ``seed``, every word of ``path``, and their types."""
    name = "\x1f".join(f"{type(word).__name__}:{word}" for word in (seed, *path))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")


def uniforms(seed: int, *path: Word) -> list[float]:
    """Return eight uniform numbers in (0, 1) that ``seed`` and ``path`` identify, at a tenth of a generator's cost."""
    digest = hashlib.sha512(entropy(seed, *path).to_bytes(16, "big")).digest()
    return [((word >> 11) + 0.5) / 2**53 for word in struct.unpack(">8Q", digest)]


def numpy_generator(seed: int, *path: Word) -> np.random.Generator:
    """Return the NumPy generator that ``seed`` and ``path`` identify."""
    return np.random.default_rng(entropy(seed, *path))


def torch_generator(seed: int, *path: Word) -> torch.Generator:
    """Return the PyTorch CPU generator that ``seed`` and ``path`` identify."""
    import torch  # takes seconds, and the command line does not need it

    return torch.Generator().manual_seed(entropy(seed, *path) % 2**63)


@contextmanager
def torch_draws(seed: int, *path: Word) -> Iterator[None]:
    """Within this context, PyTorch's global generators are the one that ``seed`` and ``path`` identify.

    Initialisers, and layers such as dropout, can only draw from the global generators (of the CPU, and of the GPU if
    this process uses one). Their states are restored afterwards.
    """
    import torch

    own = entropy(seed, *path) % 2**63
    # What torch.random.fork_rng and torch.manual_seed do, at a tenth of their cost: a light client draws often.
    before = draw_states()
    try:
        torch.default_generator.manual_seed(own)
        if len(before) > 1:
            torch.cuda.manual_seed(own)
        yield
    finally:
        set_draw_states(before)


def draw_states() -> list[torch.Tensor]:
    """Return the states of PyTorch's global generators: of the CPU, and of the GPU if this process uses one."""
    import torch

    gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.default_generator.get_state(), *gpu]


def set_draw_states(states: Sequence[torch.Tensor]) -> None:
    """Set the states of PyTorch's global generators to those that :func:`draw_states` returned."""
    import torch

    cpu, *gpu = states
    torch.default_generator.set_state(cpu)
    for state in gpu:
        torch.cuda.set_rng_state(state)
