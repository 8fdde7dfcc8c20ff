"""A client's own model out of a finished run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import ConfigRecord

from apps.client_app import DeviceClient, SimulatedClients
from apps.code_version import code_version
from apps.device_settings import NEW, DeviceSettings, own_data
from apps.methods import METHODS, table_of
from apps.one_process import OneProcess
from apps.server_app import population
from apps.settings import Settings, defaults, parse
from clients.export import save_model
from clients.host import Host
from clients.wire import pack
from clients.worker import tune_process
from common.errors import ConfigurationError
from models.networks import build
from partitions.datasets import find_spec
from strategies.cohort import CohortStrategy
from strategies.roster import Roster
from strategies.run_folder import Checkpoint, RunFolder, read_checkpoint, read_config


@dataclass(frozen=True)
class Reopened:
    """A finished run that can be asked something: its strategy as it was, and one node in this process."""

    settings: Settings
    strategy: CohortStrategy
    grid: OneProcess
    host: Host
    checkpoint: Checkpoint


@contextmanager
def reopened(run: Path, data_path: Path | None = None, *, labeled: bool = True) -> Iterator[Reopened]:
    """Reopen ``run`` with the clients of its federation, or with one new client.

    Args:
        run: the run's folder.
        data_path: the new client's folder, with ``train.parquet`` as on a device.
        labeled: whether that has labels.

    Raises:
        ConfigurationError: if the run's clients are real devices, and no new one is given.
        RunError: if the run has no readable checkpoint.
    """
    config = {**defaults(), **read_config(run)}  # an earlier version knew fewer keys
    settings, hyper = parse(config)
    checkpoint = read_checkpoint(run)
    if checkpoint.facts["deployed"] and data_path is None:
        raise ConfigurationError(
            f"run '{run.name}' ran on real devices: each keeps its model in <state-dir>/{run.name}/<client-id> there"
        )
    settings = settings.model_copy(update={"runs_dir": str(run.parent)})  # the folder may have been moved
    device = tune_process(settings.device, one_thread=False)
    source: SimulatedClients | DeviceClient
    if data_path is not None:
        new = DeviceSettings.model_validate({"data-path": str(data_path.absolute()), "labeled": labeled})
        data = own_data(new, settings.dataset, device, embeddings=settings.embeddings, cache_dir=settings.cache_dir)
        source = DeviceClient(NEW, data)
    else:
        source = SimulatedClients(settings, device)
    spec = find_spec(settings.dataset)
    model = build(settings.model, spec.shape, spec.classes, settings.seed).to(device)
    method = METHODS[settings.method]
    with TemporaryDirectory() as state_dir:  # a new client leaves nothing behind
        host = Host(method.client(), settings, hyper, model, source, state_dir if data_path else "")
        roster = Roster(lambda: population(settings), 1, code_version())
        strategy = method.strategy()(settings, hyper, roster, RunFolder(run, config, table_of(settings.method)))
        grid = OneProcess(host)
        roster.wait(grid, 0.0)
        strategy.take_back(checkpoint)
        yield Reopened(settings, strategy, grid, host, checkpoint)


def personalise(
    run: Path, target: Path, client_id: str = "", data_path: Path | None = None, *, labeled: bool = True
) -> Path:
    """Write the model that a client would use after ``run`` to folder ``target``.

    The client does what it does at an evaluation: it is sent what the run's server has, and makes its own of it. Its
    data are needed for that.

    Args:
        run: the run's folder.
        target: where to write.
        client_id: a client of the run's federation.
        data_path, labeled: or a new client, as of :func:`reopened`.

    Raises:
        ConfigurationError: if there is no such client.
        RunError: if the run has no readable checkpoint, or the client cannot be served.
    """
    with reopened(run, data_path, labeled=labeled) as again:
        if not again.strategy.makes_models:
            raise ConfigurationError(f"method '{again.settings.method}' makes no models of clients")
        client_id = NEW if data_path is not None else client_id
        if client_id not in (known := again.strategy.roster.clients):
            raise ConfigurationError(
                f"client: there is no client '{client_id}' in run '{run.name}'; its clients are 0 to {len(known) - 1}"
            )
        arrays, last = pack(again.checkpoint.arrays), again.checkpoint.round
        again.strategy.measure([client_id], last, arrays, again.grid, ConfigRecord())
        return save_model(target, again.host.predictor, client_id, run.name, again.settings)
