"""Who attacks in a simulation (``attackers``): a number or share of clients, chosen by the seed, or named ones."""

from __future__ import annotations

from collections.abc import Mapping

from florilegium.common.errors import ConfigurationError, nearest
from florilegium.common.seeds import numpy_generator
from florilegium.strategies.layers.layer import Running
from florilegium.strategies.settings.server import ServerSettings

NONE = "none"
"""The attack of runs without any."""


def attackers_of(running: Running) -> frozenset[str]:
    """Return the clients of a run that attack; raise as :func:`chosen`."""
    if running.settings.attack == NONE:
        return frozenset()
    return frozenset(chosen(running.settings, {client: running.clients[client].name for client in running.trainable()}))


def chosen(settings: ServerSettings, trainable: Mapping[str, str]) -> list[str]:
    """Return the attackers.

    Args:
        settings: keys ``attackers`` and ``seed``.
        trainable: the clients that may train, with their names.

    Raises:
        ConfigurationError: if there are not so many, one is none of them, or nobody is left who is honest.
    """
    wanted = settings.attackers
    if isinstance(wanted, str):
        ids = {name: client for client, name in trainable.items() if name} | {client: client for client in trainable}
        for word in wanted.split(","):
            if word not in ids:
                raise ConfigurationError(f"attackers: no client that may train is called '{word}'{nearest(word, ids)}")
        found = list(dict.fromkeys(ids[word] for word in wanted.split(",")))
    else:
        count = round(wanted * len(trainable)) if isinstance(wanted, float) else wanted
        if count > len(trainable):
            raise ConfigurationError(f"attackers: {count} were asked for, and {len(trainable)} clients may train")
        if not count:
            raise ConfigurationError(
                f"attackers: a share of {wanted:g} of {len(trainable)} clients is nobody; raise it"
            )
        drawn = numpy_generator(settings.seed, "attackers").choice(len(trainable), count, replace=False)
        everyone = [*trainable]
        found = [everyone[place] for place in sorted(drawn)]
    if len(found) == len(trainable):
        raise ConfigurationError("attackers: all clients that may train would attack; leave some of them honest")
    return found
