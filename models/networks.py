"""Registry of networks, and building one from a seed.

A network is a function (input shape, classes) → ``nn.Module``: one of the suite's own, of an installed package, of
torchvision or timm (:mod:`florilegium.models.zoo`), or of the user's own code. Modules that are not the suite's own are
tried out and divided into blocks (:mod:`florilegium.models.adapt`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from florilegium.common.errors import ConfigurationError
from florilegium.common.model_folders import check_weights, find_folder, named_folder
from florilegium.common.plugins import Registry
from florilegium.common.seeds import torch_draws
from florilegium.common.text import VOCABULARY_SIZE
from florilegium.models.zoo import find_in_zoo

if TYPE_CHECKING:
    from torch import nn

    Builder = Callable[..., nn.Module]

_OWN = {
    "lenet": "florilegium.models.convnets:lenet",
    "cnn64": "florilegium.models.convnets:cnn64",
    "cnn128": "florilegium.models.convnets:cnn128",
    "cnn": "florilegium.models.convnets:cnn",
    "cnn512": "florilegium.models.convnets:cnn512",
    "cnn-bn": "florilegium.models.convnets:cnn_bn",
    "linear": "florilegium.models.mlp:linear",
    "mlp": "florilegium.models.mlp:mlp",
    "resnet18": "florilegium.models.resnets:resnet18",
    "resnet18-imagenet": "florilegium.models.resnets:resnet18_imagenet",
    "resnet20": "florilegium.models.resnets:resnet20",
    "char-lstm": "florilegium.models.lstms:char_lstm",
    "word-lstm": "florilegium.models.lstms:word_lstm",
    "char-lstm-steps": "florilegium.models.lstms:char_lstm_steps",
    "fcn": "florilegium.models.convnets:fcn",
    "centers": "florilegium.models.centers:centers",
    "trees": "florilegium.models.trees:trees",
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

FOR_TEXT: Mapping[str, str] = {"char-lstm": "characters", "char-lstm-steps": "characters", "word-lstm": "words"}
"""Networks for text, with the kind of dataset that each needs; all others are for images and tables."""


FOR_POSITIONS = ("char-lstm-steps", "fcn")
"""Networks with outputs for each position of an input; all others have one vector of outputs."""


def takes(name: str, kind: str, tokens: int = 0) -> bool:
    """Return whether a network may be given inputs of this kind; those of other packages must know themselves.

    Args:
        name: a key of ``NETWORKS``.
        kind: the kind of a dataset: "characters", "words", "tokens" and "pieces" are text, which only some networks
            read.
        tokens: number of different tokens.
    """
    if named_folder(name) or kind == "pieces":
        return kind == "pieces" and name not in NETWORKS.own
    if name not in NETWORKS.own:
        return True
    if kind == "tokens":
        return FOR_TEXT.get(name) == "characters" and tokens <= VOCABULARY_SIZE
    return FOR_TEXT.get(name) == (kind if kind in FOR_TEXT.values() else None)


def find_network(name: str) -> Builder:
    """Return the function that builds network ``name``.

    Args:
        name: a key of ``NETWORKS``, a reference ``package.module:attribute``, or ``torchvision:…`` or ``timm:…``.

    Raises:
        ConfigurationError: if there is no such function.
    """
    return find_in_zoo(name) or NETWORKS[name]


def network_problem(name: str) -> str:
    """Return why there is no network ``name``, "" if there is one; the suite's own are not imported for it."""
    if name in NETWORKS.own:
        return ""
    try:
        if pretrained := named_folder(name):
            check_weights(find_folder(pretrained, "model"), "model")
            return ""
        find_network(name)
    except ConfigurationError as error:
        return str(error)
    return ""


def build(
    name: str, shape: tuple[int, ...], classes: int, seed: int, *, codes: int = 0, positions: tuple[int, ...] = (),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> nn.Sequential:  # fmt: skip
    """Build network ``name`` with PyTorch's default initialisation, drawn from ``seed``.

    Args:
        name: see :func:`find_network`.
        shape: the shape of one input: (channels, height, width), (features,), (length,) or (words, numbers).
        classes: number of outputs C.
        seed: seed of the run; equal seeds give equal initial parameters θ₀ on every machine.
        codes: number of different int64 codes in the inputs; 0: they are numbers.
        positions: the positions of which each has C outputs, as in images of outputs (n, C, *positions); (): (n, C).
        sizes: further arguments of its function, of the networks of the suite whose sizes are keys.

    Returns:
        An ``nn.Sequential`` of named blocks, convolutions in channels-last layout (1.3 to 2 times faster on CPUs).

    Raises:
        ConfigurationError: if there is no such network, it does not accept inputs of this shape, or it cannot be used.
    """
    import torch

    builder = find_network(name)
    with torch_draws(seed, "model", name):
        try:
            network = builder(shape, classes, **sizes)
        except ValueError as error:
            raise ConfigurationError(f"model: '{name}' does not fit the data: {error}.") from error
        except Exception as error:  # the code of another package may raise anything
            if name in _OWN or isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"model: '{name}' {_failure(builder, shape, classes, error)}") from error
        if name in _OWN:
            assert isinstance(network, torch.nn.Sequential)
            _check_positions(name, network, shape, (classes, *positions))
            return network.to(memory_format=torch.channels_last)
        if not isinstance(network, torch.nn.Module):
            raise ConfigurationError(
                f"model: '{name}' returns {type(network).__name__} (found: {network!r:.60}), expected a torch.nn.Module"
            )
        from florilegium.models.adapt import adapt, check_built_again  # imports PyTorch

        try:
            adapted = adapt(network, shape, classes, codes=codes, positions=positions)
            with torch_draws(seed, "model", name, "again"):
                check_built_again(network, builder(shape, classes), shape, codes=codes)
        except ValueError as error:
            raise ConfigurationError(f"model: '{name}' {error}") from error
        return adapted


def _check_positions(name: str, network: nn.Sequential, shape: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    """Raise :class:`ConfigurationError` unless a network of the suite's own has outputs for the task's positions."""
    import torch

    kind = torch.int64 if FOR_TEXT.get(name) == "characters" else torch.float32
    with torch.no_grad():
        x = torch.zeros(1, *shape, dtype=kind)
        found = tuple(network.eval()(x).shape[1:]) if name in FOR_POSITIONS else (outputs[0],)
    network.train()
    if found != outputs:
        fitting = "one of your own" if len(outputs) == 1 else ", ".join((*FOR_POSITIONS, "one of your own"))
        raise ConfigurationError(
            f"model: '{name}' has outputs of shape {found} for each input, and the task needs {outputs}; use {fitting}"
        )


def _failure(builder: Builder, shape: tuple[int, ...], classes: int, error: Exception) -> str:
    """Say what is wrong with a function that raised ``error`` when it was called with an input shape and classes."""
    try:
        inspect.signature(builder).bind(shape, classes)
    except TypeError as wrong:
        return f"cannot be called with two arguments, the input shape {shape} and the number of classes: {wrong}"
    except ValueError:  # some functions have no signature
        pass
    return f"cannot be built for inputs of shape {shape} and {classes} classes: {type(error).__name__}: {error}"
