"""Random generators for all draws of a run: one per seed and purpose.

Nothing in the project touches the global state of ``random``, NumPy or PyTorch. A generator is identified by the run's
seed and a path of words and numbers, for example ``(seed, "client", "17", 3, "train")``. Equal seeds and paths give
equal streams on every machine, whatever was drawn before from other generators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Word = str | int


def entropy(seed: int, *path: Word) -> int:
    """Return a 128-bit integer that depends on ``seed``, every word of ``path``, and their types."""
    return int.from_bytes(hashlib.sha256(_name(seed, *path).encode()).digest()[:16], "big")


def _name(*words: Word) -> str:
    return "\x1f".join(f"{type(word).__name__}:{word}" for word in words)


def uniforms(
    seed: int, before: Sequence[Word], names: Sequence[str], after: Sequence[Word] = ()
) -> NDArray[np.float64]:
    """Return eight uniform numbers in (0, 1) for each of ``names``, (n, 8).

    The row of a name is identified by ``(seed, *before, name, *after)``, whatever the other names are, and costs a
    twentieth of a generator.
    """
    start, end = _name(seed, *before, ""), "".join("\x1f" + _name(word) for word in after)
    sha256, sha512 = hashlib.sha256, hashlib.sha512
    digests = [sha512(sha256(f"{start}{name}{end}".encode()).digest()[:16]).digest() for name in names]
    numbers = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 8)
    return ((numbers >> 11) + 0.5) / 2**53


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
