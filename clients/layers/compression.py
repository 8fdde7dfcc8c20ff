"""Compressed updates, client side: error feedback, compression, and the message.

With error feedback (Seide et al. 2014; Stich et al. 2018) a client compresses its update plus its residual, and keeps
what the message lacks as its new residual. It goes on from the residual of the last update that the server has used: a
lost reply leaves no trace.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.compression.scheme import COMPRESSED, Bytes, Reader, Scheme
from florilegium.clients.core.compression.schemes import scheme_of
from florilegium.clients.core.gather import Gathered, Gathers
from florilegium.clients.core.reduce import UPDATES
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Request
from florilegium.clients.layers.bound import bound
from florilegium.clients.layers.layer import Layer, Place
from florilegium.common.blocks import blocks, fill, squares
from florilegium.common.errors import RunError
from florilegium.common.seeds import numpy_generator
from florilegium.common.spool import zeros
from florilegium.models.parameters import Arrays, shapes_of


class Compression(Layer):
    """Compresses the updates of the clients of a request.

    Args:
        scheme: the compression scheme.
        request: the request.
        seed: seed of the run.
        longest: largest Euclidean norm allowed for an update, also after compression; 0: no limit.
        feeds_back: whether clients keep residuals.
    """

    changes: ClassVar[bool] = True
    encodes: ClassVar[bool] = True

    def __init__(self, scheme: Scheme, request: Request, seed: int, longest: float, *, feeds_back: bool) -> None:
        self._scheme, self._request, self._seed, self._longest = scheme, request, seed, longest
        self._feeds_back = feeds_back
        if feeds_back and len(request.used) != len(request.clients):
            raise RunError("the request does not say which updates of its clients the server has used")

    @classmethod
    def opened(cls, request: Request, place: Place) -> Self | None:
        """Return the layer if updates are asked for and are compressed."""
        s = place.settings
        scheme = scheme_of(s.compression)
        if scheme is None or request.reduce not in UPDATES:
            return None
        longest = bound(s, request.arrays, deployed=place.deployed)
        return cls(scheme, request, s.seed, longest, feeds_back=s.compression.feeds_back)

    def gather(self, gathered: Gathers) -> Gathers:
        """Return what gathers messages: the server weights the updates that they stand for."""
        return gathered.of(Messages()) if isinstance(gathered, Gathered) else gathered

    def change(self, index: int, update: Arrays, state: ClientState) -> Arrays:
        """Return the message for the update of a client, and stage its new residual.

        Raises:
            RunError: if the message stands for too long an update.
        """
        request, sent = self._request, self._request.arrays
        client, work = request.clients[index], request.work
        rng = numpy_generator(self._seed, "client", client, work.round, request.phase, "compression")
        if not self._feeds_back:
            message = self._scheme.compress(update, sent, rng)
            self._check(message)
            return {COMPRESSED: message}
        part = f"residual{request.phase}"
        state.confirm(part, request.used[index])
        residual = {  # without arrays that an earlier stage of the method has exchanged
            name: array for name, array in (state.load(part) or {}).items()
            if name in sent and array.shape == sent[name].shape
        }  # fmt: skip
        owed = self._like_sent(update)
        for name, array in owed.items():
            for to, new, kept in blocks(array, update[name], residual.get(name, np.broadcast_to(0.0, array.shape))):
                to[:] = new + kept
        message = self._scheme.compress(self._within(owed), sent, rng)
        for name, restored in self._scheme.restored(Reader(message), sent):
            for kept, told in blocks(owed[name], restored):
                kept -= told
        state.save(residual | owed, part)
        return {COMPRESSED: message}

    def _like_sent(self, update: Arrays) -> Arrays:
        """Return zeros in the shapes of an update, in the precision of the arrays that were sent."""
        return zeros(shapes_of(update), {name: self._request.arrays[name].dtype for name in update})

    def _within(self, owed: Arrays) -> Arrays:
        """Return an update scaled down to the norm that is allowed; what that takes away stays in the residual.

        What sparse and low-rank messages stand for is no longer than what they were made from.
        """
        if not self._longest:
            return owed
        double = (array.astype(np.float64) for array in owed.values())
        length = math.sqrt(sum(float(np.vdot(array, array)) for array in double))
        if length <= self._longest:
            return owed
        within = self._like_sent(owed)
        for name, array in owed.items():
            for to, kept in blocks(within[name], array):
                to[:] = kept.astype(np.float64) * (self._longest / length)
        return within

    def _check(self, message: Bytes) -> None:
        if self._longest:
            restored = self._scheme.restored(Reader(message), self._request.arrays)
            length = math.sqrt(sum(squares(array) for _, array in restored))
            if length > self._longest:
                raise RunError(
                    f"its quantised update has norm {length:.4g}, more than max-update-norm = {self._longest:g}; use "
                    "more compression.bits, or a larger max-update-norm"
                )


class Messages:
    """Combines the messages of a node's clients into one array."""

    def __init__(self) -> None:
        self._messages: list[NDArray[Any]] = []

    def add(self, arrays: Arrays, weight: float, *, changed: bool = False) -> None:
        """Add the message of one client; the server weights the update that it stands for."""
        self._messages.append(arrays[COMPRESSED])

    def result(self) -> Arrays:
        """Return the messages one after the other; empty if no client succeeded."""
        if not self._messages:
            return {}
        found = zeros({COMPRESSED: (sum(map(len, self._messages)),)}, np.uint8)
        fill(found[COMPRESSED], self._messages)
        return found
