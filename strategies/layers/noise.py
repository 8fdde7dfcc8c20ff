"""Privacy of clients, server side (``privacy.unit = "client"``): bounded sums of updates with noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from florilegium.clients.core.network import network_for
from florilegium.clients.core.wire import CLIP_NORM, NOISE, WITHIN_NOISE, Request
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.models.parameters import Arrays, exchanged, is_statistic
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers.layer import Layer, Running
from florilegium.strategies.settings.server import ServerSettings

UNBOUNDED = {
    "sum": "",
    "parts": "each part is averaged over the clients that train it, and nothing bounds what one of few counts for",
    "groups": "each group of clients is averaged by itself, and nothing bounds what one of few counts for",
    "single": "the server uses the replies of single clients, and these are not bounded",
    "statistics": "clients send statistics, and nothing bounds them",
    "nothing": "clients learn alone, so that there is no sum of updates to protect",
}


def gap(messages: Messages) -> str:
    """Return why bounded sums of updates with noise do not protect clients, "" if they do."""
    chosen = f"its cohorts hold {messages.cohorts}, not by chance" if messages.cohorts else ""
    return messages.own_privacy or messages.beside or messages.individual or chosen or UNBOUNDED[messages.returns]


class Noise(Layer):
    """Samples clients, bounds their updates, adds noise to sums, and keeps the account (:class:`ClientPrivacy`).

    Attributes:
        protection: what does all this.
    """

    def __init__(self, running: Running) -> None:
        from florilegium.strategies.layers.client_privacy import ClientPrivacy  # dp-accounting takes seconds

        self._running = running
        self.protection = ClientPrivacy(running.settings, running.run)

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer if clients are protected."""
        return cls(running) if running.settings.privacy.unit == "client" else None

    def begin(self, first: Arrays, rounds: int, done: int) -> None:
        """Distribute the budget over all rounds.

        Raises:
            ConfigurationError: if it does not suffice for the next round, or a shared array is a buffer of the network.
        """
        running = self._running
        check_parameters(running.settings, first)
        cohorts = [running.cohort_size(r) for r in range(1, rounds + 1)]
        self.protection.plan(cohorts, len(running.trainable()))
        if done < rounds and self.spent(done + 1):
            raise ConfigurationError(
                f"privacy.epsilon: {running.settings.privacy.epsilon:g} does not suffice for round {done + 1}; "
                "start a new run with a larger budget"
            )

    def sample(self, clients: Sequence[str], size: int, server_round: int) -> list[str] | None:
        """Return a Poisson sample or the round's slot, unless cohorts have a fixed size."""
        if self._running.settings.privacy.sampling == "fixed":
            return None
        return self.protection.choose(clients, size / len(clients), server_round)

    def request(self, exchange: Exchange, request: Request) -> Request:
        """Return the request with the bound, and with the noise that clients add."""
        return replace(request, protection=self._told(exchange)) if exchange.updates else request

    def expect(self, exchange: Exchange, expected: Expected) -> Expected:
        """Return the checks with the bound, and with room for clients' noise."""
        if not exchange.updates:
            return expected
        told, clip = self._told(exchange), self.protection.clip_norm
        return replace(
            expected, longest=min(filter(None, (expected.longest, clip)), default=0.0), clip=clip,
            noise=told.get(NOISE, 0.0), within_noise=told.get(WITHIN_NOISE, 0.0), within=CLIP_NORM in told,
        )  # fmt: skip

    def settle(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Return the outcome with noise on its sums and the expected weight; record what that costs.

        Raises:
            RunError: if clients have returned other arrays than updates.
        """
        if not exchange.updates:
            if outcome.arrays:
                raise RunError(f"phase '{exchange.phase}' returns arrays that privacy.unit = 'client' cannot protect")
            return outcome
        members, size = len(self._running.trainable()), self._running.cohort_size(exchange.number)
        return self.protection.protect(
            outcome, size, members, exchange.send or {}, exchange.phase, exchange.number, exchange.cohort
        )

    def spent(self, server_round: int) -> str:
        """Return that the budget does not suffice for ``server_round``, "" if it does."""
        running = self._running
        rate = running.cohort_size(server_round) / len(running.trainable())
        return "privacy.epsilon is spent" if self.protection.spent(rate, server_round) else ""

    def facts(self) -> dict[str, Any]:
        """Return the bound and all releases, for checkpoints."""
        return {"clip_norm": self.protection.clip_norm, "releases": self.protection.ledger.history}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the bound and the releases; a checkpoint of version 0.1 has neither."""
        if "clip_norm" in facts:
            self.protection.clip_norm = facts["clip_norm"]
            self.protection.ledger.restore(facts.get("releases", []))

    def report(self) -> dict[str, Any]:
        """Return the block ``privacy``."""
        return self.protection.report()

    def _told(self, exchange: Exchange) -> dict[str, float]:
        return self.protection.request(self._running.cohort_size(exchange.number))


def check_parameters(settings: ServerSettings, shared: Arrays) -> None:
    """Check that the ``shared`` arrays are parameters.

    Raises:
        ConfigurationError: if a shared array is a buffer of the network: statistics, with noise, are none.
    """
    if statistics := [name for name in shared if is_statistic(name)]:
        raise ConfigurationError(
            f"model: with noise, the statistics of batch norm ('{statistics[0]}') are none; use a network without "
            "it, or method = 'fedbn'"
        )
    network = network_for(dataset_of(settings), settings, settings.seed)
    buffers = exchanged(network).keys() - dict(network.named_parameters()).keys()
    if noisy := [name for name in shared if name in buffers]:
        raise ConfigurationError(
            f"model: '{settings.model}' has the buffer '{noisy[0]}', which noise would change; register it with "
            "persistent=False if it is a constant"
        )
