"""Networks of torchvision and timm by name: ``torchvision:resnet18``, ``timm:vit_tiny_patch16_224``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from florilegium.common.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from torch import nn


def of_zoo(name: str) -> bool:
    """Return whether a network's name is of the form ``torchvision:…`` or ``timm:…``."""
    package, _, network = name.partition(":")
    return package in _BUILDERS and bool(network)


def find_in_zoo(name: str) -> Callable[[tuple[int, ...], int], nn.Module] | None:
    """Return the function that builds network ``name``, initialised at random; None if the name is of another form.

    The package is imported, and the rest of the name looked up, when the function is called.

    Raises:
        ConfigurationError: if the package is not installed.
    """
    package, _, network = name.partition(":")
    if not of_zoo(name):
        return None
    if find_spec(package) is None:
        raise ConfigurationError(f"model: '{name}' needs the package {package}: pip install {package}")
    return partial(_BUILDERS[package], network)


def _torchvision(network: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    from torchvision import models

    _check("torchvision", network, models.list_models(module=models), shape)
    if shape[0] != 3:
        raise ValueError(f"it takes images of 3 channels, not of {shape[0]}; networks of timm take any number")
    # Only a vision transformer has a size of its own; its images are square.
    size = {"image_size": shape[1]} if network.startswith("vit_") and shape[1] == shape[2] else {}
    built: nn.Module = models.get_model(network, weights=None, num_classes=classes, **size)
    return built


def _timm(network: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    import timm

    _check("timm", network.partition(".")[0], timm.list_models(), shape)
    make = partial(timm.create_model, network, pretrained=False, num_classes=classes, in_chans=shape[0])
    try:
        return make(img_size=shape[1:])
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        return make()  # a convolutional network, for images of any size


_BUILDERS: Mapping[str, Callable[[str, tuple[int, ...], int], Any]] = {"torchvision": _torchvision, "timm": _timm}


def _check(package: str, network: str, known: Collection[str], shape: tuple[int, ...]) -> None:
    if network not in known:
        raise ConfigurationError(
            f"model: '{package}:{network}' is no network for images in this version of {package}"
            f"{nearest(network, known)}"
        )
    if len(shape) != 3:
        raise ValueError(f"it takes images (channels, height, width), not inputs of shape {shape}")
