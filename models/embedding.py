"""PeFLL's embedding networks φ(x, y); the mean of φ over a client's examples is the client's descriptor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from florilegium.common.errors import ConfigurationError
from florilegium.models.networks import build

WITHOUT_LABELS = frozenset({"cnn-unlabeled"})
"""Kinds of embeddings that use the inputs alone, without labels."""
SMALLEST = 16
"""Side length in pixels of the smallest image that LeNet accepts."""


class Embedding(nn.Module):
    """Embedding φ(x, y): a network applied to an example's input and label together.

    Args:
        network: any network with l outputs.
        join: combines inputs (n, *shape) and classes (n,) into the network's input.
    """

    def __init__(self, network: nn.Module, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.network = network
        self.join = join

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return φ(x, y), (n, l), for inputs (n, *shape) and classes (n,)."""
        result: Tensor = self.network(self.join(x, y))
        return result


def build_embedding(kind: str, shape: tuple[int, ...], classes: int, size: int, seed: int) -> Embedding:
    """Build an embedding network.

    Args:
        kind: "linear", of the one-hot label alone; "cnn", LeNet on the image with a constant plane for each class;
            "cnn-unlabeled", LeNet on the image alone; "lstm", the character network on the text, with the class
            appended as one more character (in next-character prediction, the class is a character code).
        shape: shape of one input.
        classes: number of classes C.
        size: l, the length of a descriptor.
        seed: the run's seed, from which the initial parameters are drawn.

    Raises:
        ConfigurationError: if an embedding of this kind does not accept inputs of this shape.
    """
    if kind == "lstm" and len(shape) != 1:
        raise ConfigurationError(f"pefll.embedding: 'lstm' needs text, not inputs of shape {shape}")
    if kind in ("cnn", "cnn-unlabeled") and (len(shape) != 3 or min(shape[1:]) < SMALLEST):
        raise ConfigurationError(
            f"pefll.embedding: '{kind}' needs images of at least {SMALLEST}×{SMALLEST} pixels, not inputs of "
            f"shape {shape}"
        )

    def with_planes(x: Tensor, y: Tensor) -> Tensor:
        planes = one_hot(y, classes).to(x.dtype)[:, :, None, None].expand(-1, -1, *x.shape[2:])
        return torch.cat([x, planes], dim=1).contiguous(memory_format=torch.channels_last)

    match kind:
        case "linear":
            return Embedding(build("linear", (classes,), size, seed), lambda x, y: one_hot(y, classes).float())
        case "lstm":
            text = build("char-lstm", shape, size, seed)
            return Embedding(text, lambda x, y: torch.cat([x, y[:, None]], dim=1))
        case "cnn":
            return Embedding(build("lenet", (shape[0] + classes, *shape[1:]), size, seed), with_planes)
        case _:
            return Embedding(build("lenet", shape, size, seed), lambda x, y: x)
