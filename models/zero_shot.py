"""HyperFedZero's network: the parameters with which an input is classified are made from an embedding of the input.

The distribution embedding is e(x) = softmax(κ·f(x) + z·softplus(noisy(x))), where z ~ N(0, 1) is noise of training.
h(e) are the parameters of the classifier c, and the network's output is c(x; h(e(x))).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import torch_draws
from florilegium.models.built import build_network
from florilegium.models.parameters import Arrays
from florilegium.models.settings import NetworkSettings
from florilegium.models.stacked import StackedNetwork, stacked

AT_ONCE = 1 << 24
"""Number of classifiers' parameters that exist at a time, if no gradients are needed."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the extractor's output and of the hypernetwork.

    Attributes:
        embedding: m, length of a distribution embedding.
        layers: number of the hypernetwork's layers width → width.
        width: width of its layers.
        chunk: s, number of parameters that it makes at a time.
        chunk_embedding: length of a chunk's embedding.
    """

    embedding: int
    layers: int
    width: int
    chunk: int
    chunk_embedding: int

    @classmethod
    def of(cls, arrays: Arrays) -> Self:
        """Return the sizes of saved arrays of a :class:`ZeroShot`."""
        width, embedding = arrays["hypernetwork.descriptor.weight"].shape
        dense = [array for name, array in arrays.items() if name.startswith("hypernetwork.layers.") and array.ndim == 2]
        return cls(embedding, len(dense) - 1, width, len(dense[-1]), arrays["hypernetwork.chunks"].shape[1])


class ChunkedHyperNetwork(nn.Module):
    """Hypernetwork h that makes a network's parameters in chunks of equal size, each by the same layers.

    All parameters lie one after the other in a vector of D numbers, cut into ⌈D/s⌉ chunks; surplus numbers of the last
    one are dropped. The first layer sees the embedding and the chunk's own, learned embedding. Its weights are drawn so
    that a one-hot embedding and a chunk's embedding have equal shares in its outputs, and all parameters begin with the
    variance of PyTorch's default, 1/(3·fan-in); a bias has the fan-in of the tensor before it.

    Args:
        shapes: shape of each parameter of the network, in its order.
        sizes: sizes of the layers.
    """

    def __init__(self, shapes: Sequence[torch.Size], sizes: Sizes) -> None:
        super().__init__()
        self._shapes, self._counts, width = shapes, [shape.numel() for shape in shapes], sizes.width
        fan_in, scales = 1, []
        for shape in shapes:
            fan_in = math.prod(shape[1:]) if len(shape) > 1 else fan_in
            scales.append((3 * fan_in) ** -0.5)
        self._scales = scales
        self.chunks = nn.Parameter(torch.randn(math.ceil(sum(self._counts) / sizes.chunk), sizes.chunk_embedding))
        self.descriptor = nn.Linear(sizes.embedding, width, bias=False)
        self.chunk = nn.Linear(sizes.chunk_embedding, width)
        nn.init.normal_(self.descriptor.weight)
        nn.init.normal_(self.chunk.weight, std=sizes.chunk_embedding**-0.5)
        hidden = [nn.Linear(width, width) for _ in range(sizes.layers)]
        for layer in hidden:
            nn.init.kaiming_normal_(layer.weight)
        last = nn.Linear(width, sizes.chunk)
        nn.init.normal_(last.weight, std=width**-0.5)
        for layer in (self.chunk, *hidden, last):
            nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(nn.ReLU(), *[part for layer in hidden for part in (layer, nn.ReLU())], last)

    def forward(self, e: Tensor) -> list[Tensor]:
        """Return the parameters of n networks, each (n, *shape), for embeddings (n, m)."""
        made = self.layers(self.descriptor(e)[:, None] + self.chunk(self.chunks)).flatten(1)
        parts = made[:, : sum(self._counts)].split(self._counts, dim=1)
        return [
            part.unflatten(1, shape) * scale
            for part, shape, scale in zip(parts, self._shapes, self._scales, strict=True)
        ]


class ZeroShot(nn.Module):
    """Distribution extractor f with its noise network, and the hypernetwork h that makes an input's classifier.

    The extractor's outputs are multiplied by κ. As initial outputs of a network hardly depend on its input, embeddings
    would all begin near (1/m, …, 1/m), where the gradients that could part them vanish.

    Args:
        extractor: maps inputs (n, …) to (n, 2m) numbers: f(x), and noisy(x).
        network: the classifier c; its parameters are not used.
        sizes: sizes of the hypernetwork.
        κ: factor on f(x).

    Raises:
        ValueError: if the classifier cannot be run with other parameters for each example; the message says why.
    """

    def __init__(self, extractor: nn.Module, network: nn.Module, sizes: Sizes, κ: float) -> None:
        super().__init__()
        form = stacked(network)
        if form is None:
            raise ValueError("has layers other than dense, convolutional, pooling, LSTM, embeddings and activations")
        if not any(form.places):
            raise ValueError("has no parameters, and there is nothing for a hypernetwork to make")
        self._classifier: StackedNetwork = form
        shapes = [parameter.shape for parameter in network.parameters()]
        self._at_once = max(1, AT_ONCE // sum(shape.numel() for shape in shapes))
        self.extractor = extractor
        self.hypernetwork = ChunkedHyperNetwork(shapes, sizes)
        self.scale = κ

    def embed(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Return log e, (n, m), for inputs (n, …); ``z``, (n, m), is standard normal noise; None: no noise."""
        f, noisy = self.extractor(x).chunk(2, dim=1)
        κf = self.scale * f
        return torch.log_softmax(κf if z is None else κf + z * softplus(noisy), dim=1)

    def classify(self, x: Tensor, log_e: Tensor) -> Tensor:
        """Return logits (n, C) for inputs (n, …) whose embeddings have the logarithms ``log_e``, (n, m)."""
        return self._classifier(self.hypernetwork(log_e.exp()), x[:, None])[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, C) for inputs (n, …), without noise."""
        return torch.cat([self.classify(part, self.embed(part)) for part in x.split(self._at_once)])


def imbalance(log_e: Tensor) -> Tensor:
    """Return var/mean over the m dimensions of the sum of embeddings, given their logarithms (n, m).

    It is 0 if all dimensions have equal shares in the sum, and n·(1 − 1/m) if one has all.
    """
    totals = log_e.exp().sum(dim=0)
    return totals.var(correction=0) / totals.mean()


def entropy(log_e: Tensor) -> Tensor:
    """Return the mean over embeddings of their entropy, in nats, given their logarithms (n, m)."""
    return -(log_e.exp() * log_e).sum(dim=1).mean()


def build_zero_shot(
    settings: NetworkSettings,
    shape: tuple[int, ...],
    classes: int,
    sizes: Sizes,
    κ: float,
    seed: int,
    *,
    codes: int = 0,
) -> ZeroShot:
    """Return HyperFedZero's network, initialised from ``seed``; the extractor has the architecture of the classifier.

    ``settings``, ``shape``, ``classes``, ``seed`` and ``codes`` are those of
    :func:`florilegium.models.built.build_network`.

    Raises:
        ConfigurationError: as there, and if the network cannot be the classifier.
    """
    extractor = build_network(settings, shape, 2 * sizes.embedding, seed, codes=codes)
    network = build_network(settings, shape, classes, seed, codes=codes)
    with torch_draws(seed, "zero-shot"):
        try:
            return ZeroShot(extractor, network, sizes, κ)
        except ValueError as error:
            raise ConfigurationError(
                f"model: '{settings.model}' {error}; method 'hyperfedzero' cannot use it"
            ) from error
