"""Read pickles that hold plain data only: dicts, lists, numbers, strings and NumPy arrays.

A pickle can name any function to be called when it is read. Here only the functions that rebuild NumPy arrays can be
named; all others are refused before anything is called.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from florilegium.common.errors import DataError

_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
"""Modules of the functions that rebuild arrays, in NumPy 1 and 2."""
_FUNCTIONS = ("_reconstruct", "scalar", "_frombuffer")
_TYPES = ("ndarray", "dtype")


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows NumPy's arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a type or function that rebuilds arrays.

        Raises:
            DataError: for all others; the message names it.
        """
        if (module in _MODULES and name in _FUNCTIONS) or (module == "numpy" and name in _TYPES):
            return super().find_class(module, name)
        raise DataError(
            f"it names {module}.{name}, which is not read: only dicts, lists, numbers, strings and NumPy arrays are"
        )


def read_pickle(path: Path) -> Any:
    """Return the contents of a pickle of plain data.

    Raises:
        DataError: if it cannot be read or holds anything else.
    """
    try:
        with path.open("rb") as file:
            return _load(file)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def read_object(path: Path, name: str) -> Any:
    """Return the pickled object in array ``name`` of an .npz file, which ``numpy.savez`` stored without dimensions.

    Raises:
        DataError: if it cannot be read or holds anything but plain data.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(file)
            if dtype != np.dtype(object) or shape != ():
                raise DataError(f"array '{name}' is no pickled object, but {dtype} of shape {shape}")
            found = _load(file)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return found.item() if isinstance(found, np.ndarray) and found.shape == () else found


def _load(file: IO[bytes]) -> Any:
    try:
        # Pickles of Python 2 hold arrays as text in this encoding.
        return _Unpickler(file, encoding="latin1").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"it is no readable pickle: {type(error).__name__}: {error}") from error
