"""A hypernetwork: a network whose outputs are the parameters of another one (PeFLL, pFedHN)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from florilegium.common.seeds import torch_draws


class HyperNetwork(nn.Module):
    """Hypernetwork h: maps descriptors (c, l) to the parameters of c networks, with one output layer per tensor.

    The layers are those of Scott's thesis, Table B.3: l → width, ``hidden`` layers width → width, each with ReLU, then
    width → D.

    Args:
        inputs: l ≥ 1, length of a descriptor.
        shapes: shape of every tensor to generate, by name.
        hidden: number of layers width → width.
        width: width of the hidden layers.
        seed: the run's seed, from which PyTorch's default initialisation is drawn.

    Raises:
        ValueError: if ``shapes`` is empty, or ``inputs`` is below 1.
    """

    def __init__(self, inputs: int, shapes: Mapping[str, tuple[int, ...]], hidden: int, width: int, seed: int) -> None:
        super().__init__()
        if not shapes:
            raise ValueError("a hypernetwork makes the parameters of a network, and this one has none")
        if inputs < 1:
            raise ValueError(f"a descriptor has at least one number (found: {inputs})")
        self._shapes = dict(shapes)
        with torch_draws(seed, "hypernetwork"):
            layers: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
            for _ in range(hidden):
                layers += [nn.Linear(width, width), nn.ReLU()]
            self.trunk = nn.Sequential(*layers)
            self.outputs = nn.ModuleList(nn.Linear(width, torch.Size(shape).numel()) for shape in shapes.values())

    def forward(self, v: Tensor) -> dict[str, Tensor]:
        """Return the generated tensors by name, each (c, *shape), for descriptors (c, l)."""
        features = self.trunk(v)
        return {
            name: layer(features).unflatten(1, shape) if shape else layer(features)[:, 0]
            for layer, (name, shape) in zip(self.outputs, self._shapes.items(), strict=True)
        }
