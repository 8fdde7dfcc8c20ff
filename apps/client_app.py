"""The ClientApp: builds this process's host once and hands it every message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from apps.code_version import code_version
from apps.methods import METHODS
from apps.settings import Settings, parse
from clients.host import Host
from clients.wire import Announcement
from clients.worker import tune_process
from common.errors import DataError
from models.networks import build
from partitions.clientdata import ClientData, from_folder, simulated
from partitions.datasets import find_spec
from partitions.federation import federate
from partitions.words import vocabulary

app = ClientApp()


class SimulatedClients:
    """A node of a simulation: it can stand in for any client of the federation."""

    pinned = False

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self._federation, self._dataset = federate(settings)
        self._device = device

    def clients(self) -> Sequence[str]:
        """Return the ids of all clients."""
        return [str(i) for i in range(len(self._federation))]

    def data(self, client_id: str) -> ClientData:
        """Return the data of any client of the federation."""
        if not client_id.isdecimal() or int(client_id) >= len(self._federation):
            raise DataError(f"there is no client '{client_id}' in a federation of {len(self._federation)}")
        return simulated(self._federation, self._dataset, int(client_id), self._device)


class DeviceClient:
    """A device: one client, whose data lie in a folder that its owner named in the node's configuration."""

    pinned = True

    def __init__(
        self, settings: Settings, client_id: str, path: Path, device: torch.device, *, labeled: bool = True
    ) -> None:
        if not path.is_absolute():
            raise DataError(f"data-path: '{path}' is relative; give an absolute path in --node-config")
        self._id = client_id
        spec = find_spec(settings.dataset)
        words = vocabulary(settings.embeddings, settings.cache_dir, spec.shape[1]) if spec.kind == "words" else None
        self._data = from_folder(path, spec, device, words, labeled=labeled)

    def clients(self) -> Sequence[str]:
        """Return the device's client id."""
        return [self._id]

    def data(self, client_id: str) -> ClientData:
        """Return the device's data, to itself alone."""
        if client_id != self._id:
            raise DataError(f"this device holds the data of client '{self._id}', not of '{client_id}'")
        return self._data


@lru_cache(maxsize=1)
def _host(run_config: str, node_config: str) -> Host:
    """Build the host of this process. Both configurations are JSON, so that they can be compared."""
    settings, hyper = parse(json.loads(run_config))
    node = json.loads(node_config)
    device = tune_process(settings.device, one_thread="data-path" not in node)
    spec = find_spec(settings.dataset)
    model = build(settings.model, spec.shape, spec.classes, settings.seed).to(device)
    source: SimulatedClients | DeviceClient
    if "data-path" in node:
        path, labeled = Path(node["data-path"]).expanduser(), bool(node.get("labeled", True))
        source = DeviceClient(settings, str(node.get("client-id", "device")), path, device, labeled=labeled)
    else:
        source = SimulatedClients(settings, device)
    client_class = METHODS[settings.method].client()
    return Host(client_class, settings, hyper, model, source, str(node.get("state-dir", "")))


def _host_of(context: Context) -> Host:
    if not {"data-path", "partition-id"} & context.node_config.keys():
        raise DataError(
            "data-path: missing in the SuperNode's --node-config (found: "
            f"{', '.join(context.node_config) or 'nothing'}). Name the folder of the device's own data, as in "
            '--node-config \'data-path="/data/site-a" client-id="site-a"\''
        )
    # The nodes of a simulation differ in their number only, and share the host of their process.
    node = {key: value for key, value in context.node_config.items() if key not in ("partition-id", "num-partitions")}
    return _host(json.dumps(context.run_config, sort_keys=True), json.dumps(node, sort_keys=True))


def _answer(message: Message, context: Context) -> Message:
    own = context.node_config.get("client-id", context.node_config.get("partition-id", "device"))
    return _host_of(context).answer(message, own=str(own))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, or carry out whatever phase the message names."""
    return _answer(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test models on the clients' own data."""
    return _answer(message, context)


@app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Say which clients live here. A node of a simulation holds none: the server knows the federation itself."""
    code = code_version()
    simulated_node = "partition-id" in context.node_config and "data-path" not in context.node_config
    answer = Announcement(False, code) if simulated_node else _host_of(context).announce(code)
    return Message(answer.pack(), reply_to=message)
