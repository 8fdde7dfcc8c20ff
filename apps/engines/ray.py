"""The engine ``ray``: Flower's simulation on Ray, for a cluster or several GPUs; it takes some ten seconds to start.

The cluster that ``RAY_ADDRESS`` names is looked for before anything waits for it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from florilegium.apps.engines.process import InThisProcess
from florilegium.apps.engines.progress import Show
from florilegium.apps.origins.packages import import_path
from florilegium.clients.core.settings import STORE
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.references import PATH_VARIABLE
from florilegium.common.settings import Value
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import STOP

if TYPE_CHECKING:
    from florilegium.apps.assembly.node_clients import Supply
    from florilegium.apps.assembly.parts import Assembly
    from florilegium.cluster.grid import ClusterGrid
    from florilegium.cluster.worker import Part

VARIABLE = "RAY_ADDRESS"
_PATIENCE = 3.0
"""Seconds that a cluster has to accept a connection."""
_ADVICE = f"start one with `ray start --head`, correct {VARIABLE}, or unset it to compute on this machine"


class Ray(InThisProcess):
    """Carries out runs whose clients are on a Ray cluster, or in a Flower simulation if no cluster is named."""

    remote = True

    @classmethod
    def suits(cls, workers: int, configs: Sequence[Mapping[str, Value]]) -> bool:
        """Return whether ``RAY_ADDRESS`` names a cluster, or several workers are to share several GPUs."""
        if named_cluster():
            return True
        if workers == 1 or not any(str(config["device"]) in ("auto", "cuda") for config in configs):
            return False
        import torch  # takes seconds, but the run needs it too

        return torch.cuda.device_count() > 1

    def __enter__(self) -> Self:
        """Connect to the cluster; without one start a SuperLink and Ray, without waiting for them.

        Raises:
            ConfigurationError: if ``RAY_ADDRESS`` names no cluster that can be reached.
        """
        self._own = ExitStack()
        path = import_path(self.configs[0]) if self.configs else ""
        if named := named_cluster():
            check_cluster(named)
            from florilegium.cluster.connection import connected

            self._own.enter_context(connected(named))
            self.cluster = partial(_on_cluster, self.workers, path)
        else:
            from florilegium.apps.engines.ray_simulation import Simulation

            self._simulation = self._own.enter_context(Simulation(self.workers, path))
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the cluster; end every process of the simulation."""
        self._own.close()

    def run(self, overrides: Mapping[str, Value], run_path: Path, progress: Show) -> None:
        """Carry out one run and wait for it, as :meth:`Engine.run`."""
        if self.cluster is not None:
            super().run(overrides, run_path, progress)
            return
        last = 0

        def show(status: Mapping[str, Any]) -> None:
            nonlocal last
            progress(status)
            evaluated = int(status.get("evaluated", 0))
            if self.on_evaluation is not None and evaluated > last and status.get("figures"):
                last = evaluated
                if self.on_evaluation(evaluated, json.loads(json.dumps(status["figures"]))):
                    (run_path / STOP).touch()

        self._simulation.run(overrides, run_path, show)


def _on_cluster(workers: int, path: str, assembly: Assembly) -> AbstractContextManager[ClusterGrid]:
    from florilegium.apps.assembly.node_clients import Supply
    from florilegium.cluster.connection import opened
    from florilegium.cluster.stock import Stock
    from florilegium.partitions.clientdata import ClientRows

    settings, stock = assembly.settings, None
    arguments: list[Any] = [dict(assembly.config)]
    federation, dataset = federate(settings)
    if settings.data_from == STORE:
        parts = (dataset.train, dataset.test, dataset.validation)
        total = sum(len(part) for part in parts if part is not None)
        stock = Stock(lambda client: ClientRows.of(federation, dataset, int(client)), total)
        arguments.append(Supply.of(settings))
    return opened(
        workers, assembly.code, dataset.fingerprint, part, arguments, {PATH_VARIABLE: path},
        gpus=str(settings.device) != "cpu", stock=stock,
    )  # fmt: skip


def part(config: Mapping[str, Value], supply: Supply | None = None) -> Part:
    """Return what carries out the messages of a run in a process of its own.

    Args:
        config: the complete configuration of the run.
        supply: what a process must know that has no data; None: it reads the data.
    """
    from florilegium.apps.assembly.node_clients import SuppliedClients
    from florilegium.apps.assembly.parts import assemble
    from florilegium.cluster.worker import Part
    from florilegium.partitions.loading import tell

    if supply is not None:
        tell(supply.described)
        assembly = assemble(config, one_thread=True)
        source = SuppliedClients(supply, assembly.device)
        return Part(assembly.host(source), assembly.code, supply.fingerprint, source.give)
    try:
        assembly = assemble(config, one_thread=True)
        data = federate(assembly.settings)[1].fingerprint
    except (ConfigurationError, DataError) as error:  # the server has none with this configuration
        raise DataError(
            f"{error} To have the server send rows to machines without data: data-from = '{STORE}'"
        ) from error
    return Part(assembly.host(assembly.simulated_clients()), assembly.code, data)


def named_cluster() -> str:
    """Return the address of the cluster that ``RAY_ADDRESS`` names; "" if it names none ("local" asks for none)."""
    address = os.environ.get(VARIABLE, "").strip()
    return "" if address == "local" else address


def check_cluster(address: str) -> None:
    """Check that a Ray cluster may be at an address: ``host:port``, ``ray://host:port``, or "auto".

    Raises:
        ConfigurationError: if the address is malformed, or nothing that speaks Ray's protocol answers there.
    """
    where = _running_here() if address == "auto" else address.removeprefix("ray://")
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(\d{1,5})", where)
    if found is None or not 0 < int(found[2]) < 65536:
        raise ConfigurationError(
            f"{VARIABLE}: '{address}' is no address of a Ray cluster; expected host:port, such as 10.0.0.5:6379, or "
            f"'auto'; {_ADVICE}"
        )
    try:
        socket.create_connection((found[1].strip("[]"), int(found[2])), timeout=_PATIENCE).close()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(f"{VARIABLE}: there is no Ray cluster at {where} ({reason}); {_ADVICE}") from error
    if not os.environ.get("RAY_USE_TLS") and not _speaks_grpc(where):
        raise ConfigurationError(f"{VARIABLE}: what listens at {where} is no Ray cluster; {_ADVICE}")


def _running_here() -> str:
    """Return the address of the cluster that was last started on this machine, as Ray looks it up for "auto"."""
    folder = os.environ.get("RAY_TMPDIR") or (tempfile.gettempdir() if os.name != "posix" else "/tmp")
    file = Path(folder) / "ray" / "ray_current_cluster"
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{VARIABLE}: 'auto', but no Ray cluster runs on this machine; {_ADVICE}") from error


def _speaks_grpc(address: str) -> bool:
    """Return whether a server, found to be listening, accepts a gRPC connection, as Ray's do."""
    import grpc  # takes half a second

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_PATIENCE)
        except grpc.FutureTimeoutError:
            return False
    return True
