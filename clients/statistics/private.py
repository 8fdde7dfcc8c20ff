"""Noise of statistics, and its cost: what clients add if the server is not to, and what their accounts are charged.

With ``noise = "server"`` the server adds noise to sums, which it sees exactly. With ``noise = "client"`` each client
adds the whole noise to its own sums before they leave, so that the guarantee holds against the server, and the sum over
K clients has √K times the noise. Either way a device's account of the run is charged before a release; what its owner
allows over all runs (``max-epsilon``) goes with a client's own noise alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.base import ACCOUNT, BaseClient
from florilegium.common.errors import BudgetSpentError
from florilegium.common.seeds import numpy_generator
from florilegium.privacy.ledger import SPENT, Ledger
from florilegium.privacy.noise import draw, secret_generator

Array = NDArray[np.float64]
_ROUNDING = 1e-3
"""Share by which ε of an account may exceed the budget: multipliers follow from it by a search."""


class PrivateHyper(Protocol):
    """The keys of a private method."""

    @property
    def privacy_unit(self) -> str: ...
    @property
    def noise(self) -> str: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...


def own_unit(hyper: PrivateHyper) -> str:
    """Return the unit that clients' own noise protects; "none" if they add none."""
    return hyper.privacy_unit if hyper.noise == "client" else "none"


def charge(client: BaseClient, hyper: PrivateHyper, multiplier: float, times: int) -> None:
    """Charge a device's accounts with releases before they are made; nothing in a simulation.

    Raises:
        BudgetSpentError: if the run's ε would be exceeded, or what the owner allows.
    """
    if client.data.simulated:
        return
    ledger = Ledger(client.state.own.file(ACCOUNT), hyper.delta)
    if ledger.epsilon((multiplier, 1.0, times)) > hyper.epsilon * (1 + _ROUNDING):
        raise BudgetSpentError(f"{SPENT}: ε = {hyper.epsilon:g} of this run")
    if client.allowance is not None:
        client.allowance.pay(multiplier, 1.0, times)
    ledger.add(multiplier, 1.0, times)


def noisy(client: BaseClient, hyper: PrivateHyper, name: str, array: Array, scale: float) -> Array:
    """Return an array with the client's own noise of this deviation, if it adds any; symmetric if the array is (d, d).

    Args:
        client: the client.
        hyper: the keys.
        name: what the array is, for the name of a simulated client's draw.
        array: what is to leave.
        scale: standard deviation.
    """
    if hyper.noise != "client":
        return array
    seed, round = client.settings.seed, client.round
    rng = (
        numpy_generator(seed, "client", client.client_id, round, "noise", name)
        if client.data.simulated else secret_generator()
    )  # fmt: skip
    return array + (symmetric if array.ndim == 2 else np.asarray)(draw(rng, "gaussian", scale, array.shape))


def symmetric(noise: Array) -> Array:
    """Return the upper triangle of noise mirrored: a symmetric matrix is released by its upper triangle."""
    result: Array = np.triu(noise) + np.triu(noise, 1).T
    return result
