"""What a node holds once for all its clients: frozen parameters, and buffers that are not exchanged."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
from torch import nn

from florilegium.common.errors import RunError
from florilegium.common.files import read_tensors, write_tensors
from florilegium.models.frozen import Frozen, hash_of
from florilegium.models.parameters import Arrays, frozen, set_arrays, unexchanged

log = logging.getLogger("flwr")

KEPT = 8
"""Number of files of frozen parameters that a device keeps; a file that is gone is sent again when a run needs it."""


class Held:
    """The frozen parameters and the buffers that are not exchanged, as each client of a node finds them.

    Args:
        model: the node's network, freshly built.
        frozen: its frozen parameters.

    Attributes:
        frozen: the frozen parameters.
    """

    def __init__(self, model: nn.Module, frozen: Frozen) -> None:
        self._model = model
        self._buffers = {name: buffer.clone() for name, buffer in unexchanged(model).items()}
        self.frozen = frozen

    def restore(self) -> None:
        """Put back into the network what a client may have counted or changed there."""
        for name, value in self._buffers.items():
            self._model.get_buffer(name).copy_(value)
        now = frozen(self._model)
        changed = {  # those that nobody has written to stay in the memory that processes share
            name: array
            for name, array in self.frozen.arrays.items()
            if now[name].is_cuda or not np.array_equal(now[name].numpy(), array)
        }
        set_arrays(self._model, changed)

    def take(self, wanted: str, file: Path, model: str) -> None:
        """Let the network have the frozen parameters with the hash ``wanted``: its own, or those in ``file``.

        Args:
            wanted: the hash.
            file: where the server, or a reply to the roster query, has put them.
            model: value of key ``model``, for the error message.

        Raises:
            RunError: if they are not there.
        """
        if wanted == self.frozen.hash:
            return
        arrays = read_tensors(file)[0] if file.is_file() else {}
        if arrays.keys() != self.frozen.arrays.keys() or hash_of(arrays) != wanted:
            raise RunError(
                f"model: this run trains '{model}' with frozen parameters of hash {wanted}, but this node builds those "
                f"of hash {self.frozen.hash or 'none'}, and {file.name} does not hold the others; let the function or "
                "file that the network comes from give both sides the same parameters"
            )
        set_arrays(self._model, arrays)
        self.frozen = Frozen(arrays, self.frozen.others)

    def try_take(self, wanted: str, file: Path, model: str) -> None:
        """As :meth:`take`, if ``file`` is there; remove a file that is of no use, so that it is sent again."""
        if not wanted or wanted == self.frozen.hash or not file.is_file():
            return
        try:
            self.take(wanted, file, model)
        except Exception as error:  # safetensors raises its own error type, OSError or ValueError
            log.warning("%s is removed: %s", file, error)
            file.unlink(missing_ok=True)
        else:
            os.utime(file)

    def keep(self, arrays: Arrays, named: str, file: Path) -> None:
        """Write received frozen parameters to ``file``; of all files in its folder, keep the :data:`KEPT` last used.

        Raises:
            RunError: if they are not those of this node's network, or do not have the hash ``named``.
        """
        own = self.frozen.arrays
        same = arrays.keys() == own.keys() and all(
            (array.dtype, array.shape) == (own[name].dtype, own[name].shape) for name, array in arrays.items()
        )
        if not same or not all(np.isfinite(array).all() for array in arrays.values()):
            raise RunError("the received frozen parameters are not those of this node's network, or not finite")
        if hash_of(arrays) != named:
            raise RunError(f"the received frozen parameters do not have the hash '{named}' that came with them")
        write_tensors(file, arrays)
        by_use = sorted(file.parent.glob(f"*{file.suffix}"), key=lambda one: one.stat().st_mtime_ns)
        for old in by_use[:-KEPT]:
            old.unlink(missing_ok=True)
