"""A linear model and a multi-layer perceptron, for vectors and very small images."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from florilegium.common.seeds import torch_draws


def linear(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One dense layer on flattened inputs: softmax regression for C classes, linear regression for one output."""
    return nn.Sequential(OrderedDict(fc=nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))))


def mlp(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Two hidden layers of 64 and 32 ReLU units, then C outputs; inputs are flattened."""
    return nn.Sequential(
        OrderedDict(
            fc1=nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU()),
            fc2=nn.Sequential(nn.Linear(64, 32), nn.ReLU()),
            fc3=nn.Linear(32, classes),
        )
    )


def adaptation_network(classes: int, width: int, seed: int) -> nn.Sequential:
    """Return FedTTA's adaptation network φ, initialised from ``seed``.

    Three dense layers map the logits of each example, (n, C), to one number, (n, 1).
    """
    with torch_draws(seed, "adaptation"):
        return nn.Sequential(
            nn.Linear(classes, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )
