"""Parameters of a network from a file: safetensors or a torch checkpoint, with our names or torchvision's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from common.errors import ConfigurationError
from models.blocks import last_blocks, of_blocks
from models.parameters import Arrays

SUFFIXES = (".safetensors", ".pt", ".pth")
_TORCHVISION = (
    (r"^conv1\.", "stem.0."),
    (r"^bn1\.", "stem.1."),
    (r"^layer4\.(?=\d+\.(conv|bn|downsample))", "layer4.0."),
)
"""Names of torchvision's ResNets, and ours."""


def read_pretrained(path: Path, network: Mapping[str, object]) -> Arrays:
    """Return the arrays of ``network`` that the file has; a classifier for other classes is left out.

    Args:
        path: the file; a torch checkpoint is a state dict, and is read without running any code in it.
        network: the arrays of the network as it was built.

    Raises:
        ConfigurationError: if the file is no such file, or its layers do not fit; that names them.
    """
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
        tensors = {str(name): tensor for name, tensor in found.items() if tensor.is_floating_point()}
    except Exception as error:  # torch raises whatever a damaged file makes it stumble over
        raise ConfigurationError(f"init: {path} is not a readable file of parameters: {error}") from error
    if "stem.0.weight" in network:
        tensors = {name if name in network else _renamed(name): tensor for name, tensor in tensors.items()}
    arrays: Arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    built: Arrays = dict(network)  # type: ignore[arg-type]
    head = of_blocks(built, last_blocks(built, 1, "init"))
    wrong = [
        f"{name} ({'missing' if name not in arrays else f'{arrays[name].shape}, the network needs {a.shape}'})"
        for name, a in built.items()
        if name not in head and (name not in arrays or arrays[name].shape != a.shape)
    ]
    if wrong:
        more = ", …" if len(wrong) > 5 else ""
        raise ConfigurationError(f"init: {path} does not fit the network: {', '.join(wrong[:5])}{more}")
    whole = all(name in arrays and arrays[name].shape == a.shape for name, a in head.items())
    return {name: arrays[name] for name in built if name not in head or whole}


def _renamed(name: str) -> str:
    for pattern, ours in _TORCHVISION:
        name = re.sub(pattern, ours, name)
    return name
