"""Which layers go with a method, and why others do not: the one table for checks, documentation and lists.

A layer is what a run may put around a method's exchanges. Each derives from what the method's classes state whether it
applies (:mod:`florilegium.strategies.layers`, :mod:`florilegium.clients.layers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from florilegium.apps.methods.declaration import Method
from florilegium.clients.core.training_facts import Training
from florilegium.clients.layers import examples, stacked
from florilegium.common.declarations import gap
from florilegium.common.settings import Section
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.layers import buffered, compression, noise, robust, secure, transfer

_OF_MESSAGES: Mapping[str, Callable[[Messages], str]] = {
    "protects clients": noise.gap,
    "secure aggregation": secure.gap,
    "compressed updates": compression.gap,
    "robust aggregation": robust.gap,
    "buffered rounds": buffered.gap,
    "transfers to other data": transfer.gap,
}
_OF_TRAINING: Mapping[str, Callable[[Training], str]] = {
    "protects examples": examples.gap,
    "vectorised": stacked.gap,
}
LAYERS = (*_OF_MESSAGES, *_OF_TRAINING)
"""The layers' names, as they stand in tables."""


def why_not(method: Method, layer: str, hyper: Section | None = None) -> str:
    """Return why a layer does not go with a method, "" if it does.

    Args:
        method: the method.
        layer: one of :data:`LAYERS`.
        hyper: the method's hyper-parameters; None: its defaults.
    """
    hyper = method.hyper()() if hyper is None else hyper
    if layer in _OF_TRAINING:
        return gap(method.client_class(), Training, _OF_TRAINING[layer], hyper)
    return gap(method.strategy_class(), Messages, _OF_MESSAGES[layer], hyper)
