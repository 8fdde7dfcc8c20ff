"""Reopen a finished run to build the model of one client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from florilegium.apps.assembly import assemble, open_folder
from florilegium.apps.device_settings import NEW, DeviceSettings, own_data
from florilegium.apps.one_process import OneProcess
from florilegium.apps.settings import Settings, complete
from florilegium.apps.sources import DeviceClient, SimulatedClients
from florilegium.clients.core.export import save_model
from florilegium.clients.core.host import Host
from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import exchanged, set_arrays
from florilegium.partitions.datasets import find_spec
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.run_folder import Checkpoint, read_checkpoint, read_config


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
        RunError: if the run has no readable checkpoint.
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
        data = own_data(new, s.dataset, assembly.device, embeddings=s.embeddings, cache_dir=s.cache_dir)
        source = DeviceClient(NEW, data)
    else:
        source = assembly.simulated_clients()
    with TemporaryDirectory() as state_dir:  # the state of a new client is not kept
        host = assembly.host(source, state_dir if data_path else "")
        strategy = assembly.strategy(open_folder(run, config, s.method))
        grid = OneProcess(host, assembly.code)
        strategy.roster.wait(grid, 0.0, until=lambda: bool(strategy.roster.clients))
        strategy.take_back(checkpoint)
        yield Reopened(s, strategy, Round(strategy, grid, checkpoint.round), host, checkpoint)


def personalise(
    run: Path, target: Path, client_id: str = "", data_path: Path | None = None, *, labeled: bool = True
) -> Path:
    """Write the model that a client uses after ``run`` to folder ``target``, and return it.

    The client works as in an evaluation: it receives the run's final state from the server and personalises it on its
    own data, which must therefore be available.

    Args:
        run: the run's folder.
        target: the folder to write to.
        client_id: a client of the run's federation.
        data_path, labeled: a new client instead, as in :func:`reopened`.

    Raises:
        ConfigurationError: if there is no such client.
        RunError: if the run has no readable checkpoint, or the client cannot be served.
    """
    with reopened(run, data_path, labeled=labeled) as again:
        client_id = NEW if data_path is not None else client_id
        return save_model(target, model_of(again, client_id, run.name), client_id, run.name, again.settings)


def model_of(again: Reopened, client_id: str, run: str) -> nn.Module:
    """Return the model that a client of a reopened run predicts with; it belongs to the run's host.

    Raises:
        ConfigurationError: if the run has no such client, or its method makes no models.
        RunError: if the client cannot be served.
    """
    if not again.strategy.makes_models:
        raise ConfigurationError(f"method '{again.settings.method}' makes no models of clients")
    if client_id not in (known := again.strategy.roster.clients):
        raise ConfigurationError(
            f"client: there is no client '{client_id}' in run '{run}'; its clients are 0 to {len(known) - 1}"
        )
    again.strategy.measure(again.round, [client_id], again.checkpoint.arrays)
    return again.host.predictor


def global_model(again: Reopened) -> nn.Module:
    """Return the global model of a reopened run, a network in the run's architecture.

    Raises:
        ConfigurationError: if the server's arrays are not a whole network.
    """
    s, arrays = again.settings, again.checkpoint.arrays
    spec = find_spec(s.dataset)
    network = network_for(spec, s.model, s.seed)
    if arrays.keys() != exchanged(network).keys():
        raise ConfigurationError(
            f"method '{s.method}' has no global model, the server holds a part of it or something else; name a client"
        )
    set_arrays(network, arrays)
    return network
