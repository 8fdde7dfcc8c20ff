"""The ClientApp: builds this process's host once and hands it every message."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from apps.code_version import code_version
from apps.device_settings import own_data, parse_node
from apps.methods import METHODS
from apps.settings import Settings, parse
from clients.host import Host
from clients.wire import Announcement
from clients.worker import tune_process
from common.errors import DataError, RunError
from models.networks import build
from partitions.clientdata import ClientData, simulated
from partitions.datasets import find_spec
from partitions.federation import federate

app = ClientApp()
log = logging.getLogger("flwr")


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
    """A device: one client, with the data that its owner named in the node's configuration."""

    pinned = True

    def __init__(self, client_id: str, data: ClientData) -> None:
        self._id = client_id
        self._data = data

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
    config, node = json.loads(run_config), json.loads(node_config)
    device = parse_node(node) if node else None
    if device is not None and device.dataset:
        config["dataset"] = device.dataset
    settings, hyper = parse(config)
    on = tune_process(settings.device, one_thread=device is None)
    source: SimulatedClients | DeviceClient
    if device is None:
        source = SimulatedClients(settings, on)
    else:
        data = own_data(device, settings.dataset, on, embeddings=settings.embeddings, cache_dir=settings.cache_dir)
        source = DeviceClient(device.client_id, data)
    spec = find_spec(settings.dataset)
    model = build(settings.model, spec.shape, spec.classes, settings.seed).to(on)
    client_class = METHODS[settings.method].client()
    return Host(client_class, settings, hyper, model, source, "" if device is None else device.state_dir)


def _is_simulated(context: Context) -> bool:
    return "partition-id" in context.node_config and "data-path" not in context.node_config


def _host_of(context: Context) -> Host:
    """Return the host of this process."""
    # The nodes of a simulation differ in their number only, and share the host of their process.
    node = {key: value for key, value in context.node_config.items() if key not in ("partition-id", "num-partitions")}
    run_config = json.dumps(context.run_config, sort_keys=True)
    if _is_simulated(context):
        return _host(run_config, "{}")
    if "data-path" not in node:
        raise DataError(
            f"data-path: missing in the SuperNode's --node-config (found: {', '.join(node) or 'nothing'}). Say where "
            'the device\'s own data are, as in --node-config \'data-path="/data/site-a" client-id="site-a"\''
        )
    return _host(run_config, json.dumps(node, sort_keys=True))


@contextmanager
def _discreet(context: Context) -> Iterator[None]:
    """On a device, let no error's words leave that may quote its data or names of files: Flower would send them.

    Raises:
        RunError: in the place of any other.
    """
    try:
        yield
    except Exception as error:
        if _is_simulated(context):
            raise
        log.exception("%s", error)
        raise RunError("the device's own configuration or data cannot be used; its log says why") from None


def _answer(message: Message, context: Context) -> Message:
    own = context.node_config.get("client-id", context.node_config.get("partition-id", "device"))
    with _discreet(context):
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
    with _discreet(context):
        answer = Announcement(False, code) if _is_simulated(context) else _host_of(context).announce(code)
    return Message(answer.pack(), reply_to=message)
