"""Which layers go with a method, and why others do not: the one table for checks, documentation and lists.

A layer is what a run may put around a method's exchanges. Each derives from what the method's classes state whether it
applies (:mod:`florilegium.strategies.layers`, :mod:`florilegium.clients.layers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from florilegium.apps.methods.declaration import Method
from florilegium.clients.core.training_facts import Training
from florilegium.common.declarations import gap
from florilegium.common.settings import Section
from florilegium.strategies.exchange.messages import Messages

LAYERS: Mapping[str, str] = {
    "protects clients": "strategies.layers.noise",
    "protects examples": "clients.layers.examples",
    "secure aggregation": "strategies.layers.secure",
    "compressed updates": "strategies.layers.compression",
    "robust aggregation": "strategies.layers.robust",
    "buffered rounds": "strategies.layers.buffered",
    "vectorised": "clients.layers.stacked",
    "transfers to other data": "strategies.layers.transfer",
}
"""The module of each layer, by the layer's name in tables. Imported when asked: client processes need few of them."""


def why_not(method: Method, layer: str, hyper: Section | None = None) -> str:
    """Return why a layer does not go with a method, "" if it does.

    Args:
        method: the method.
        layer: one of :data:`LAYERS`.
        hyper: the method's hyper-parameters; None: its defaults.
    """
    hyper = method.hyper()() if hyper is None else hyper
    derive = import_module(f"florilegium.{LAYERS[layer]}").gap
    if LAYERS[layer].startswith("clients."):
        return gap(method.client_class(), Training, derive, hyper)
    return gap(method.strategy_class(), Messages, derive, hyper)
