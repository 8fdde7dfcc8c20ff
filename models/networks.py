"""Registry of networks, and building one from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from florilegium.common.errors import ConfigurationError
from florilegium.common.plugins import Registry
from florilegium.common.seeds import torch_initialisation
from florilegium.common.text import VOCABULARY_SIZE

if TYPE_CHECKING:
    from torch import nn

    Builder = Callable[[tuple[int, ...], int], nn.Module]

_OWN = {
    "lenet": "florilegium.models.convnets:lenet",
    "cnn64": "florilegium.models.convnets:cnn64",
    "cnn128": "florilegium.models.convnets:cnn128",
    "cnn": "florilegium.models.convnets:cnn",
    "cnn-bn": "florilegium.models.convnets:cnn_bn",
    "linear": "florilegium.models.mlp:linear",
    "mlp": "florilegium.models.mlp:mlp",
    "resnet18": "florilegium.models.resnets:resnet18",
    "resnet18-imagenet": "florilegium.models.resnets:resnet18_imagenet",
    "resnet20": "florilegium.models.resnets:resnet20",
    "char-lstm": "florilegium.models.lstms:char_lstm",
    "word-lstm": "florilegium.models.lstms:word_lstm",
    "centers": "florilegium.models.centers:centers",
}
"""Function that builds each network; imported when used, since torch and torchvision take seconds to import."""


def _read(found: Any, reference: str) -> Builder:
    """Return the function of another package that builds a network; raise ``TypeError`` if it is not callable."""
    if not callable(found):
        raise TypeError(f"expected a function (input shape, classes) → torch.nn.Module (found: {found!r:.60})")
    builder: Builder = found
    return builder


NETWORKS: Registry[Builder] = Registry("model", "a network", _OWN, _read)
"""All networks by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""

FOR_TEXT: Mapping[str, str] = {"char-lstm": "characters", "word-lstm": "words"}
"""Networks for text, with the kind of dataset that each needs; all others are for images and tables."""


def takes(name: str, kind: str, tokens: int = 0) -> bool:
    """Return whether a network may be given inputs of this kind; those of other packages must know themselves.

    Args:
        name: a key of ``NETWORKS``.
        kind: the kind of a dataset: "characters", "words" and "tokens" are text, and only some networks read it.
        tokens: number of different tokens.
    """
    if name not in NETWORKS.own:
        return True
    if kind == "tokens":
        return FOR_TEXT.get(name) == "characters" and tokens <= VOCABULARY_SIZE
    return FOR_TEXT.get(name) == (kind if kind in FOR_TEXT.values() else None)


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Sequential:
    """Build network ``name`` with PyTorch's default initialisation, drawn from ``seed``.

    Args:
        name: a key of ``NETWORKS``.
        shape: the shape of one input: (channels, height, width), (features,) or (length,).
        classes: number of outputs C.
        seed: seed of the run; equal seeds give equal initial parameters θ₀ on every machine.

    Returns:
        An ``nn.Sequential`` of named blocks, convolutions in channels-last layout (1.3 to 2 times faster on CPUs).

    Raises:
        ConfigurationError: if there is no such network, or it does not accept inputs of this shape.
    """
    import torch

    builder = NETWORKS[name]
    with torch_initialisation(seed, "model", name):
        try:
            network = builder(shape, classes)
        except ValueError as error:
            raise ConfigurationError(f"model: '{name}' does not fit the data: {error}.") from error
    return network.to(memory_format=torch.channels_last)
