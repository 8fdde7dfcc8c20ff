"""What training does not change: both sides of a run hold it, and name it by a hash, so that it need not be sent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import RunError

Arrays = dict[str, NDArray[Any]]
"""As in :mod:`florilegium.models.parameters`, which imports this module."""

FILE = "frozen.safetensors"
"""File in a run's folder with its frozen parameters."""


def hash_of(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a hash of names, types, shapes and contents, 16 hexadecimal digits; "" if there are no arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16] if arrays else ""


@dataclass(frozen=True)
class Frozen:
    """The frozen parameters of a run, by name.

    Attributes:
        arrays: their values; {} if all parameters are trained.
        others: the names of the network's other arrays.
    """

    arrays: Arrays = field(default_factory=dict)
    others: frozenset[str] = frozenset()

    @cached_property
    def hash(self) -> str:
        """Names the values (:func:`hash_of`); "" if there are none."""
        return hash_of(self.arrays)

    def rest(self, arrays: Arrays) -> Arrays:
        """Return the others of a network's ``arrays``, which training changes."""
        return {name: array for name, array in arrays.items() if name not in self.arrays}

    def without(self, arrays: Arrays, where: str) -> Arrays:
        """Return ``arrays`` that an earlier version stored, without the frozen parameters among them.

        They are known by their names alone, so that this is no use for what the present version stores: a second
        network of a method may have names that end alike.

        Args:
            arrays: arrays by name; names may have a prefix that ends with ".", "/" or ":".
            where: what stores them, for the error message.

        Raises:
            RunError: if a stored parameter is neither the frozen one, nor zero, as changes of it are.
        """
        if not self.arrays:
            return arrays
        known = self.arrays.keys() | self.others
        found = {}
        for name, array in arrays.items():
            if (own := _ending(name, known)) not in self.arrays or array.shape != self.arrays[own].shape:
                found[name] = array
            elif array.any() and not np.array_equal(array, self.arrays[own]):
                raise RunError(
                    f"{where} has other values of the frozen parameter '{own}' than this run trains with; an earlier "
                    "version wrote it, which kept frozen parameters with each model. Use that version, or start anew"
                )
        return found


NOTHING = Frozen()
"""Of networks all of whose parameters are trained."""


def _ending(name: str, known: Set[str]) -> str:
    """Return the longest of the ``known`` names that ``name`` is, or ends with after a separator; "" if none."""
    while name not in known and name:
        places = [place for separator in "./:" if (place := name.find(separator)) >= 0]
        name = name[min(places) + 1 :] if places else ""
    return name
