"""Networks with a trained module between body and last block: FedCP's policy, GPFL's valve.

The features h = body(x), (n, d), pass through a module that a vector of the client's own steers, its *condition* (d,).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from florilegium.common.seeds import torch_draws
from florilegium.models.blocks import body_and_classifier
from florilegium.models.parameters import Arrays


class Conditioned(nn.Module):
    """A network whose features depend on a condition; the base of the kinds below.

    Args:
        network: its last block is the classifier; the others are the body.
        condition: (d,); not trained.
    """

    kind: ClassVar[str]
    """Name under which a saved model is read again."""
    condition: Tensor
    head: nn.Module

    def __init__(self, network: nn.Sequential, condition: Tensor) -> None:
        super().__init__()
        self.body, self.head = body_and_classifier(network)
        self.register_buffer("condition", condition)

    @classmethod
    @abstractmethod
    def fitting(cls, network: nn.Sequential, arrays: Arrays) -> Self:
        """Return a network of this kind for saved ``arrays``, whose values are not set."""

    def features(self, x: Tensor) -> Tensor:
        """Return h, (n, d), for inputs (n, …)."""
        h: Tensor = self.body(x)
        return h.flatten(1)

    @abstractmethod
    def classify(self, h: Tensor) -> Tensor:
        """Return logits (n, C) for features (n, d)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, C) for inputs (n, …)."""
        return self.classify(self.features(x))


class Policy(nn.Module):
    """FedCP's conditional policy network: decides for each feature of an example what share of it is personal.

    A dense layer d → 2d, layer normalisation and ReLU give two numbers for each feature; r is their softmax.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 2 * features), nn.LayerNorm(2 * features), nn.ReLU())

    def forward(self, inputs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return r, (n, d), 0..1, for inputs (n, d).

        ``noise``, (n, d), is added to the difference of the two numbers; logistic noise gives a Gumbel softmax.
        """
        personal, shared = self.layers(inputs).chunk(2, dim=1)
        difference = personal - shared
        return torch.sigmoid(difference if noise is None else difference + noise)


class Separated(Conditioned):
    """FedCP's model: the policy's share r of the features goes to the personal head, the rest to the frozen shared one.

    Args:
        network: body and, at this moment, the shared head, which is copied; later its head is the personal one.
        policy: the policy network.
        condition: the personal head's part in the policy's input (:meth:`follow`).
    """

    kind = "separated"

    def __init__(self, network: nn.Sequential, policy: Policy, condition: Tensor) -> None:
        super().__init__(network, condition)
        self.policy = policy
        self.shared = copy.deepcopy(self.head).requires_grad_(False)

    @classmethod
    def fitting(cls, network: nn.Sequential, arrays: Arrays) -> Self:
        """Return a network of this kind for saved ``arrays``, whose values are not set."""
        d = arrays["condition"].size
        return cls(network, Policy(d), torch.zeros(d))

    @torch.no_grad()
    def follow(self) -> None:
        """Set the condition to v/‖v‖, where v is the sum over classes of the personal head's weights."""
        weight = next(parameter for parameter in self.head.parameters() if parameter.ndim == 2)
        self.condition.copy_(normalize(weight.sum(dim=0), dim=0))

    def classify(self, h: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return logits (n, C) for features (n, d); ``noise`` is that of the policy."""
        r = self.policy(self.condition * h, noise)
        logits: Tensor = self.head(r * h) + self.shared((1 - r) * h)
        return logits


class Valve(nn.Module):
    """GPFL's conditional valve: an affine function of the features, made from a condition, then ReLU.

    Scale γ and shift β are each a dense layer d → d of the condition with ReLU and layer normalisation.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale, self.shift = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features)) for _ in range(2)
        )

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        """Return ReLU((1 + γ)·h + β), (n, d), for features (n, d) and a condition (d,)."""
        return torch.relu((1 + self.scale(condition)) * h + self.shift(condition))


class Guidance(nn.Module):
    """What GPFL's clients share beside the body: an embedding for each class, and the valve."""

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(torch.randn(classes, features))
        self.valve = Valve(features)


class Nearest(nn.Module):
    """Classifies features by the cosine of their angle with each class's embedding.

    Args:
        embeddings: (C, d).
    """

    def __init__(self, embeddings: Tensor) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, f: Tensor) -> Tensor:
        """Return cosines (n, C) for features (n, d)."""
        return linear(normalize(f, dim=1), normalize(self.embeddings, dim=1))


class Guided(Conditioned):
    """GPFL's model: the valve's features for a condition, and a head.

    Args:
        network: body and head.
        valve: the valve.
        condition: (d,).
        nearest: classifies in place of the network's head.
    """

    kind = "guided"

    def __init__(self, network: nn.Sequential, valve: Valve, condition: Tensor, nearest: Nearest | None = None) -> None:
        super().__init__(network, condition)
        self.valve = valve
        if nearest is not None:
            self.head = nearest

    @classmethod
    def fitting(cls, network: nn.Sequential, arrays: Arrays) -> Self:
        """Return a network of this kind for saved ``arrays``, whose values are not set."""
        d, embeddings = arrays["condition"].size, arrays.get("head.embeddings")
        nearest = None if embeddings is None else Nearest(nn.Parameter(torch.zeros(embeddings.shape)))
        return cls(network, Valve(d), torch.zeros(d), nearest)

    def classify(self, h: Tensor) -> Tensor:
        """Return logits (n, C) for features (n, d)."""
        logits: Tensor = self.head(self.valve(h, self.condition))
        return logits


KINDS: Mapping[str, type[Conditioned]] = {kind.kind: kind for kind in (Separated, Guided)}
"""Conditioned networks by the name under which they are saved."""


def build_policy(features: int, seed: int) -> Policy:
    """Return a policy network for d ``features``, initialised from ``seed``."""
    with torch_draws(seed, "policy"):
        return Policy(features)


def build_guidance(classes: int, features: int, seed: int) -> Guidance:
    """Return embeddings, drawn from a standard normal, and a valve, both initialised from ``seed``."""
    with torch_draws(seed, "guidance"):
        return Guidance(classes, features)
