"""Checks of a run's configuration that need no PyTorch, and so are made before its import, which takes seconds."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from florilegium.apps.settings.configuration import parse
from florilegium.apps.trackers.registry import check_tracker
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import PARAMETER_FILES, Value, folder
from florilegium.partitions.loading import check_local, dataset_of
from florilegium.partitions.settings import check_classes, class_range
from florilegium.strategies.exchange.traces import read_traces
from florilegium.strategies.folder.run_folder import find_initial
from florilegium.strategies.settings.checks import (
    check_buffered,
    check_client_privacy,
    check_compression,
    check_secure_aggregation,
)
from florilegium.strategies.settings.fleet import ALWAYS, DIURNAL


def check_early(config: Mapping[str, Value]) -> None:
    """Check a complete configuration: values, files that it names, the tracker, the metrics port, a private run.

    Raises:
        ConfigurationError, DataError: as the run itself would.
    """
    settings, hyper = parse(config)
    hyper.check_with(settings)
    dataset = dataset_of(settings)
    check_local(settings)
    strata = dataset.learned.num_strata
    if settings.partitioner == "classes" and strata:
        check_classes(class_range(settings.classes_per_client)[1], strata)
    if settings.init.endswith(PARAMETER_FILES):
        if not Path(folder(settings.init)).is_file():
            raise ConfigurationError(f"init: there is no file {folder(settings.init)}")
    elif settings.init:
        find_initial(settings.init, settings.seed, settings.runs_dir)
    if settings.privacy.unit == "client":
        check_client_privacy(settings, "")
    if settings.secure_aggregation:
        check_secure_aggregation(settings, "", "not known before the method is imported")
    if settings.mode == "buffered":
        check_buffered(settings, "")
    check_compression(settings, "")
    if settings.fleet.availability not in (ALWAYS, DIURNAL):
        read_traces(Path(folder(settings.fleet.availability)))
    check_tracker(settings.tracker)
    if settings.metrics_port:
        check_port(settings.metrics_port)


def check_port(port: int) -> None:
    """Raise :class:`ConfigurationError` if the key ``metrics-port`` names a port that cannot be used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does, after an earlier run
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigurationError(
                f"metrics-port: {port} cannot be used on this machine ({error.strerror}); choose another, or 0"
            ) from error
