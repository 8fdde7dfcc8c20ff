"""Checks of a run with the clients that are there, before its first round."""

from __future__ import annotations

from florilegium.common.errors import ConfigurationError
from florilegium.strategies.core.federation import Federation
from florilegium.strategies.core.hooks import Hooks


def check_ready(strategy: Hooks) -> None:
    """Check that the settings are possible with the present clients.

    Raises:
        ConfigurationError: if they are not.
    """
    federation = strategy.federation
    _check_training(federation)
    if strategy.models != "none":
        _check_evaluation(federation)
    if federation.roster.deployed:
        _check_devices(federation)
    if federation.settings.mode == "buffered":
        _check_buffer(federation)
    strategy.check_roster()
    for layer in federation.layers:
        layer.check(strategy.groups)


def _check_training(federation: Federation) -> None:
    s, clients = federation.settings, federation.clients
    trainable = len(federation.method.trainable())
    if s.rounds and not trainable:
        raise ConfigurationError(
            f"method '{s.method}' has nobody to train with: of {clients.described()}. Let clients with "
            "labels take part, or set rounds to 0"
        )
    if s.cohort_size > trainable:
        raise ConfigurationError(
            f"cohort-size: a cohort of {s.cohort_size} was asked for, but only {trainable} clients can "
            f"train, of {clients.described()}"
        )


def _check_evaluation(federation: Federation) -> None:
    measured = federation.settings.evaluate_on
    if not federation.roster.deployed and not federation.evaluated():
        remedy = "Give clients more rows, or test rows of their own"
        raise ConfigurationError(
            f"method '{federation.settings.method}' has nobody to evaluate: no client has a {measured} example, of "
            f"{federation.clients.described()}. {'Raise validation-fraction' if measured == 'validation' else remedy}"
        )


def _check_devices(federation: Federation) -> None:
    s = federation.settings
    if s.unseen_fraction or s.unseen_clients or s.labeled_fraction < 1:
        raise ConfigurationError(
            "unseen-fraction, labeled-fraction: these keys divide the clients of a simulation and do not apply to "
            "devices. Leave both out."
        )
    if s.fleet.on:
        raise ConfigurationError(
            "fleet: this table describes the devices of a simulation; real devices are what they are. Leave it out."
        )


def _check_buffer(federation: Federation) -> None:
    s, concurrency = federation.settings, federation.cohort_size(1)
    if not federation.roster.deployed and not s.fleet.timed:
        raise ConfigurationError(
            "mode: 'buffered' needs clients that take time; set fleet.speed, fleet.download or fleet.upload"
        )
    if s.buffer.size > concurrency:
        raise ConfigurationError(
            f"buffer.size: a server step cannot wait for {s.buffer.size} updates while {concurrency} clients "
            "are busy; lower it, or raise cohort-size or participation"
        )
