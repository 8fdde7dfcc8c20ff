"""LoRA's matrices as named arrays: which belong together, parts and products of them, and products taken apart again.

A layer has A (r, inputs) and B (outputs, r), of convolutions (r, inputs, height, width) and (outputs, r, 1, 1). Its
update is s·B·A; s, the scale, is the same for all clients. A client of rank k ≤ r holds the first k rows of A and
columns of B. Sums of products are kept as a product of two narrow matrices, and computed in double precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilegium.models.parameters import Arrays

A, B, CORRECTION = "A.", "B.", "correction."
"""Beginnings of the names of the matrices, and of what is added to the layers' own weights."""
Matrix = NDArray[np.float64]


def layers_of(names: Iterable[str]) -> list[str]:
    """Return the layers whose A and B are both among ``names``, each as what its arrays' names end with."""
    known = dict.fromkeys(names)
    return [name.removeprefix(A) for name in known if name.startswith(A) and B + name.removeprefix(A) in known]


def ranks_of(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, int]:
    """Return the rank of each layer in the order of the arrays' names."""
    return {name.removeprefix(A): len(array) for name, array in arrays.items() if name.startswith(A)}


def taken(arrays: Arrays, ranks: Mapping[str, int]) -> Arrays:
    """Return ``arrays`` with the first rows of each A and columns of each B alone, as many as the layer's rank."""
    found = dict(arrays)
    for layer, rank in ranks.items():
        found[A + layer], found[B + layer] = arrays[A + layer][:rank], arrays[B + layer][:, :rank]
    return found


def padded(arrays: Arrays, shapes: Mapping[str, Sequence[int]]) -> Arrays:
    """Return ``arrays`` with zeros behind the rows of A and the columns of B, up to their ``shapes`` in the network.

    Zero rows and columns stay zero in training, since the gradient of each is a multiple of the other.

    Raises:
        ValueError: if an array is unknown, or larger than the network's.
    """
    found = {}
    for name, array in arrays.items():
        shape = tuple(shapes.get(name, ()))
        if array.shape == shape or not name.startswith((A, B)):
            found[name] = array
            continue
        missing = [most - own for most, own in zip(shape, array.shape, strict=False)]
        if len(shape) != array.ndim or min(missing) < 0:
            raise ValueError(f"'{name}' has shape {array.shape}, the network's is {shape}")
        found[name] = np.pad(array, [(0, count) for count in missing])
    return found


@dataclass(frozen=True)
class Product:
    """A matrix as a product ``left``·``right`` of (outputs, R) and (R, inputs)."""

    left: Matrix
    right: Matrix

    @property
    def whole(self) -> Matrix:
        """The matrix, (outputs, inputs)."""
        return self.left @ self.right

    def norm(self) -> float:
        """Return the Euclidean norm of the matrix's entries, from the small matrices leftᵀ·left and right·rightᵀ."""
        return float(np.sqrt(max(0.0, np.sum((self.left.T @ self.left) * (self.right @ self.right.T)))))

    def components(self) -> tuple[Matrix, Matrix, Matrix]:
        """Return U (outputs, m), the singular values (m,) in falling order, and Vᵀ (m, inputs) of the matrix.

        They are those of a small matrix between orthonormal bases of both sides, so that the matrix is never formed;
        m ≤ R. Columns of U and rows of Vᵀ are orthonormal, also those of singular value 0.
        """
        (out, first), (into, second) = np.linalg.qr(self.left), np.linalg.qr(self.right.T)
        u, values, v = np.linalg.svd(first @ second.T, full_matrices=False)
        return out @ u, values, v @ into.T


def product(arrays: Mapping[str, NDArray[np.generic]], layer: str) -> Product:
    """Return B·A of a layer."""
    return total([arrays], layer, [1.0])


def total(each: Sequence[Mapping[str, NDArray[np.generic]]], layer: str, weights: Sequence[float]) -> Product:
    """Return Σ_k w_k·B_k·A_k of a layer, of any ranks, by stacking: [w_1·B_1, w_2·B_2, …]·[A_1; A_2; …]."""
    left = [weight * _flat(arrays[B + layer]) for arrays, weight in zip(each, weights, strict=True)]
    return Product(np.concatenate(left, axis=1), np.concatenate([_flat(arrays[A + layer]) for arrays in each]))


def _flat(array: NDArray[np.generic]) -> Matrix:
    """Return A or B as a matrix; of a convolution, entries of a filter are inputs, and B is (outputs, r, 1, 1)."""
    return array.reshape(len(array), -1).astype(np.float64)


def mean(
    each: Sequence[Mapping[str, NDArray[np.generic]]], name: str, weights: Sequence[float], shape: Sequence[int]
) -> Matrix:
    """Return Σ_k w_k·X_k of the arrays of a name, (*shape), where those of lower rank have zeros."""
    found = np.zeros(shape)
    for arrays, weight in zip(each, weights, strict=True):
        found[tuple(map(slice, arrays[name].shape))] += weight * arrays[name].astype(np.float64)
    return found


def completed(rows: Matrix, others: Matrix, count: int) -> Matrix:
    """Return ``count`` orthonormal rows: ``rows``, which are, and directions of ``others`` that they lack.

    Args:
        rows: orthonormal rows (m, n), m ≤ count ≤ n.
        others: further rows (k, n), m + k ≥ count.
        count: number of rows.
    """
    basis, _ = np.linalg.qr(np.concatenate([rows, others]).T)
    return np.concatenate([rows, basis.T[len(rows) : count]])
