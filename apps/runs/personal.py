"""Reopen a finished run to build the model of one client."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from florilegium.apps.assembly.node_clients import DeviceClient, SimulatedClients
from florilegium.apps.assembly.node_config import NEW, DeviceSettings, own_data
from florilegium.apps.assembly.parts import Assembly, assemble, open_folder
from florilegium.apps.engines.one_process import OneProcess
from florilegium.apps.origins.hashes import CODE, INITIAL
from florilegium.apps.runs.predictions import add_onnx
from florilegium.apps.settings.configuration import Settings, complete
from florilegium.clients.core.export import save_model
from florilegium.clients.core.network import network_for
from florilegium.clients.node.host import Host
from florilegium.common.errors import ConfigurationError, RunError, nearest
from florilegium.models.parameters import exchanged, get_arrays, set_arrays
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.hooks import resume
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.roster import Member
from florilegium.strategies.folder.run_folder import Checkpoint, changed_origins, read_checkpoint, read_config

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Reopened:
    """A finished run, restored from its last checkpoint, whose clients can be sent requests again.

    Attributes:
        settings: its configuration.
        strategy: its strategy, in the state of the last checkpoint.
        round: its last round; its requests go to a single node in this process.
        host: runs the clients of that node.
        checkpoint: the last checkpoint.
    """

    settings: Settings
    strategy: CohortStrategy
    round: Round
    host: Host
    checkpoint: Checkpoint


@contextmanager
def reopened(run: Path, data_path: Path | None = None, *, labeled: bool = True) -> Iterator[Reopened]:
    """Reopen ``run`` with the clients of its federation, or with one new client.

    Args:
        run: the run's folder.
        data_path: the new client's folder, with ``train.parquet`` as on a device.
        labeled: whether the new client's training rows have labels.

    Raises:
        ConfigurationError: if the run's clients are real devices, and no new one is given.
        RunError: if the run has no readable checkpoint, or its data have changed.
    """
    config = complete(read_config(run))  # runs from earlier versions lack newer keys
    checkpoint = read_checkpoint(run)
    if checkpoint.facts["deployed"] and data_path is None:
        raise ConfigurationError(
            f"run '{run.name}' ran on real devices: each keeps its model in <state-dir>/{run.name}/<client-id> there"
        )
    config = {**config, "runs-dir": str(run.parent.absolute())}  # the run may have moved
    assembly = assemble(config, one_thread=False, one_process=True)
    s = assembly.settings
    source: SimulatedClients | DeviceClient
    if data_path is not None:
        new = DeviceSettings.model_validate({"data-path": str(data_path.absolute()), "labeled": labeled})
        data = own_data(
            new, dataset_of(s), assembly.device, embeddings=s.embeddings, cache_dir=s.cache_dir, duplicates=s.duplicates
        )
        source = DeviceClient(NEW, data)
    else:
        _check_origins(run, assembly)
        source = assembly.simulated_clients()
    with TemporaryDirectory() as state_dir:  # the state of a new client is not kept
        host = assembly.host(source, state_dir if data_path else "")
        place = open_folder(run, config, s.method)
        strategy = assembly.strategy(place)
        grid = OneProcess(host, assembly.code)
        strategy.federation.roster.trains_with(strategy.federation.start.frozen, strategy.federation.start.built)
        strategy.federation.roster.wait(grid, 0.0, until=lambda: bool(strategy.clients))
        strategy.server_part(get_arrays(network_for(dataset_of(s), s, s.seed)))  # as before a resume
        checkpoint = strategy.federation.start.own(checkpoint, run.name)
        place.hold(strategy.federation.start.kept)  # which runs of earlier versions have in their checkpoints alone
        resume(strategy, checkpoint)
        yield Reopened(s, strategy, Round(strategy.federation, grid, checkpoint.round), host, checkpoint)


def _check_origins(run: Path, assembly: Assembly) -> None:
    """Raise :class:`RunError` if the run's clients hold other data now; warn if code has changed, for models may fit.

    Clients are known by numbers, which other data shift.
    """
    # Its models are in its checkpoint, whatever has become of the one that it began with.
    changed = [what for what in changed_origins(run, assembly.origins(deployed=False)) if what != INITIAL]
    if data := [what for what in changed if not what.startswith(CODE)]:
        raise RunError(
            f"run '{run.name}' was made from another {' and another '.join(data)}; its clients are not known"
        )
    if changed:
        log.warning(
            "run '%s' was made with another %s; its models may not be what they were", run.name, " and ".join(changed)
        )


def personalise(
    run: Path,
    target: Path,
    client_id: str = "",
    data_path: Path | None = None,
    *,
    labeled: bool = True,
    onnx: bool = False,
) -> Path:
    """Write the model that a client uses after ``run`` to folder ``target``, and return it.

    The client works as in an evaluation: it receives the run's final state from the server and personalises it on its
    own data, which must therefore be available.

    Args:
        run: the run's folder.
        target: the folder to write to.
        client_id: a client of the run's federation: its number, or the name of a natural client.
        data_path, labeled: a new client instead, as in :func:`reopened`.
        onnx: whether to write ``model.onnx``, too.

    Raises:
        ConfigurationError: if there is no such client.
        RunError: if the run has no readable checkpoint, the client cannot be served, or the network cannot be written
            as ONNX.
    """
    with reopened(run, data_path, labeled=labeled) as again:
        client_id = NEW if data_path is not None else find_client(client_id, again.strategy.clients, run.name)
        name = again.strategy.clients[client_id].name
        folder = save_model(target, model_of(again, client_id), client_id, run.name, again.settings, name=name)
    if onnx:
        add_onnx(folder)
    return folder


def model_of(again: Reopened, client_id: str) -> nn.Module:
    """Return the model that a client of a reopened run predicts with; it belongs to the run's host.

    Raises:
        ConfigurationError: if the method makes no models.
        RunError: if the client cannot be served.
    """
    if again.strategy.models == "none":
        raise ConfigurationError(f"method '{again.settings.method}' makes no models of clients")
    again.strategy.measure(again.round, [client_id], again.checkpoint.arrays)
    return again.host.exported()


def global_model(again: Reopened) -> nn.Module:
    """Return the global model of a reopened run, a network in the run's architecture.

    Raises:
        ConfigurationError: if the server's arrays are not a whole network.
    """
    s, arrays = again.settings, again.checkpoint.arrays
    network = network_for(dataset_of(s), s, s.seed)
    if arrays.keys() != exchanged(network).keys():
        raise ConfigurationError(
            f"method '{s.method}' has no global model, the server holds a part of it or something else; name a client"
        )
    set_arrays(network, arrays | again.strategy.federation.start.frozen.arrays)
    return network


def find_client(client: str, members: Mapping[str, Member], run: str) -> str:
    """Return the id of the client with this number or natural name; a number goes before a name that looks like one.

    Raises:
        ConfigurationError: if there is no such client; the message suggests the closest name.
    """
    named = {member.name: number for number, member in members.items() if member.name}
    if client in members:
        if (other := named.get(client, client)) != client:
            log.warning(
                "client '%s' is taken as a number: it is the client named '%s'. The client named '%s' has number %s",
                client, members[client].name, client, other,
            )  # fmt: skip
        return client
    if client in named:
        return named[client]
    names = f", or one of the names {', '.join([*named][:10])}{', …' if len(named) > 10 else ''}" if named else ""
    raise ConfigurationError(
        f"client: there is no client '{client}' in run '{run}'{nearest(client, named).removesuffix('.')}; its clients "
        f"are 0 to {len(members) - 1}{names}"
    )
