"""The layers that a run applies to its exchanges, in their order."""

from __future__ import annotations

from florilegium.strategies.layers.attacked import Attacked
from florilegium.strategies.layers.bound import Bound
from florilegium.strategies.layers.buffers import Buffers
from florilegium.strategies.layers.compression import Compression
from florilegium.strategies.layers.examples import Examples
from florilegium.strategies.layers.layer import Layer, Running
from florilegium.strategies.layers.noise import Noise
from florilegium.strategies.layers.robust import Robust
from florilegium.strategies.layers.secure import Secure

LAYERS: tuple[type[Layer], ...] = (Bound, Noise, Robust, Attacked, Buffers, Compression, Secure, Examples)
"""In the order in which they add to a request; what they do with replies is in reverse."""


def opened(running: Running) -> list[Layer]:
    """Return the layers that a run's settings ask for."""
    return [layer for kind in LAYERS if (layer := kind.opened(running)) is not None]
