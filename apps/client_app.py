"""The ClientApp: builds the host of this process once and passes every message to it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from florilegium.apps.assembly.node_clients import DeviceClient
from florilegium.apps.assembly.node_config import allowance_of, identity_of, own_data, parse_node
from florilegium.apps.assembly.parts import assemble, code_of
from florilegium.apps.origins.packages import NOT_INSTALLED, versions
from florilegium.apps.origins.provenance import same_data
from florilegium.apps.settings.configuration import parse, received
from florilegium.clients.core.joining import apart
from florilegium.clients.core.wire import OTHER_DATA, Announcement, Query
from florilegium.clients.core.worker import limit_threads
from florilegium.clients.node.host import Host
from florilegium.common.errors import DataError, RefusedError, RunError
from florilegium.partitions.device_data import state_of
from florilegium.partitions.loading import dataset_of

app = ClientApp()
log = logging.getLogger("flwr")
_states: dict[tuple[str, str], str] = {}
"""State of the device's data when each run last used them."""


@lru_cache(maxsize=1)
def _host(run_config: str, node_config: str, data: str = "") -> tuple[Host, str]:
    """Build the host of this process; return it and the hash of its code.

    Both configurations are given as JSON, so that the cache can compare them; ``data`` is the state of a device's data
    and schema, which are read again when they have changed.
    """
    config, node = received(json.loads(run_config)), json.loads(node_config)
    if not node:
        assembly = assemble(config, one_thread=True)
        return assembly.host(assembly.simulated_clients()), assembly.code
    device = parse_node(node)
    assembly = assemble(config | device.copies(config), one_thread=False)
    s = assembly.settings
    limit_threads(device.threads, sum(array.size for array in assembly.whole.values()))
    client_class = assembly.method.client_class()
    unit = s.privacy.unit if s.privacy.unit != "none" else client_class.own_unit(assembly.hyper)
    allowance = allowance_of(device, unit)
    own = own_data(
        device,
        dataset_of(s),
        assembly.device,
        embeddings=s.embeddings,
        cache_dir=s.cache_dir,
        duplicates=s.duplicates,
        by_column=client_class.by_column,
    )
    return assembly.host(
        DeviceClient(device.client_id, own, allowance, device.capacity, identity_of(device)), device.state_dir
    ), assembly.code


def _is_simulated(context: Context) -> bool:
    return "partition-id" in context.node_config and "data-path" not in context.node_config


def _host_of(context: Context) -> tuple[Host, str]:
    """Return the host of this process, and the hash of its code."""
    # The nodes of a simulation differ only in their number, so that all nodes of a process share its host.
    node = {key: value for key, value in context.node_config.items() if key not in ("partition-id", "num-partitions")}
    run_config = json.dumps(context.run_config, sort_keys=True)
    if _is_simulated(context):
        return _host(run_config, "{}")
    if "data-path" not in node:
        raise DataError(
            f"data-path: missing in the SuperNode's --node-config (found: {', '.join(node) or 'nothing'}). Give the "
            'folder of the device\'s own data, as in --node-config \'data-path="/data/site-a" client-id="site-a"\''
        )
    own, state = json.dumps(node, sort_keys=True), state_of(str(node["data-path"]), str(node.get("schema", "")))
    if _states.setdefault((run_config, own), state) != state:
        log.warning("the data of %s have changed during the run; they are read again", node["data-path"])
        _states[run_config, own] = state
    return _host(run_config, own, state)


@lru_cache(maxsize=4)
def _check_data(run_config: str, run: str) -> None:
    """Check that this process of a simulation reads the data with which the run began.

    Raises:
        RunError: if their files have changed before this process has read them.
    """
    settings, _ = parse(received(json.loads(run_config)))
    if not same_data(settings, run):
        raise RunError(
            f"{OTHER_DATA}: one of its processes reads others now. Keep them as they are while a run goes on, and "
            "begin it anew"
        )


@contextmanager
def _discreet(context: Context) -> Iterator[None]:
    """Context manager: on a device, replace errors whose messages may quote its data or file names.

    Flower would send the message to the server. The original error stays in the device's log.

    Raises:
        RunError: in place of any error on a device.
    """
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:
        if _is_simulated(context):
            raise
        log.exception("%s", error)
        raise RunError("the device's own configuration or data cannot be used; its log says why") from None


def _answer(message: Message, context: Context) -> Message:
    own = context.node_config.get("client-id", context.node_config.get("partition-id", "device"))
    with _discreet(context):
        message.content = apart(message.content)
        host, _ = _host_of(context)
        if _is_simulated(context) and "config" in message.content.config_records:
            run = str(message.content.config_records["config"].get("run", ""))
            _check_data(json.dumps(context.run_config, sort_keys=True), run)
        return host.answer(message, own=str(own))


def _missing(context: Context) -> list[str]:
    """Return the versions of the packages that the run needs, if one of them is not installed on this device."""
    found = versions(received(context.run_config))
    return found if any(one.endswith(NOT_INSTALLED) for one in found) else []


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, or carry out another phase named in the message."""
    return _answer(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test models on the clients' own data."""
    return _answer(message, context)


@app.query("secure")
def secure(message: Message, context: Context) -> Message:
    """Carry out a stage of secure aggregation."""
    return _answer(message, context)


@app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Announce the client of this node and the code's hash. Nodes of a simulation announce no clients."""
    with _discreet(context):
        if _is_simulated(context):
            answer = Announcement(False, code_of(received(context.run_config)))
        elif missing := _missing(context):
            answer = Announcement(True, "", packages=missing)
        else:
            host, code = _host_of(context)
            query = Query.unpack(apart(message.content))
            answer = replace(host.announce(code, query), packages=versions(received(context.run_config)))
    return Message(answer.pack(), reply_to=message)
