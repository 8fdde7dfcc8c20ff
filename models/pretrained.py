"""Read a network's parameters from a safetensors file or PyTorch checkpoint, with our names or torchvision's."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import folder
from florilegium.models.blocks import WHOLE, block_names
from florilegium.models.parameters import Arrays, arrays_of, set_arrays, whole

log = logging.getLogger("flwr")

_TORCHVISION = (
    (r"^conv1\.", "stem.0."),
    (r"^bn1\.", "stem.1."),
    (r"^layer4\.(?=\d+\.(conv|bn|downsample))", "layer4.0."),
)
"""Patterns in the parameter names of torchvision's ResNets, and what replaces them in ours."""


def read_pretrained(path: Path, network: Arrays, key: str = "init") -> Arrays:
    """Read the arrays of ``network`` from a file, in single precision; a classifier of another shape is skipped.

    Args:
        path: the file; a PyTorch checkpoint must be a state dict, and is read without running any code in it.
        network: arrays of the newly built network.
        key: the configuration key that names the file, for messages.

    Raises:
        ConfigurationError: if the file is not readable, or layers do not fit the network; the message names them.
    """
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
        arrays: Arrays = {
            str(name): tensor.detach().float().numpy() for name, tensor in found.items() if tensor.is_floating_point()
        }
    except Exception as error:  # a damaged file can make PyTorch raise any exception
        raise ConfigurationError(
            f"{key}: {path} is not a readable file of parameters, a plain state dict by name: {error}"
        ) from error
    if "stem.0.weight" in network:
        arrays = {name if name in network else _renamed(name): array for name, array in arrays.items()}
    if block_names(network) == [WHOLE]:  # the file has the names of the user's own module
        arrays = {name if name in network else f"{WHOLE}.{name}": array for name, array in arrays.items()}
    head = _classifier(network)
    wrong: list[str] = []
    anew: list[str] = []
    for name, built in network.items():
        if name in arrays and arrays[name].shape == built.shape:
            continue
        shape = f"is {arrays[name].shape}, the network needs {built.shape}" if name in arrays else "is missing"
        (anew if name in arrays and _is_in(name, head) else wrong).append(f"{name} {shape}")
    if wrong:
        more = ", …" if len(wrong) > 5 else ""
        raise ConfigurationError(f"{key}: {path} does not fit the network: {', '.join(wrong[:5])}{more}")
    if anew:
        log.warning("%s: the classifier starts anew: in %s %s", key, path, ", ".join(anew))
    if unused := [name for name in arrays if name not in network]:
        more = ", …" if len(unused) > 5 else ""
        log.info("%s: %d tensors in %s are not used: %s%s", key, len(unused), path, ", ".join(unused[:5]), more)
    return {name: arrays[name] for name in network if not anew or not _is_in(name, head)}


def load_weights(network: nn.Sequential, file: str) -> None:
    """Load a newly built network's parameters from the file that key ``weights`` names; the log says what is unused.

    Names are those of the network, or of the module that it was built from; a classifier of another shape starts anew.

    Raises:
        ConfigurationError: if the file is not readable, or lacks layers of the network.
    """
    path = folder(file)
    if not path.is_file():
        raise ConfigurationError(f"weights: there is no file {path}")
    own = arrays_of(whole(network))
    set_arrays(network, read_pretrained(path, own, "weights"))


def _classifier(network: Arrays) -> str:
    """Return the path of the classifier: the last of several blocks; the last layer of a module that is one block."""
    blocks = block_names(network)
    if blocks == [WHOLE]:
        layer = [*network][-1].rpartition(".")[0]
        return "" if layer == WHOLE else layer
    return blocks[-1] if len(blocks) > 1 else ""


def _is_in(name: str, path: str) -> bool:
    return bool(path) and name.startswith(f"{path}.")


def _renamed(name: str) -> str:
    for pattern, ours in _TORCHVISION:
        name = re.sub(pattern, ours, name)
    return name
