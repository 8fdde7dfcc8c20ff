"""Own priors, client side: a client trains and predicts with logits that are moved by its own class prior.

A client with the class prior π_k minimises the cross-entropy of f(x) + ln π_k + ln C, with which f learns what tells
classes apart where all are equally frequent, and predicts with the same logits. The term is added to the last layer's
bias before a training and taken away after it, so that what is averaged, generated or kept has no prior in it; only the
model that the client is tested with has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.training import Correction, GradientHook, features
from florilegium.clients.hyper.classwise import OwnPriorHyper
from florilegium.models.blocks import body_and_classifier
from florilegium.models.priors import estimated, shift, smoothed
from florilegium.tasks.task import CLASSES


class OwnPriorClient(BaseClient):
    """Moves logits by the logarithm of the client's class prior, in training and in what it is tested with."""

    needs = frozenset({CLASSES})
    needs_blocks = True
    needs_bias = True
    hyper: OwnPriorHyper
    model: nn.Sequential

    @property
    def adjusts(self) -> bool:
        """Whether the training of this phase is one with the client's prior."""
        return True

    @property
    def counts_labels(self) -> bool:
        """Whether the client counts its labels in this phase; otherwise its class prior is estimated from inputs."""
        return self.data.labeled

    def descend(self, *purpose: str, **training: Any) -> float:
        """Train with the client's prior in the last layer's bias, and take it out again."""
        if not self.adjusts:
            return super().descend(*purpose, **training)
        network = training.get("model") or self.model
        training["gradient_hook"] = self._moved(network, training.get("gradient_hook"))
        self._move(network, 1.0)
        try:
            return super().descend(*purpose, **training)
        finally:
            self._move(network, -1.0)

    def personalise(self) -> bool:
        """Make the personal model as the method does, and move it to the client's class prior."""
        super().personalise()
        self._move(self.model, 1.0)
        return True

    # --------------------------------------------------------------------------------------- details

    def _moved(self, network: nn.Module, hook: GradientHook | None) -> GradientHook | None:
        """Return a gradient hook whose anchor of the moved bias, if it has anchors, is moved, too."""
        if not isinstance(hook, Correction) or not hook.anchors:
            return hook
        bias, term = self._bias(network), self._term()
        pairs = zip(hook.anchors, network.parameters(), strict=True)
        return replace(hook, anchors=[w + term.to(w) if own is bias else w for w, own in pairs])

    @torch.no_grad()
    def _move(self, network: nn.Module, sign: float) -> None:
        """Add what the client's class prior adds to logits to the last layer's bias, or take it away (−1)."""
        bias = self._bias(network)
        bias.add_(self._term().to(bias), alpha=sign)

    @staticmethod
    def _bias(network: nn.Module) -> Tensor:
        _, head = body_and_classifier(cast(nn.Sequential, network))
        return next(parameter for parameter in head.parameters() if parameter.dim() == 1)  # it has been checked

    def _term(self) -> Tensor:
        return shift(self._prior(), self._federation)

    @property
    def _federation(self) -> NDArray[np.float64]:
        """The class prior of what is averaged, (C,)."""
        return np.full(self._classes, 1 / self._classes)

    @property
    def _classes(self) -> int:
        return self.task.outputs[0]

    def _counts(self) -> Tensor:
        return torch.bincount(self.data.train.y, minlength=self._classes)

    def _prior(self) -> NDArray[np.float64]:
        """Return the client's class prior π_k, (C,)."""
        if self.counts_labels:
            return smoothed(self._counts(), self._federation, self.hyper.smoothing)
        return estimated(features(self.model, self.data.train), self._federation, self.hyper.iterations)
