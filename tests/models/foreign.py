"""Networks as users write them, for tests: functions (input shape, classes) → module, and what is wrong with some."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Shape = tuple[int, ...]


class ViewNet(nn.Module):
    """A convolution, and ``view`` in the forward pass, as in many tutorials."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 6, 3)
        self.fc = nn.Linear(6 * (shape[1] - 2) * (shape[2] - 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv(x))
        return self.fc(x.view(x.size(0), -1))


class FlattenNet(nn.Module):
    """Children in the order of the forward pass, which flattens between them."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.relu = nn.ReLU()
        self.hidden = nn.Linear(6 * (shape[1] - 2) * (shape[2] - 2), 16)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.hidden(torch.flatten(self.relu(self.norm(self.conv(x))), 1))))


class DropoutNet(nn.Module):
    """A functional dropout, which only training mode shows."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.first = nn.Linear(math.prod(shape), 16)
        self.relu = nn.ReLU()
        self.second = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(self.flat(x)))
        return self.second(functional.dropout(x, 0.5, training=self.training))


class Residual(nn.Module):
    """A skip connection whose branch starts at zero, so that its first outputs are those without the branch's input."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.first = nn.Linear(math.prod(shape), 16)
        self.branch = nn.Linear(16, 16)
        self.head = nn.Linear(16, classes)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.flat(x))
        return self.head(x + self.branch(x))


class Stated(nn.Module):
    """A module that states its blocks, in another order than that of its attributes."""

    blocks = ("encoder", "head")

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(16, classes)
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


class Tied(nn.Module):
    """Two layers with the same weight, an integer buffer, a number as parameter, and a parameter without use."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(math.prod(shape), 12)
        self.encoder = nn.Linear(12, 12)
        self.decoder = nn.Linear(12, 12)
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(12, classes)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x.flatten(1)))
        return self.head(self.scale * self.decoder(functional.relu(self.encoder(x))))


class Attention(nn.Module):
    """A transformer layer with dropout over the rows of an image."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(shape[0] * shape[2], 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.2, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.permute(0, 2, 1, 3).flatten(2)
        return self.head(self.layer(self.embed(rows)).mean(dim=1))


class Recurrent(nn.Module):
    """A GRU over the rows of an image."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.gru = nn.GRU(shape[0] * shape[2], 12, num_layers=2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.permute(0, 2, 1, 3).flatten(2))[0][:, -1])


def frozen_body(shape: Shape, classes: int) -> nn.Module:
    """Three blocks, the first of which is frozen."""
    size = math.prod(shape)
    first = nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.ReLU())
    first.requires_grad_(False)
    return nn.Sequential(first, nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, classes))


def cumulative_norm(shape: Shape, classes: int) -> nn.Module:
    """1-d batch norm with cumulative averages, which depend on its count of batches."""
    size = math.prod(shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, classes)
    )


def lazy(shape: Shape, classes: int) -> nn.Module:
    """Layers that learn their sizes from the first inputs."""
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))


def many_tensors(shape: Shape, classes: int) -> nn.Module:
    """400 tensors."""
    layers = [nn.Linear(4, 4) for _ in range(198)]
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 4), *layers, nn.Linear(4, classes))


def dense(shape: Shape, classes: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A dense layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes)).to(dtype)


def codes(shape: Shape, classes: int) -> nn.Module:
    """An embedding of character codes."""
    return nn.Sequential(nn.Embedding(200, 4), nn.Flatten(), nn.Linear(4 * shape[0], classes))


class Computes(nn.Module):
    """A dense layer, and a function of its outputs."""

    def __init__(self, function: Any, shape: Shape, classes: int) -> None:
        super().__init__()
        self.inner, self.function = dense(shape, classes), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.inner(x))


class Positions(nn.Module):
    """Adds a constant, kept in a buffer of numbers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.register_buffer("positions", torch.linspace(0, 1, math.prod(shape)).view(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.positions


def with_buffer(shape: Shape, classes: int) -> nn.Module:
    """A constant in a buffer, and a dense layer."""
    return nn.Sequential(Positions(shape), dense(shape, classes))


def lone_channels(shape: Shape, classes: int) -> nn.Module:
    """Batch norm that receives one number per channel from an example, and so needs two in a batch."""
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 8), nn.BatchNorm1d(8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
        nn.Linear(8, classes),
    )


class Adapter(nn.Module):
    """A frozen dense layer with a trained change of low rank: y = Wx + b + B(Ax), with B = 0 at first (LoRA)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


class AdaptedTransformer(nn.Module):
    """A transformer block on the rows of an image, frozen but for its adapters of rank 4 and the classifier."""

    blocks = ("embedding", "attention", "head")

    def __init__(self, shape: Shape, classes: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Flatten(1, 2), nn.Linear(shape[2], width).requires_grad_(False))
        self.attention = AdaptedAttention(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(self.embedding(x)))


class AdaptedAttention(nn.Module):
    """Attention of one head and a dense network, each with a residual; the mean over all positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (Adapter(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.first, self.second = Adapter(width, 2 * width), Adapter(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(x.shape[2])
        x = self.norm(x + scores.softmax(dim=2) @ self.value(x))
        return (x + self.second(functional.relu(self.first(x)))).mean(dim=1)


def probe(shape: Shape, classes: int) -> nn.Module:
    """Two blocks, the first of which, all but the classifier, is frozen."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.ReLU()).requires_grad_(False)
    return nn.Sequential(body, nn.Linear(16, classes))


def unfrozen_probe(shape: Shape, classes: int) -> nn.Module:
    """The same, all of it trained."""
    return probe(shape, classes).requires_grad_(True)
