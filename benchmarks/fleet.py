"""Cost of the virtual clock, and memory of buffered rounds, with 1,000 busy clients of a large fleet; no training."""

from __future__ import annotations

import time
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from florilegium.apps.settings.configuration import defaults, parse
from florilegium.clients.core.base import BaseClient
from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import NoHyper, Value
from florilegium.strategies.core.buffer import Buffer
from florilegium.strategies.core.federation import Federation, Setup
from florilegium.strategies.exchange.clock import Clock, Load
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.roster import Member
from florilegium.strategies.settings.server import ServerSettings

BUSY, FLEET, STEPS = 1_000, 100_000, 20
LOAD = Load("train", 480_000, 480_000)
"""Training of a model with 120,000 parameters."""


def _settings() -> ServerSettings:
    keys: dict[str, Value] = {
        "cohort-size": BUSY,
        "mode": "buffered",
        "buffer.size": 100,
        "fleet.speed": 50.0,
        "fleet.upload": 2.0,
    }
    return parse({**defaults(), **keys, "fleet.availability": "diurnal"})[0]


def clock_seconds() -> float:
    """Return the median seconds of all that the clock does in a round: draw 1,000 of 100,000 clients, wait for them."""
    clients, seconds = [str(i) for i in range(FLEET)], []
    for repeat in range(9):
        clock = Clock(_settings())  # remembers no device
        begun = time.perf_counter()
        drawn = clock.draw(clients, BUSY, numpy_generator(repeat, "benchmark"))
        clock.wait((clock.jobs([Member(clients[i], 60, 0) for i in drawn], [1], LOAD), BUSY))
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds))


def held_bytes(fleet: int) -> int:
    """Return the bytes that clock and buffer hold after twenty server steps of a fleet with so many clients."""
    settings = _settings()
    names = [str(i) for i in range(fleet)]
    members = {name: Member(name, 60, 0) for name in names}
    roster: Any = SimpleNamespace(clients=members, deployed=False)
    method: Any = SimpleNamespace(trainable=lambda: names, is_final=lambda number: False)
    setup = Setup(settings, NoHyper(), BaseClient, roster, cast(Any, None))
    tracemalloc.start()
    try:
        buffer = Buffer(Federation(setup, method))
        for number in range(1, STEPS + 1):
            nothing: Any = SimpleNamespace(
                number=number, load=lambda phase, sent: LOAD,
                skip=lambda phase, reasons: None, require=lambda outcome, asked: outcome,
                ask=lambda *arguments, **options: Outcome([], {}, {}),
            )  # fmt: skip
            buffer.step(nothing, {}, lambda round, clients: {})
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
