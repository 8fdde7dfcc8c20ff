"""A random subspace of parameters, θ = θ₀ + Pv, with a matrix P that is never formed (FLowDUP, section 2).

P has d rows and k columns, with d in the millions and k in the thousands. It is drawn from a seed and is the same in
every process and precision. It preserves lengths on average: E‖Pv‖² = ‖v‖². Automatic differentiation gives Pᵀg.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import torch_generator


class Expansion(ABC):
    """The linear map v ↦ Pv from the subspace to the network's parameters.

    Args:
        d: number of rows, parameters of the network.
        k: number of columns, at most d.
        generator: the generator from which P is drawn, in float32.
    """

    def __init__(self, d: int, k: int, generator: torch.Generator) -> None:
        self.d, self.k = d, k
        self.factors = self.draw(generator)

    @abstractmethod
    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the random tensors that define P, by name, in float32."""

    @abstractmethod
    def __call__(self, v: Tensor) -> Tensor:
        """Return Pv, (d,), for v (k,) in the factors' precision and on their device."""

    def to(self, like: Tensor) -> Expansion:
        """Move P to the device and precision of ``like``; return it."""
        self.factors = {
            name: factor.to(like) if factor.is_floating_point() else factor.to(like.device)
            for name, factor in self.factors.items()
        }
        return self

    def dense(self) -> Tensor:
        """Return P itself, (d, k); for tests and small cases."""
        factor = next(factor for factor in self.factors.values() if factor.is_floating_point())
        return torch.stack([self(column) for column in torch.eye(self.k).to(factor)], dim=1)

    @property
    def bytes(self) -> int:
        """Memory of the tensors that define P, in bytes."""
        return sum(factor.numel() * factor.element_size() for factor in self.factors.values())


LARGEST_DENSE = 2**28
"""Largest number of entries of a dense P, 1 GiB."""


class Dense(Expansion):
    """A dense matrix P of normal numbers, with columns of length 1. It stores d·k numbers: for small cases only."""

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw P."""
        p = torch.randn(self.d, self.k, generator=generator)
        return {"p": p.div_(p.norm(dim=0))}

    def __call__(self, v: Tensor) -> Tensor:
        """Return Pv."""
        return self.factors["p"] @ v


class Kronecker(Expansion):
    """The first d rows and k columns of P = A ⊗ B (Lotfi et al. 2022, section 3).

    A and B have about √d rows and √k columns. Their columns are orthonormal, and so are those of A ⊗ B. A constant
    factor compensates for the rows that are cut off.
    """

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw A (d₁, k₁) and B (d₂, k₂), d₁d₂ ≥ d, k₁k₂ ≥ k; A includes the constant factor."""
        rows, (_, second) = _near_square(self.d), _near_square(self.k)
        second = min(second, rows[1])  # a matrix has no more orthonormal columns than rows
        columns = math.ceil(self.k / second), second
        a, b = (_orthonormal(m, n, generator) for m, n in zip(rows, columns, strict=True))
        return {"a": a * math.sqrt(math.prod(rows) / self.d), "b": b}

    def __call__(self, v: Tensor) -> Tensor:
        """Return Pv, (d,), for v (k,): with v reshaped to a matrix V, (A ⊗ B)v is AVBᵀ."""
        a, b = self.factors["a"], self.factors["b"]
        whole = nn.functional.pad(v, (0, a.shape[1] * b.shape[1] - self.k))
        return (a @ whole.view(a.shape[1], b.shape[1]) @ b.T).reshape(-1)[: self.d]


class Fastfood(Expansion):
    """Fastfood: P consists of blocks HGΠHB of n rows (Le et al. 2013; Li et al. 2018, section S7).

    n ≥ k is a power of two. B has random signs, Π is a permutation, G has normal numbers, and H is the Hadamard matrix
    divided by √n. H is a Kronecker product of two smaller matrices, so two small matrix products apply it.
    """

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw B, G and Π, (blocks, n) each; return them and the two Hadamard matrices whose product is H."""
        bits = max(1, math.ceil(math.log2(self.k)))
        n = 2**bits
        blocks = math.ceil(self.d / n)
        signs = torch.randint(2, (blocks, n), generator=generator, dtype=torch.int8) * 2 - 1
        whole = torch.int16 if n <= 2**15 else torch.int32
        permutation = torch.stack([torch.randperm(n, generator=generator).to(whole) for _ in range(blocks)])
        normal = torch.randn(blocks, n, generator=generator)
        left, right = _hadamard(bits // 2), _hadamard(bits - bits // 2)
        return {"signs": signs, "permutation": permutation, "normal": normal, "left": left, "right": right}

    def __call__(self, v: Tensor) -> Tensor:
        """Return Pv."""
        f = self.factors
        n = f["signs"].shape[1]
        mixed = self._transform(f["signs"] * nn.functional.pad(v, (0, n - self.k)))
        product = self._transform(f["normal"] * mixed.gather(1, f["permutation"].long()))
        return product.reshape(-1)[: self.d] * math.sqrt(n / self.d)

    def _transform(self, x: Tensor) -> Tensor:
        left, right = self.factors["left"], self.factors["right"]
        return (left @ x.view(len(x), len(left), len(right)) @ right).view(x.shape) / math.sqrt(x.shape[1])


EXPANSIONS: Mapping[str, type[Expansion]] = {"dense": Dense, "kronecker": Kronecker, "fastfood": Fastfood}


def expansion(kind: str, d: int, k: int, seed: int) -> Expansion:
    """Return the expansion of the given kind, a key of ``EXPANSIONS``; equal seeds give equal expansions.

    Raises:
        ConfigurationError: as in :func:`check_dimensions`.
    """
    check_dimensions(kind, k, d)
    return EXPANSIONS[kind](d, k, torch_generator(seed, "subspace", kind))


def check_dimensions(kind: str, k: int, d: int) -> None:
    """Check that a network of d parameters can have a subspace of k dimensions of the given kind.

    Raises:
        ConfigurationError: unless 1 ≤ k ≤ d, since a subspace has no more dimensions than the space; or if P would be
            dense and too large. The message begins with the last part of the configuration key.
    """
    if not 1 <= k <= d:
        raise ConfigurationError(
            f"dimensions: a subspace of {k} dimensions does not fit a network of {d} parameters; set it to {d} or less"
        )
    if kind == "dense" and d * k > LARGEST_DENSE:
        raise ConfigurationError(
            f"expansion: a dense matrix of {d} × {k} numbers takes {4 * d * k / 2**30:.0f} GiB in every process; "
            "'kronecker' and 'fastfood' are never formed"
        )


def _orthonormal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return a random matrix with orthonormal columns, (rows, columns), in float32.

    It is computed in double precision and rounded: the last bits of the factorisation depend on the number of threads.
    """
    q: Tensor = torch.linalg.qr(torch.randn(rows, columns, generator=generator).double())[0]
    return q.float()


def _near_square(size: int) -> tuple[int, int]:
    """Return two numbers, nearly equal, whose product is ``size`` or slightly more."""
    first = math.isqrt(size)
    return first, math.ceil(size / first)


def _hadamard(bits: int) -> Tensor:
    """Return the Hadamard matrix of 2^bits rows, with entries 1 and −1."""
    matrix, step = torch.ones(1, 1), torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    for _ in range(bits):
        matrix = torch.kron(matrix, step)
    return matrix
