"""Run several clients in turns, so that work for which several of them wait is done for all of them at once.

Each client runs in a coroutine. Where it reaches work that is :func:`offered`, such as local training, it is suspended
until all other clients wait or have finished. Requests that are alike are then carried out together, and each client
goes on with its own result. What clients of a process share, above all the network's contents, is replaced at every
switch, so that a client's code runs as if it were alone.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from florilegium.common.seeds import draw_states, set_draw_states

log = logging.getLogger("flwr")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Parts:
    """The modules and tensors of a network, found once, since going through a network takes long.

    Args:
        network: the network.
        known: tensors that another object of this class has; they are not repeated.
    """

    def __init__(self, network: nn.Module, known: Sequence[Tensor] = ()) -> None:
        self.modules = list(network.modules())
        ids = {id(tensor) for tensor in known}
        self.parameters, self.buffers = list(network.parameters()), list(network.buffers())
        self.tensors = [tensor for tensor in (*self.parameters, *self.buffers) if id(tensor) not in ids]

    def set_mode(self, modes: Sequence[bool]) -> None:
        """Set the training mode of each module."""
        for module, mode in zip(self.modules, modes, strict=True):
            vars(module)["training"] = mode  # what setting the attribute does, without nn.Module's checks


class Shared:
    """What clients of a process share, as it is now: contents, modes and flags of networks, generators, gradient mode.

    Args:
        parts: the networks that the clients share.
    """

    def __init__(self, *parts: Parts) -> None:
        self._parts, self._tensors = parts, [tensor for part in parts for tensor in part.tensors]
        copies = [torch.empty_like(tensor, requires_grad=False) for tensor in self._tensors]
        _copy(self._tensors, copies)
        self._copies = dict(zip(map(id, self._tensors), copies, strict=True))
        self._modes = [[module.training for module in part.modules] for part in parts]
        self._trainable = [tensor.requires_grad for tensor in self._tensors]
        self._draws, self._with_gradients = draw_states(), torch.is_grad_enabled()

    @property
    def parameters(self) -> list[Tensor]:
        """The contents of the last network's parameters, which :meth:`load` copies back; it can be assigned others."""
        return [self._copies[id(parameter)] for parameter in self._parts[-1].parameters]

    @parameters.setter
    def parameters(self, contents: Sequence[Tensor]) -> None:
        self._copies |= zip(map(id, self._parts[-1].parameters), contents, strict=True)

    @property
    def buffers(self) -> list[Tensor]:
        """The contents of the last network's buffers, in the same way."""
        return [self._copies[id(buffer)] for buffer in self._parts[-1].buffers]

    @buffers.setter
    def buffers(self, contents: Sequence[Tensor]) -> None:
        self._copies |= zip(map(id, self._parts[-1].buffers), contents, strict=True)

    def load(self) -> None:
        """Copy the contents back into the networks."""
        _copy([*self._copies.values()], self._tensors)

    def restore(self) -> None:
        """Make everything but the contents as it was."""
        for part, modes in zip(self._parts, self._modes, strict=True):
            part.set_mode(modes)
        for tensor, flag in zip(self._tensors, self._trainable, strict=True):
            if tensor.requires_grad != flag:
                tensor.requires_grad_(flag)
        set_draw_states(self._draws)
        torch.set_grad_enabled(self._with_gradients)


@torch.no_grad()
def _copy(contents: list[Tensor], tensors: list[Tensor]) -> None:
    """Copy contents into tensors; on a GPU this is one operation."""
    if tensors:
        torch._foreach_copy_(tensors, contents)


class Request(ABC):
    """Work that a client waits for.

    Attributes:
        network: the network that it uses and may change.
        key: requests of a class with equal keys can be carried out together.
        trains: whether the work leaves the network in training mode, or in evaluation mode.
    """

    network: nn.Module
    key: Hashable
    trains: ClassVar[bool]

    @classmethod
    @abstractmethod
    def carry_out(cls, waiting: Sequence[Waiting]) -> Sequence[Any]:
        """Carry out at least two requests with equal keys; return the result of each.

        If it raises an exception, it must have changed nothing: each client then works alone.
        """


@dataclass(frozen=True)
class Waiting:
    """A suspended client: its request, and what it left in the objects that all clients share."""

    request: Any
    shared: Shared
    """Its last network is the request's; the client goes on with the contents that are assigned to its parameters."""


class _Finished:
    """The result of a client's task; the coroutine, which lives on, must not keep it."""

    def __init__(self, result: Any) -> None:
        self._result = [result]

    def take(self) -> Any:
        """Return the result and forget it."""
        return self._result.pop()


Turn = tuple[greenlet, tuple[Any, ...]]


class Company:
    """Runs clients in turns.

    Args:
        network: the network that all of them share.
        kinds: the work that is carried out together: for each name of an offered function, what returns the request
            that a call stands for, or None if it must be done alone.
    """

    def __init__(self, network: nn.Module, kinds: Mapping[str, Callable[..., Request | None]]) -> None:
        self.network, self._parts, self._kinds = network, Parts(network), kinds
        self._main = getcurrent()
        self._failed: set[tuple[type[Request], type[Exception]]] = set()  # what there was a warning of
        self._idle: list[greenlet] = []  # coroutines of earlier clients, since making new ones takes long

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Return the result of each task, or the exception that it raised."""
        if self._main is not getcurrent():
            self._main, self._idle = getcurrent(), []
        before = Shared(self._parts)
        results: dict[greenlet, T | Exception] = {}
        clients = [self._idle.pop() if self._idle else _coroutine() for _ in tasks]
        turns: list[Turn] = [(client, (self, task, before)) for client, task in zip(clients, tasks, strict=True)]
        while turns:
            waiting: dict[greenlet, Waiting] = {}
            for client, given in turns:
                outcome = client.switch(*given)
                if isinstance(outcome, _Finished):
                    results[client] = outcome.take()
                else:
                    waiting[client] = outcome
            before.restore()
            turns = self._next(waiting)
        self._idle += clients
        return [results[client] for client in clients]

    def offer(self, work: Callable[..., R], args: Any, kwargs: Any) -> R:
        """Suspend the calling client until no other can go on; return its result of ``work``."""
        request = self._kinds[work.__name__](*args, **kwargs)
        if request is None:
            return work(*args, **kwargs)
        own, network = self._parts, request.network
        parts = [own] if network is self.network else [own, Parts(network, own.tensors)]
        parts[-1].set_mode([request.trains] * len(parts[-1].modules))
        shared = Shared(*parts)
        result = self._main.switch(Waiting(request, shared))
        shared.load()
        shared.restore()
        return work(*args, **kwargs) if result is _ALONE else result

    def _next(self, waiting: Mapping[greenlet, Waiting]) -> list[Turn]:
        """Carry out what clients wait for; return the clients, each with its result."""
        alike: dict[tuple[type[Request], Hashable], list[greenlet]] = {}
        for client, one in waiting.items():
            alike.setdefault((type(one.request), one.request.key), []).append(client)
        results: dict[greenlet, Any] = {}
        for (kind, _), clients in alike.items():
            if len(clients) == 1:
                results[clients[0]] = _ALONE
                continue
            try:
                found = kind.carry_out([waiting[client] for client in clients])
                results.update(zip(clients, found, strict=True))
            except Exception as error:  # of one client, perhaps: each works alone, and fails or succeeds alone
                self._warn(kind, error)
                results.update(dict.fromkeys(clients, _ALONE))
        return [(client, (results[client],)) for client in waiting]

    def _warn(self, kind: type[Request], error: Exception) -> None:
        """Say once for each kind of work and of error that clients work alone, and why."""
        if (reason := (kind, type(error))) not in self._failed:
            self._failed.add(reason)
            log.warning(
                "vectorise: clients do this one at a time, since together it has failed (%s): %s: %s",
                kind.__name__, type(error).__name__, error,
            )  # fmt: skip


_ALONE = object()
"""What a client is given that has to work alone: no other waits for the same, or the work together has failed."""
_COMPANY: ContextVar[Company | None] = ContextVar("company", default=None)


def _coroutine() -> greenlet:
    """Return a coroutine that carries out the tasks that it is switched to, and refers to nothing while it is idle."""

    def serve() -> None:
        main, finished = getcurrent().parent, None
        while True:
            company, task, before = main.switch(finished)
            token = _COMPANY.set(company)  # a coroutine has a context of its own
            before.restore()
            finished = _Finished(result_of(task))
            _COMPANY.reset(token)
            del company, task, before, token

    made = greenlet(serve)
    made.switch()
    return made


def result_of(task: Callable[[], T]) -> T | Exception:
    """Return the result of a task, or the exception that it raised."""
    try:
        return task()
    except Exception as error:
        return error


def offered(work: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that clients may carry out together, if they run in a :class:`Company`."""

    @wraps(work)
    def offer(*args: P.args, **kwargs: P.kwargs) -> R:
        company = _COMPANY.get()
        return work(*args, **kwargs) if company is None else company.offer(work, args, kwargs)

    return offer
