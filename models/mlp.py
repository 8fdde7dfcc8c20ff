"""A linear model and a multi-layer perceptron, for vectors and very small images."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn


def linear(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One dense layer, the inputs flattened: softmax regression for C classes, linear regression for one output."""
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
