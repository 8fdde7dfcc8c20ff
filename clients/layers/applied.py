"""The layers that a host applies to a request, in their order."""

from __future__ import annotations

from florilegium.clients.core.base import Answer
from florilegium.clients.core.gather import Gathered, Gathers
from florilegium.clients.core.reduce import UPDATES, Reduction
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Request
from florilegium.clients.layers.bound import Bound
from florilegium.clients.layers.compression import Compression
from florilegium.clients.layers.layer import Layer, Place
from florilegium.clients.layers.noise import Noise
from florilegium.clients.layers.secure import Secure
from florilegium.models.parameters import Arrays, num_bytes

LAYERS: tuple[type[Layer], ...] = (Bound, Noise, Compression, Secure)
"""In the order in which they see an update; the server undoes them in reverse."""


class Applied:
    """The layers that a request concerns, applied to what each of its clients returns.

    Args:
        request: the request.
        place: where it is carried out.

    Attributes:
        changes: whether updates leave the host, as layers have changed them, rather than what clients return.

    Raises:
        RunError: if the request lacks what a layer needs.
    """

    def __init__(self, request: Request, place: Place) -> None:
        self._request, self._settings = request, place.settings
        self._layers = [layer for kind in LAYERS if (layer := kind.opened(request, place)) is not None]
        self._changing = [layer for layer in self._layers if layer.changes and request.reduce in UPDATES]
        self._reduction = Reduction(request.reduce, request.arrays)
        self.changes = bool(self._changing)

    def gathered(self) -> Gathers:
        """Return what gathers the clients' results into a reply."""
        gathered: Gathers = Gathered(self._settings, self._reduction, self._request.work.heaviest)
        for layer in self._layers:
            gathered = layer.gather(gathered)
        return gathered

    def check(self, answer: Answer) -> float | None:
        """Check what a client returns; return the Euclidean norm of its update, None if it returns none.

        Raises:
            RunError: if it must not leave the host.
        """
        length = self._reduction.check(answer.arrays)
        for layer in self._layers:
            layer.check(self._request, answer, length)
        return length

    def leaving(self, index: int, answer: Answer, state: ClientState) -> tuple[Arrays, int]:
        """Return what leaves the host of a client's arrays, and its bytes.

        Args:
            index: place of the client in the request.
            answer: what the client returned.
            state: its durable state.
        """
        arrays, size = answer.arrays, num_bytes(answer.arrays)
        if self.changes:
            arrays = self._reduction.change(arrays)
        for layer in self._changing:
            arrays = layer.change(index, arrays, state)
            size = num_bytes(arrays) if layer.encodes else size
        return arrays, size
