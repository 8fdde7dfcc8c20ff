"""A SuperNode's connection to the SuperLink, over functions inside Flower that ``flower-supernode`` uses as well.

They are not Flower's public interface and change between versions, so no other module imports them, and it is imported
only with versions of Flower that it was tested with (:func:`florilegium.apps.devices.flower_inside.usable`).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from flwr.app import Context, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.exit import ExitCode, flwr_exit, register_signal_handlers
from flwr.supercore.grpc_health import run_health_server_grpc_no_tls
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry.retry_invoker import RetryInvoker
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.telemetry import EventType
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli.flower_supernode import SuperNodeLifespanConfig, _parse_supernode_lifespan_config
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.start_client_internal import _verify_fab

from florilegium.apps.devices.resident import App
from florilegium.clients.core.joining import OWN, apart, is_joined, together
from florilegium.common.memory import settle
from florilegium.strategies.exchange.flower_inside import ObjectTree, bear_internal_errors, name_message
from florilegium.strategies.exchange.flower_objects import pull, push, put_together

log = logging.getLogger("flwr")


_REFUSED_AT_MOST = 90.0
"""Seconds that a node which was not shut down properly is still taken for connected: two heartbeats and a half."""
_AGAIN = 5.0
"""Seconds after which a refused node tries again."""

Over = RunNotRunningException
"""Raised where a run is over: its messages need no answer. It is no :class:`Exception`."""


@contextmanager
def connected(options: Sequence[str]) -> Iterator[Link]:
    """Context of a connection to the SuperLink; signals end the process.

    Args:
        options: those of ``flower-supernode``; wrong ones end the process with its message.
    """
    sys.argv = ["flower-supernode", *options]
    config = _parse_supernode_lifespan_config()
    if config.insecure and config.authentication_keys:
        flwr_exit(
            ExitCode.SUPERNODE_STARTED_WITHOUT_TLS_BUT_NODE_AUTH_ENABLED,
            "A node with a key needs TLS: leave out --insecure and name the authority with --root-certificates.",
        )
    if config.authentication_keys:
        _wait_until_free(config)
    health = config.health_server_address
    register_signal_handlers(
        EventType.RUN_SUPERNODE_LEAVE,
        "SuperNode terminated gracefully.",
        grpc_servers=[run_health_server_grpc_no_tls(health)] if health else [],
    )
    with _patient(), fleet_http_connection.http_request_response(
        config.server_address, config.insecure, config.root_certificates, config.authentication_keys,
        config.max_retries, config.max_wait_time,
    ) as functions:  # fmt: skip
        settle()
        yield Link(functions, config.node_config, config.trusted_entities)


@contextmanager
def _patient() -> Iterator[None]:
    """Context in which connections are made that bear internal errors of the SuperLink."""
    module: Any = fleet_http_connection
    make = module.make_simple_http_retry_invoker

    def patient() -> RetryInvoker:
        invoker = make()
        bear_internal_errors(invoker)
        return invoker

    module.make_simple_http_retry_invoker = patient
    try:
        yield
    finally:
        module.make_simple_http_retry_invoker = make


def _wait_until_free(config: SuperNodeLifespanConfig) -> None:
    """Wait while the SuperLink takes this node for connected, as it does for a minute after a crash or a power cut.

    Flower refuses such a node in the same words as one with an unknown key, and ends it. If it is refused for too long,
    this function returns and leaves the error to Flower.
    """
    assert config.authentication_keys is not None
    keys = config.authentication_keys
    with FleetHttpClient.from_server_address(
        config.server_address,
        config.insecure,
        config.root_certificates,
        interceptors=(RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(*keys)),
    ) as client:
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(keys[1]), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        deadline, told = time.monotonic() + _REFUSED_AT_MOST, False
        while time.monotonic() < deadline:
            try:
                answer = client.ActivateNode(request)
                client.DeactivateNode(DeactivateNodeRequest(node_id=answer.node_id))
                return
            except httpx.TransportError:
                return  # Flower waits for the SuperLink
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.PRECONDITION_FAILED:
                    return
            if not told:
                log.warning(
                    "the SuperLink refuses this node, as it does for about a minute after one that was not shut down, "
                    "such as before a restart. Trying again for %.0f s; if it is still refused then, its key is not "
                    "registered (`flwr supernode register`)", _REFUSED_AT_MOST,
                )  # fmt: skip
                told = True
            time.sleep(_AGAIN)


class Link:
    """The connection.

    Args:
        functions: Flower's functions that talk to the SuperLink, after the node's id.
        node_config: the device's own settings.
        trusted: public keys of those whose apps may run on this device; None: all may.

    Attributes:
        node: the node's id.
    """

    def __init__(
        self, functions: tuple[Any, ...], node_config: Mapping[str, Any], trusted: Mapping[str, str] | None
    ) -> None:
        self.node, self._receive, self._send, self._get_run, self._get_fab, *rest = functions
        self._pull_object, self._push_object, self._confirm = rest
        self._node_config, self._trusted = dict(node_config), trusted
        self._joined = set[str]()  # ids of messages that came with joined records, whose replies are sent so too

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """Return the next message, still without its content, and the tree of its objects; None if there is none."""
        found: tuple[Message, ObjectTree] | None = self._receive()
        return found

    def content(self, message: Message, tree: ObjectTree) -> Message:
        """Return a received message with its content.

        Raises:
            Exception: of several kinds, if the SuperLink does not have all of it.
        """
        run = message.metadata.run_id
        ids = [one.object_id for one in iterate_object_tree(tree)]
        contents = pull(ids, lambda name: self._pull_object(run, name))
        self._confirm(run, tree.object_id)
        whole = put_together(tree.object_id, contents)
        name_message(whole, tree.object_id)
        if is_joined(whole.content):
            self._joined.add(tree.object_id)
            whole.content = apart(whole.content)
        return whole

    def app(self, run_id: int, trust: Callable[[int, bytes], None]) -> tuple[App, Context, str] | None:
        """Return a run's app and context, and who has started it, as the SuperLink says.

        Args:
            run_id: the run.
            trust: checks the app's bundle before anything of it is read.

        Returns:
            None if the app is signed by nobody whom this device trusts.
        """
        run = self._get_run(run_id)
        fab = self._get_fab(run.fab_hash, run_id)
        if self._trusted and not (fab.verifications.get("valid_license") and _verify_fab(fab, dict(self._trusted))):
            return None
        trust(run_id, fab.content)
        config = get_fused_config_from_fab(fab.content, run)
        context = Context(run_id, self.node, self._node_config, RecordDict(), config, run.series_id)
        return App(run.fab_id, run.fab_version, fab.content, fab.hash_str), context, run.account_name or run.flwr_aid

    def send(self, reply: Message, seconds: float) -> None:
        """Send a reply, which took ``seconds`` to compute."""
        run, asked = reply.metadata.run_id, reply.metadata.reply_to_message_id
        if asked in self._joined and reply.has_content():
            reply.content = together(reply.content, OWN)
        self._joined.discard(asked)
        name_message(reply, reply.object_id)
        with no_object_id_recompute():
            wanted, session = self._send(reply, get_object_tree(reply), seconds)
            push(
                get_all_nested_objects(reply),
                lambda name, content: self._push_object(run, session, name, content),
                wanted,
            )
