"""Frozen parameters in a file that all processes of a machine map: each holds them, and they are in memory once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import nn

from florilegium.common.files import make_once
from florilegium.models.frozen import hash_of
from florilegium.models.parameters import Arrays, arrays_of, frozen, whole

SMALLEST = 1 << 20
"""Bytes of frozen parameters below which each process has its own."""


def map_frozen(model: nn.Module, cache: Path) -> Arrays | None:
    """Let large frozen parameters be those of a mapped file; they keep their values, and may be changed by a process.

    Args:
        model: a network on the CPU.
        cache: the folder of the cache.

    Returns:
        All frozen parameters by name, as arrays that nobody can change; None if they are small, and nothing was done.
    """
    tensors = whole(model)
    fixed = {name: tensors[name] for name in frozen(model)}
    if sum(tensor.nbytes for tensor in fixed.values()) < SMALLEST:
        return None
    plain = {name: one for name, one in fixed.items() if one.stride() == torch.empty(one.shape, device="meta").stride()}
    arrays: Arrays = {name: tensor.detach().numpy() for name, tensor in plain.items()}
    file = make_once(cache / "frozen" / f"{hash_of(arrays)}.safetensors", lambda: arrays, save_file)
    unchanged = np.memmap(file, np.uint8, "r")
    private = torch.UntypedStorage.from_file(str(file), False, len(unchanged))
    found = {name: arrays_of({name: tensor})[name] for name, tensor in fixed.items() if name not in plain}
    for name, start, end in _places(unchanged):
        tensor = plain[name]
        found[name] = unchanged[start:end].view(arrays[name].dtype).reshape(tensor.shape)
        mapped = torch.empty(0, dtype=tensor.dtype)
        tensor.data = mapped.set_(private, start // tensor.element_size(), tensor.shape)  # type: ignore[call-overload]
    return {name: found[name] for name in fixed}


def _places(content: NDArray[Any]) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and last byte of each array in a safetensors file; data begin where numbers may."""
    size = int(content[:8].view("<u8")[0])
    for name, facts in json.loads(bytes(content[8 : 8 + size])).items():
        if name != "__metadata__":
            start, end = facts["data_offsets"]
            yield name, 8 + size + start, 8 + size + end
