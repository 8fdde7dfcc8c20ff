"""The gradients of single examples in a layer, as products of what it received and of the gradients of its outputs.

Bu et al. 2023, "Differentially private optimization on large model at small cost": norms and clipped sums follow from
both, and the gradient of each example is computed only where that takes fewer numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_TINY = 1e-6
"""Added to norms before the division by them, as Opacus does."""


@dataclass(frozen=True)
class ExampleGradients:
    """The gradients of a layer for b examples: Σ_t g_t·a_tᵀ for the weight, Σ_t g_t for the bias.

    A position t is one of an image's patches, of a sequence's entries, or of several calls. Leading axes, such as one
    of clients, are what all arrays may have.

    Attributes:
        received: a, the layer's inputs (…, b, T, k).
        returned: g, the gradients of its outputs (…, b, T, o).
        weight, bias: whether the layer's weight (o, k) and bias (o,) are trained.
    """

    received: Tensor
    returned: Tensor
    weight: bool
    bias: bool

    def only(self, usable: Tensor) -> ExampleGradients:
        """Return the same with those of examples that are not ``usable`` (…, b) set to zero: 0·∞ is no number."""
        kept = usable[..., None, None]
        received, returned = (torch.where(kept, part, 0.0) for part in (self.received, self.returned))
        return ExampleGradients(received, returned, self.weight, self.bias)

    @cached_property
    def _each(self) -> Tensor | None:
        """The weight's gradients (…, b, o, k); None if inner products of positions are fewer numbers."""
        positions, inputs, outputs = *self.received.shape[-2:], self.returned.shape[-1]
        return None if 2 * positions**2 < inputs * outputs else self.returned.mT @ self.received

    def norms(self) -> list[Tensor]:
        """Return the norms of the gradients of each trained parameter, (…, b) each."""
        norms = []
        if self.weight and (each := self._each) is not None:
            norms.append(each.flatten(-2).norm(dim=-1))
        elif self.weight and self.received.shape[-2] == 1:
            norms.append(self.received.flatten(-2).norm(dim=-1) * self.returned.flatten(-2).norm(dim=-1))
        elif self.weight:
            products = [a @ a.mT for a in (self.received, self.returned)]
            # Rounding can make a sum of products that cancel out negative.
            norms.append((products[0] * products[1]).flatten(-2).sum(dim=-1).clamp(min=0.0).sqrt())
        if self.bias:
            norms.append(self.returned.sum(dim=-2).norm(dim=-1))
        return norms

    def sums(self, factors: Tensor) -> list[Tensor]:
        """Return Σ f·gradient over the examples for each trained parameter, (…, o, k) and (…, o).

        Args:
            factors: f of each example, (…, b).
        """
        sums = []
        if self.weight and (each := self._each) is not None:
            sums.append((factors[..., None, :] @ each.flatten(-2)).view(*factors.shape[:-1], *each.shape[-2:]))
        elif self.weight:
            scaled = self.returned * factors[..., None, None]
            sums.append(scaled.flatten(-3, -2).mT @ self.received.flatten(-3, -2))
        if self.bias:
            sums.append((factors[..., None, :] @ self.returned.sum(dim=-2)).squeeze(-2))
        return sums


def clipped(layers: list[ExampleGradients], longest: float) -> tuple[Tensor, list[list[Tensor]]]:
    """Return the norms of the examples' whole gradients (…, b), and for each layer the sums of the clipped ones.

    The gradient of an example that is not finite counts as zero.

    Args:
        layers: the gradients in each layer.
        longest: the norm C > 0 to which they are clipped.
    """
    norms = torch.stack([norm for layer in layers for norm in layer.norms()]).norm(dim=0)
    usable = norms.isfinite()
    if not usable.all():
        layers = [layer.only(usable) for layer in layers]
    factors = torch.where(usable, (longest / (norms + _TINY)).clamp(max=1.0), 0.0)
    return norms, [layer.sums(factors) for layer in layers]
