"""The contract of a layer, client side: what one concern does with what clients return, before it leaves their host."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from florilegium.clients.core.base import Answer
from florilegium.clients.core.gather import Gathers
from florilegium.clients.core.own_files import OwnFiles
from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Request
from florilegium.models.parameters import Arrays


@dataclass(frozen=True)
class Place:
    """Where clients carry out requests.

    Attributes:
        settings: the run's configuration.
        deployed: whether the host is a real device's.
        files: returns where a client's own files are, for a request.
        reportable: names of all numbers that a client may report.
    """

    settings: ClientSettings
    deployed: bool
    files: Callable[[Request, str], OwnFiles]
    reportable: Sequence[str]


class Layer:
    """A layer, opened for one request; by default it does nothing.

    Attributes:
        changes: whether it changes updates; if so, :meth:`change` is called.
        encodes: whether :meth:`change` makes messages of other arrays, whose bytes are counted.
    """

    changes: ClassVar[bool] = False
    encodes: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def opened(cls, request: Request, place: Place) -> Self | None:
        """Return the layer for a request, None if the request does not concern it.

        Raises:
            RunError: if the request lacks what the layer needs.
        """

    def check(self, request: Request, answer: Answer, length: float | None) -> None:
        """Check what a client returns.

        Args:
            request: the request.
            answer: the client's arrays and numbers.
            length: Euclidean norm of its update; None if it returns no update.

        Raises:
            RunError: if it must not leave the host.
        """

    def change(self, index: int, update: Arrays, state: ClientState) -> Arrays:
        """Return what leaves the host in the place of an update.

        Args:
            index: place of the client in the request.
            update: the client's update in double precision, as the layers before have changed it.
            state: the client's durable state.
        """
        return update

    def gather(self, gathered: Gathers) -> Gathers:
        """Return what gathers the clients' results into a reply, in place of ``gathered``."""
        return gathered
