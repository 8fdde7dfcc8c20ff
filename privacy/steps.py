"""What one local training by DP-SGD draws and how it is bounded, apart from the network that it trains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilegium.privacy.noise import secret_generator


@dataclass(frozen=True)
class PrivateSteps:
    """The steps of one local training by DP-SGD.

    Attributes:
        multiplier: noise multiplier z ≥ 0.
        clip_norm: clipping norm C > 0.
        rate: sampling rate q, the probability that an example takes part in a step.
        examples: number of training examples n.
        ghost: see :class:`florilegium.privacy.dp_sgd.PrivateGradients`.
    """

    multiplier: float
    clip_norm: float
    rate: float
    examples: int
    ghost: bool = False

    @property
    def expected(self) -> int:
        """The number of examples that a step has on average, by which sums of gradients are divided; at least 1."""
        return max(1, round(self.rate * self.examples))


class Draws:
    """The random numbers of one training.

    Anyone who knew the seed could subtract the noise: they come from the system's source. PyTorch's CPU generator has
    a seed of only 32 bits.

    Args:
        steps: the training.
    """

    def __init__(self, steps: PrivateSteps) -> None:
        self._rng = secret_generator()
        self._rate, self._examples = steps.rate, steps.examples
        self.deviation = steps.multiplier * steps.clip_norm / steps.expected
        """Standard deviation of the noise on a step's mean gradient."""

    def batch(self) -> NDArray[np.int64]:
        """Draw the examples that take part in the next step; return their rows, possibly none."""
        return (self._rng.random(self._examples) < self._rate).nonzero()[0]

    def noise(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Draw the noise on the mean gradient of a parameter."""
        return self._rng.standard_normal(shape, np.float32) * np.float32(self.deviation)
