"""The layers that a host applies to a request, in their order."""

from __future__ import annotations

from florilegium.clients.core.wire import Request
from florilegium.clients.layers.bound import Bound
from florilegium.clients.layers.compression import Compression
from florilegium.clients.layers.layer import Layer, Place
from florilegium.clients.layers.noise import Noise
from florilegium.clients.layers.secure import Secure

LAYERS: tuple[type[Layer], ...] = (Bound, Noise, Compression, Secure)
"""In the order in which they see an update; the server undoes them in reverse."""


def opened(request: Request, place: Place) -> list[Layer]:
    """Return the layers that a request concerns.

    Raises:
        RunError: if the request lacks what a layer needs.
    """
    return [layer for kind in LAYERS if (layer := kind.opened(request, place)) is not None]
