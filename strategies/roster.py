"""Who is there: the clients of a run, the nodes that host them, and which node runs which client.

Simulated nodes are interchangeable and any of them can run any client; a real device is pinned to its own clients.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from clients.wire import Announcement
from common.errors import RunError
from common.settings import NAME
from strategies.exchange import LONGEST_POLL_DEPLOYED, Expected, deliver, describe_error

log = logging.getLogger("flwr")

_QUERY_SECONDS = 60.0
"""How long a node may take to say who it is; on a device that starts a process and reads its data."""
_TRIES = 3
"""How often a node that stays silent is asked."""


@dataclass(frozen=True)
class Client:
    """One client as the server knows it.

    Attributes:
        id: its name.
        train, test: numbers of its examples, the expected cost of training and evaluating it.
        unseen: held back from training.
        labeled: whether its labels may be used.
        node: the node it is pinned to, or None where any node can run it.
    """

    id: str
    train: int
    test: int
    unseen: bool = False
    labeled: bool = True
    node: int | None = None

    @property
    def group(self) -> str:
        """The group it is evaluated in: "seen", "unseen", or "unlabeled"."""
        return "unseen" if self.unseen else "seen" if self.labeled else "unlabeled"


class Roster:
    """The clients and nodes of a run.

    Args:
        population: returns the clients of a simulation; not called where nodes are real devices.
        expected: how many clients to wait for where nodes are real devices.
        code: hash of the server's code; nodes that run another are refused.
        least: how many training examples a client must have to be one of the run.

    Attributes:
        nodes: the nodes that work.
        clients: the clients of the run, by id.
        deployed: whether the nodes are real devices.
        left_out: why other clients are none of the run, by id.
        away: clients that were of the run and whose devices have gone.
    """

    def __init__(self, population: Callable[[], Sequence[Client]], expected: int, code: str, *, least: int = 0) -> None:
        self._population = population
        self._expected = expected
        self._code = code
        self._least = least
        self.nodes: list[int] = []
        self.clients: dict[str, Client] = {}
        self.deployed = False
        self.left_out: dict[str, str] = {}
        self.away: set[str] = set()
        self._refused: dict[int, str] = {}
        self._silent: Counter[int] = Counter()  # how often a node has not answered
        self._changed: set[int] = set()  # nodes to ask again
        self._doubles: dict[int, set[str]] = {}  # nodes with clients that others had first, and which

    def wait(self, grid: Grid, timeout: float) -> None:
        """Ask the nodes who they are, until the run can start.

        Raises:
            RunError: if no node, or not enough clients, answered within ``timeout`` seconds, or the code differs.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.refresh(grid, max(1.0, min(_QUERY_SECONDS, deadline - time.monotonic())))
            known = len(self.clients) + len(self.left_out)
            if self.clients and (not self.deployed or known >= self._expected):
                return
            if time.monotonic() > deadline:
                raise RunError(self._nobody(timeout))
            time.sleep(LONGEST_POLL_DEPLOYED if self.deployed else 0.1)

    def _nobody(self, timeout: float) -> str:
        """Say who is missing, and why."""
        if self.left_out and not self.clients:
            client, reason = next(iter(self.left_out.items()))
            return f"all {len(self.left_out)} clients are left out; client {client}: {reason}"
        if self._refused:
            reasons = "; ".join(f"node {node}: {reason}" for node, reason in self._refused.items())
            return f"{len(self.clients)} clients are ready, but nodes were left out: {reasons}"
        if self.deployed:
            return (
                f"{len(self.clients)} of {self._expected} clients (key num-clients) answered within {timeout:g} s (key "
                "start-timeout); start more SuperNodes, or expect fewer clients"
            )
        return (
            f"no node answered within {timeout:g} s (key start-timeout). In a simulation a half-dead Ray cluster is "
            "the usual reason: `ray stop --force`, then try again, or use `florilegium run`. On devices, start "
            "SuperNodes first."
        )

    def refresh(self, grid: Grid, timeout: float = _QUERY_SECONDS) -> None:
        """Look which nodes are online; ask new ones for their clients and forget those that left."""
        online = list(grid.get_node_ids())
        # One that left and came back is asked again.
        self._refused = {node: reason for node, reason in self._refused.items() if node in online}
        if not set(self.nodes) <= set(online):
            self.nodes = [node for node in self.nodes if node in online]
            self.away |= {i for i, c in self.clients.items() if c.node is not None and c.node not in online}
            self.clients = {i: c for i, c in self.clients.items() if i not in self.away}
        self._doubles = {node: ids for node, ids in self._doubles.items() if node in online}
        held = {client.id for client in self.clients.values()}
        waiting = {node for node, ids in self._doubles.items() if held & ids}
        known = {*self.nodes, *self._refused, *waiting} - self._changed
        new = [node for node in online if node not in known]
        self._changed = set()
        queries = [Message(RecordDict(), node, "query.roster") for node in new]
        for node, reply in zip(new, deliver(grid, queries, timeout, Expected(), deployed=self.deployed), strict=True):
            self._enrol(node, reply)

    def _enrol(self, node: int, reply: Message) -> None:
        if reply.has_error():
            reason = describe_error(reply)
            self._silent[node] += reply.error.code == ErrorCode.NODE_UNAVAILABLE
            if 0 < self._silent[node] < _TRIES:
                log.warning("node %d is asked again: %s", node, reason)
                return
            self._refused[node] = reason
            log.warning("node %d is left out: %s", node, reason)
            return
        try:
            own = self._announced(node, reply)
        except Exception as error:  # a device may answer anything
            if not self.deployed or not self.nodes:
                raise
            self._refused[node] = str(error)
            log.warning("node %d is left out: %s", node, error)
            return
        if double := {client.id for client in own if self._holder(client.id) not in (None, node)}:
            first = min(double)
            log.warning(
                "node %d is left out: client %s is on node %s already; give every device a client-id of its own",
                node, first, self._holder(first),
            )  # fmt: skip
            self._doubles[node] = double
            return
        if node not in self.nodes:
            self.nodes.append(node)
        if self.deployed or not self.clients:
            self._admit(own if self.deployed else self._population())

    def _announced(self, node: int, reply: Message) -> list[Client]:
        """Return the clients that live on a node; none on a node of a simulation.

        Raises:
            RunError: if the node cannot be one of this run.
        """
        answer = Announcement.unpack(reply.content)
        if answer.code != self._code:
            raise RunError(
                f"node {node} runs other code (hash {answer.code}) than the server ({self._code}). In a simulation "
                "the workers import what lies in the folder the SuperLink was started from: start it from an empty "
                "folder, or use `florilegium run`. On a device, restart its SuperNode."
            )
        if self.nodes and answer.pinned != self.deployed:
            raise RunError(f"node {node}: devices and simulated nodes cannot share a run")
        sizes = list(zip(answer.clients, answer.train, answer.test, answer.labeled, strict=True))
        for client, train, test, _ in sizes:
            if not re.fullmatch(NAME, client) or train < 0 or test < 0:
                raise RunError(f"node {node} announces client '{client}' with {train} and {test} examples")
        self.deployed = answer.pinned
        return [Client(client, train, test, labeled=labeled, node=node) for client, train, test, labeled in sizes]

    def _holder(self, client: str) -> int | None:
        return self.clients[client].node if client in self.clients else None

    def ask_again(self, client: str) -> None:
        """Ask the device of a client what it holds before the next round: it may have other data by now."""
        node = self._holder(client)
        if node is not None:
            self._changed.add(node)

    def _admit(self, clients: Iterable[Client]) -> None:
        """Take in the clients that have enough examples."""
        for client in clients:
            self.away.discard(client.id)
            if client.train >= self._least:
                self.clients[client.id] = client
                self.left_out.pop(client.id, None)
                continue
            reason = f"it has {client.train} training examples, fewer than min-examples = {self._least}"
            log.warning("client %s is left out: %s", client.id, reason)
            self.left_out[client.id] = reason

    def ids(self, *groups: str) -> list[str]:
        """Return the ids of the clients in ``groups``, numbers in numeric order."""
        chosen = [client.id for client in self.clients.values() if client.group in groups]
        return sorted(chosen, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))

    def assign(self, cohort: Sequence[str], *, evaluation: bool) -> dict[int, list[str]]:
        """Distribute ``cohort`` over the nodes, most expensive clients first, always to the node with least to do.

        Returns:
            The clients of each node, nodes with the most work first: they are served in this order.
        """
        loads: dict[int, float] = dict.fromkeys(self.nodes, 0.0)
        groups: dict[int, list[str]] = {}
        costs = {i: float(self.clients[i].test if evaluation else self.clients[i].train) for i in cohort}
        for client in sorted(cohort, key=lambda i: -costs[i]):
            pinned = self.clients[client].node
            node = min(loads, key=loads.__getitem__) if pinned is None else pinned
            loads[node] += costs[client] + 1e-9
            groups.setdefault(node, []).append(client)
        return {node: groups[node] for node in sorted(groups, key=lambda n: -loads[n])}
