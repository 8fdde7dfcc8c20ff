"""Large parameters in a file that processes map: each has them, and they are in memory once until one changes them.

Frozen parameters lie in the cache, for all runs of the machine; those that are trained in a file of this process and
those forked from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor, nn

from florilegium.common.files import make_once
from florilegium.common.spool import ALIGNED, LARGE, spooled
from florilegium.models.frozen import hash_of
from florilegium.models.parameters import Arrays, arrays_of, exchanged, frozen, whole

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
    plain = _plain(fixed)
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


def map_trained(model: nn.Module) -> Arrays:
    """Return all that training changes of ``model``, by name: copies, of a large model in a file.

    Then the model's own tensors are those of the file, too, until it is trained.

    Args:
        model: a network on the CPU.
    """
    tensors = whole(model)
    own = {name: tensors[name] for name in exchanged(model)}
    plain = _plain(own)
    if sum(tensor.nbytes for tensor in plain.values()) < LARGE:
        return arrays_of(own)
    copies, trained = copied([*plain.values()], 2)
    for tensor, own_copy in zip(plain.values(), trained, strict=True):
        tensor.data = own_copy
    found = arrays_of({name: tensor for name, tensor in own.items() if name not in plain})
    found |= {name: tensor.numpy() for name, tensor in zip(plain, copies, strict=True)}
    return {name: found[name] for name in own}


def copied(tensors: Sequence[Tensor], number: int = 1) -> list[list[Tensor]]:
    """Return so many copies of tensors, each of which can be changed; large ones in a file, on the CPU."""
    if sum(tensor.nbytes for tensor in tensors) < LARGE:
        return [[tensor.detach().clone() for tensor in tensors] for _ in range(number)]
    spool = spooled(part for tensor in tensors for part in _bytes(tensor))
    return [[*_tensors(spool.private(), tensors)] for _ in range(number)]


def _bytes(tensor: Tensor) -> tuple[Any, bytes]:
    """Return the bytes of a tensor, and what is missing to a place where any tensor may begin."""
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy(), bytes(-tensor.nbytes % ALIGNED)


def _tensors(memory: mmap, like: Iterable[Tensor]) -> Iterator[Tensor]:
    start = 0
    for one in like:
        count = one.numel()
        found = torch.frombuffer(memory, dtype=one.dtype, count=count, offset=start) if count else torch.empty(0)
        yield found.to(one.dtype).reshape(one.shape)
        start += -(-one.nbytes // ALIGNED) * ALIGNED


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those of the tensors that lie in memory in the order of their axes."""
    return {n: one for n, one in tensors.items() if one.stride() == torch.empty(one.shape, device="meta").stride()}


def _places(content: NDArray[Any]) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and last byte of each array in a safetensors file; data begin where numbers may."""
    size = int(content[:8].view("<u8")[0])
    for name, facts in json.loads(bytes(content[8 : 8 + size])).items():
        if name != "__metadata__":
            start, end = facts["data_offsets"]
            yield name, 8 + size + start, 8 + size + end
