"""Assemble a run from its configuration: method, network, privacy checks, clients and strategy.

The ServerApp, the ClientApp, runs in one process and queries of finished runs all start here, so that they make the
same checks and build the same parts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from florilegium.apps.assembly.node_clients import SimulatedClients
from florilegium.apps.assembly.task_checks import arithmetic_gap, bucket_gap, check_task
from florilegium.apps.methods.declaration import Method
from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.origins.code import code_version
from florilegium.apps.origins.hashes import origins_of
from florilegium.apps.origins.packages import in_notebook, used_code, versions
from florilegium.apps.origins.provenance import provenance_of
from florilegium.apps.settings.configuration import Settings, defaults_of, parse
from florilegium.clients.core.augmentation import Augmentation, augmentation_of
from florilegium.clients.core.batch_orders import EACH_ROUND
from florilegium.clients.core.network import network_for
from florilegium.clients.core.settings import STORE
from florilegium.clients.core.worker import tune_process
from florilegium.clients.node.host import Host, Source
from florilegium.common.declarations import declared
from florilegium.common.errors import ConfigurationError, FileError, FlorilegiumError
from florilegium.common.memory import trim
from florilegium.common.settings import Section, Value
from florilegium.models.blocks import GUIDE, OneBlock, classifier_shape
from florilegium.models.dry_run import random_inputs
from florilegium.models.frozen import Frozen
from florilegium.models.mapped import map_frozen, map_trained
from florilegium.models.parameters import Arrays, arrays_of, buffers_of, parts_of, whole
from florilegium.partitions.clientdata import constant, validating
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.remarks import Remarks, remarks
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.settings.checks import (
    check_buffered,
    check_client_privacy,
    check_compression,
    check_example_privacy,
    check_secure_aggregation,
)

if TYPE_CHECKING:
    from florilegium.strategies.core.cohort import CohortStrategy
    from florilegium.strategies.exchange.roster import Member, Roster
    from florilegium.strategies.folder.run_folder import RunFolder, Watcher

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Assembly:
    """The parts of a run that its configuration determines, checked.

    Attributes:
        config: the complete run configuration, flat keys.
        settings, hyper: the configuration as typed models: common settings, and the method's hyper-parameters.
        method: the method's entry in the registry.
        network: the network, initialised from the run's seed. A host in this process trains it in place.
        whole: copies of all the network's initial arrays.
        frozen: those of them that training does not change.
        augmentation: random changes of the training images, or None.
        device: the torch device for the clients of this process.
        one_process: whether server and clients share this process, so that a notebook's own code can be used.
    """

    config: Mapping[str, Value]
    settings: Settings
    hyper: Section
    method: Method
    network: nn.Sequential
    whole: Arrays
    frozen: Frozen
    augmentation: Augmentation | None
    device: torch.device
    one_process: bool = False

    @property
    def code(self) -> str:
        """The hash of the package's code and of the code outside it that the run uses."""
        return code_of(self.config, one_process=self.one_process)

    @property
    def initial(self) -> Arrays:
        """The initial arrays that training changes."""
        return self.frozen.rest(self.whole)

    def origins(self, deployed: bool) -> dict[str, str]:
        """Return hashes of what the run is made from, on real devices or not (:func:`origins_of`)."""
        return origins_of(self.config, self.settings, deployed=deployed)

    def simulated_clients(self) -> SimulatedClients:
        """Return the clients of the simulated federation, all of which one node can run."""
        return SimulatedClients(self.settings, self.device)

    def host(self, source: Source, state_dir: str = "") -> Host:
        """Return the host that runs the clients of ``source`` in this process; ``state_dir``: see :class:`Host`."""
        client, network = self.method.client_class(), self.network.to(self.device)
        return Host(
            client, self.settings, self.hyper, network, source, state_dir, self.augmentation, self.frozen, self.initial
        )  # fmt: skip

    def said(self, deployed: bool) -> Remarks:
        """Return what the user should know of the network, and of simulated clients' data."""
        found = Remarks() if deployed else remarks(self.settings)
        told = [f"model: '{self.settings.model}' {one}" for one in _of_network(self.settings, self.network)]
        return replace(found, warnings=(*told, *found.warnings))

    def provenance(self, roster: Roster, *, engine: str) -> dict[str, Any]:
        """Return what carries the run out (:func:`provenance_of`)."""
        return provenance_of(self.settings, self.device, len(roster.nodes), deployed=roster.deployed, engine=engine)

    def strategy(self, run: RunFolder, *, engine: str = "process") -> CohortStrategy:
        """Return the run's strategy, which writes to the folder ``run``; log how a dataset's schema was inferred.

        Args:
            run: the folder.
            engine: what carries out the run: "process", "ray", or "flower" for a process of Flower's.

        Raises:
            ConfigurationError: if the method does not support the configuration.
        """
        from florilegium.strategies.core.federation import Setup  # not imported in client processes
        from florilegium.strategies.exchange.roster import Roster
        from florilegium.strategies.layers import attacked, bound, buffers, robust

        s, method, hyper = self.settings, self.method, self.hyper
        if s.data_from == STORE and engine != "ray":
            log.warning("data-from: no effect, read only on a cluster")
        if s.privacy.unit == "client":
            check_client_privacy(s, why_not(method, "protects clients", hyper))
        stated = declared(method.strategy_class(), Messages, hyper)
        unbounded = "" if stated is None else bound.gap(stated)
        bound.check(s, unbounded)
        if s.secure_aggregation:
            check_secure_aggregation(s, why_not(method, "secure aggregation", hyper), unbounded)
        if s.mode == "buffered":
            check_buffered(s, why_not(method, "buffered rounds", hyper))
        check_compression(s, why_not(method, "compressed updates", hyper))
        robust.check(s, why_not(method, "robust aggregation", hyper))
        attacked.check(s, dataset_of(s), why_not(method, "robust aggregation", hyper) or unbounded)
        own, other = [*buffers_of(self.network)], "it does not state what its messages are"
        buffers.check(s, other if stated is None else buffers.gap(stated), own)
        # The roster calls this in simulations only: real devices hold their own data.
        roster = Roster(lambda: population(s), s.num_clients, self.code, s.roster_timeout, versions(self.config))
        provenance = partial(self.provenance, engine=engine)
        setup = Setup(
            s,
            hyper,
            method.client_class(),
            roster,
            run,
            self.origins,
            provenance,
            partial(chance, s),
            self.said,
            (self.whole, self.frozen),
            own,
        )
        return method.strategy_class()(setup)


def assemble(config: Mapping[str, Value], *, one_thread: bool, one_process: bool = False) -> Assembly:
    """Check a complete run configuration and build the parts of the run.

    Args:
        config: flat keys.
        one_thread: whether this process computes with one thread, as in a simulation with a process per core.
        one_process: whether server and clients share this process.

    Raises:
        ConfigurationError: if the configuration is wrong, or the method does not support it.
    """
    settings, hyper = parse(config)
    method, spec = METHODS[settings.method], dataset_of(settings)
    check_task(settings, hyper, spec.learned)
    device = tune_process(settings.device, one_thread=one_thread)
    network = network_for(spec, settings, settings.seed)
    if isinstance(network, OneBlock) and method.client_class().needs_blocks:
        raise ConfigurationError(
            f"model: '{settings.model}' is a single block: {network.why}. Method '{settings.method}' cuts a network "
            f"into body and head: return an nn.Sequential of blocks, or a module that states blocks = [...] ({GUIDE})"
        )
    if method.client_class().needs_bias:
        classifier_shape(arrays_of(whole(network)), f"method '{settings.method}'", biased=True)
    augmentation = augmentation_of(settings.augment, spec)
    if augmentation is not None and not method.client_class().augments:
        raise ConfigurationError(
            f"augment: '{settings.augment}' changes images from epoch to epoch, and method '{settings.method}' needs "
            "them unchanged; set augment = 'none'"
        )
    if settings.batch_order != EACH_ROUND and (reason := why_not(method, "vectorised", hyper)):
        raise ConfigurationError(
            f"batch-order: '{settings.batch_order}' is for methods whose clients train together with vectorise, and "
            f"'{settings.method}' draws batches itself ({reason}); set '{EACH_ROUND}'"
        )
    if settings.bucket and (wrong := bucket_gap(settings, spec)):
        raise ConfigurationError(f"bucket: {wrong}; leave it out")
    if wrong := arithmetic_gap(settings, spec.learned, network, why_not(method, "protects examples", hyper)):
        raise ConfigurationError(f"{wrong}; leave it out")
    if settings.privacy.unit == "example":
        inputs = random_inputs(spec.shape, codes=spec.codes)
        check_example_privacy(settings, why_not(method, "protects examples", hyper), network, inputs)
    try:
        _of_network(settings, network)
    except ValueError as error:
        raise ConfigurationError(f"model: '{settings.model}' {error}") from error
    parts = parts_of(network, map_frozen(network, settings.cache), map_trained(network))
    trim()  # networks that were built to try this one out, and what was moved to files
    return Assembly(config, settings, hyper, method, network, *parts, augmentation, device, one_process)


def _of_network(settings: Settings, network: nn.Module) -> list[str]:
    """Return what was found when a network of another package was tried out, in sentences about it.

    Raises:
        ValueError: if the run cannot have the network (:meth:`florilegium.models.trial.Found.said`).
    """
    found = getattr(network, "found", None)
    if found is None:
        return []
    said: list[str] = found.said(logits=dataset_of(settings).learned.logits, averaged=settings.buffers == "mean")
    return said


def open_folder(path: Path, config: Mapping[str, Value], method: str, watcher: Watcher | None = None) -> RunFolder:
    """Return a :class:`RunFolder` at ``path`` for a run with this configuration; nothing is written yet."""
    from florilegium.strategies.folder.run_folder import RunFolder

    return RunFolder(path, config, table_of(method), watcher, defaults_of(config))


@contextmanager
def outcome_noted(run: RunFolder) -> Iterator[None]:
    """Context of a run, which this process claims; ``status.json`` records if it fails or is stopped.

    Raises:
        ConfigurationError: if another process carries out the run. What the run raises is raised again.
    """
    from florilegium.strategies.folder.claim import claimed

    with claimed(run.path), _noted(run):
        yield


@contextmanager
def _noted(run: RunFolder) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        said = isinstance(error, FlorilegiumError | KeyboardInterrupt) and str(error)
        words = str(error) if said else f"{type(error).__name__}: {error}".removesuffix(": ")
        if isinstance(error, SystemExit):  # Flower ends a run's process so, with code 0
            words = "its process was asked to end, as `flwr stop` does"
        # If resuming failed, the status of the earlier run stays unchanged.
        if run.opened or not (run.path / "config.toml").exists():
            with suppress(FileError):  # what has ended the run matters more
                run.status("failed" if isinstance(error, Exception) else "stopped", error=words)
        raise


def code_of(config: Mapping[str, Value], *, one_process: bool = False) -> str:
    """Return the hash of a run's code (:attr:`Assembly.code`) without building the run."""
    typed_in = in_notebook(config) if one_process else []
    return code_version(tuple(reference for reference in used_code(config) if reference not in typed_in))


def population(settings: Settings) -> list[Member]:
    """Return the clients of the simulated federation as members of the server's roster."""
    from florilegium.strategies.exchange.roster import Member

    federation, _ = federate(settings)
    remarks(settings)  # which refuses equal rows, if it is to
    names: list[str] = federation.names.tolist()
    own = settings.partitioner == "natural" or PARTITIONERS[settings.partitioner].split is not None
    if not own or len({*names}) < sum(map(bool, names)):  # names of domains, which several clients share
        names = [""] * len(federation)
    measured, part = federation.test.sizes, federation.validation
    own_part = np.zeros_like(measured) if part is None else part.sizes
    if settings.evaluate_on == "validation":
        counts = zip(federation.train.sizes, own_part, federation.labeled, strict=True)
        fraction = settings.validation_fraction
        measured = np.array([(part or validating(size, fraction)) if known else 0 for size, part, known in counts])
    arrays = (federation.train.sizes, measured, federation.unseen, federation.labeled, own_part)
    columns = zip(*(array.tolist() for array in arrays), names, strict=True)
    return [
        Member(str(i), train, test, unseen, labeled, name=name, validation=part)
        for i, (train, test, unseen, labeled, part, name) in enumerate(columns)
    ]


def chance(settings: Settings, clients: Iterable[str]) -> float:
    """Return the main figure of the best constant prediction for some simulated clients; NaN if it is not known."""
    federation, dataset = federate(settings)
    part = "train" if settings.evaluate_on == "validation" else "test"
    return constant(federation, dataset, map(int, clients), part)
