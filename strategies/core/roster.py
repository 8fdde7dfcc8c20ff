"""Who is there: the clients of a run, the nodes that host them, and which node runs which client.

Simulated nodes are interchangeable and any of them can run any client; a real device is pinned to its own clients.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid

from florilegium.clients.core.wire import Announcement
from florilegium.common.errors import RunError
from florilegium.common.settings import NAME
from florilegium.strategies.core.exchange import LONGEST_POLL_DEPLOYED, Expected, deliver, describe_error

log = logging.getLogger("flwr")

_LONGEST_PAUSE = 4
"""A node that has not said who it is is asked again when one, two, four, … at most 2 to this power rounds are over."""


@dataclass(frozen=True)
class Member:
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


@dataclass(frozen=True)
class Failed:
    """A node that could not say who it is: how often, until which look it is not asked again, and why."""

    times: int
    until: int
    reason: str


class Roster:
    """The clients and nodes of a run.

    Args:
        population: returns the clients of a simulation; not called where nodes are real devices.
        expected: how many clients to wait for where nodes are real devices.
        code: hash of the server's code; nodes that run another are refused.
        patience: seconds that a node may take to say who it is; a device starts a process and reads its data for it.

    Attributes:
        nodes: the nodes that work.
        clients: the clients of the run, by id.
        deployed: whether the nodes are real devices.
        unfit: why a client cannot be one of the run, "" if it can; the strategy says so.
        left_out: why other clients are none of the run, by id.
        away: clients that were of the run and whose devices have gone.
    """

    def __init__(
        self, population: Callable[[], Sequence[Member]], expected: int, code: str, patience: float = 60.0
    ) -> None:
        self._population = population
        self._expected = expected
        self._code = code
        self._patience = patience
        self.unfit: Callable[[Member], str] = lambda client: ""
        self.nodes: list[int] = []
        self.clients: dict[str, Member] = {}
        self.deployed = False
        self.left_out: dict[str, str] = {}
        self.away: set[str] = set()
        self._refused: dict[int, str] = {}
        self._looks = 0
        self._failed: dict[int, Failed] = {}
        self._changed: set[int] = set()  # nodes to ask again
        self._doubles: dict[int, set[str]] = {}  # nodes with clients that others had first, and which

    def ready(self) -> bool:
        """Return whether the run can start: on devices, all clients that are expected have said who they are."""
        return bool(self.clients) and (not self.deployed or len(self.clients) + len(self.left_out) >= self._expected)

    def wait(
        self, grid: Grid, timeout: float, key: str = "start-timeout", until: Callable[[], bool] | None = None
    ) -> None:
        """Ask the nodes who they are, until the run can start, or go on.

        Args:
            grid: the connection to the nodes.
            timeout: seconds to wait at most.
            key: the key that they are from.
            until: whether it is long enough; by default when the run is :meth:`ready`.

        Raises:
            RunError: if it was not, or as many nodes as are expected have been refused, or a simulation's code differs.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.refresh(grid, max(1.0, min(self._patience, deadline - time.monotonic())))
            if (until or self.ready)():
                return
            if time.monotonic() > deadline or (not self.clients and len(self._refused) >= max(1, self._expected)):
                raise RunError(self._nobody(timeout, key))
            time.sleep(LONGEST_POLL_DEPLOYED if self.deployed else 0.1)

    def _nobody(self, timeout: float, key: str) -> str:
        """Say who is missing, and why."""
        if self.left_out and not self.clients:
            client, reason = next(iter(self.left_out.items()))
            return f"all {len(self.left_out)} clients are left out; client {client}: {reason}"
        if without := self._refused | {node: failed.reason for node, failed in self._failed.items()}:
            reasons = "; ".join(f"node {node}: {reason}" for node, reason in without.items())
            return f"{len(self.clients)} clients are ready, but nodes were left out: {reasons}"
        if self.away:
            return f"no client that can train has come back within {timeout:g} s (key {key})"
        if self.deployed:
            return (
                f"{len(self.clients)} of {self._expected} clients (key num-clients) answered within {timeout:g} s (key "
                f"{key}); start more SuperNodes, or expect fewer clients"
            )
        return (
            f"no node answered within {timeout:g} s (key {key}). In a simulation a half-dead Ray cluster is "
            "the usual reason: `ray stop --force`, then try again, or use `florilegium run`. On devices, start "
            "SuperNodes first."
        )

    def refresh(self, grid: Grid, timeout: float | None = None) -> None:
        """Look which nodes are online; ask new ones for their clients and forget those that left.

        Args:
            grid: the connection to the nodes.
            timeout: seconds that the new ones may take; None: the roster's patience.
        """
        online = list(grid.get_node_ids())
        self._looks += 1
        # One that left and came back is asked again.
        self._failed = {node: failed for node, failed in self._failed.items() if node in online}
        self._refused = {node: reason for node, reason in self._refused.items() if node in online}
        if not set(self.nodes) <= set(online):
            self.nodes = [node for node in self.nodes if node in online]
            self.away |= {i for i, c in self.clients.items() if c.node is not None and c.node not in online}
            self.clients = {i: c for i, c in self.clients.items() if i not in self.away}
        self._doubles = {node: ids for node, ids in self._doubles.items() if node in online}
        held = {client.id for client in self.clients.values()}
        waiting = {node for node, ids in self._doubles.items() if held & ids}
        paused = {node for node, failed in self._failed.items() if failed.until > self._looks}
        known = {*self.nodes, *self._refused, *waiting, *paused} - self._changed
        new = [node for node in online if node not in known]
        self._changed = set()
        queries = [Message(RecordDict(), node, "query.roster") for node in new]
        real = self.deployed or isinstance(grid, HttpGrid)
        seconds = self._patience if timeout is None else timeout
        replies = deliver(grid, queries, seconds, Expected(), deployed=self.deployed, key="roster-timeout")
        for node, reply in zip(new, replies, strict=True):
            self._enrol(node, reply, real)

    def _enrol(self, node: int, reply: Message, real: bool) -> None:
        """Take in the clients of a node that has said who it is.

        Args:
            node, reply: the node and what it said.
            real: whether nodes are known to be devices; else they are what the first one says.
        """
        if reply.has_error():
            times, reason = self._failed[node].times if node in self._failed else 0, describe_error(reply)
            self._failed[node] = Failed(times + 1, self._looks + 2 ** min(times, _LONGEST_PAUSE), reason)
            log.warning("node %d is left out for now: %s", node, reason)
            return
        self._failed.pop(node, None)
        simulated = False
        try:
            answer = Announcement.unpack(reply.content)
            simulated = not (real or answer.pinned)
            own = self._announced(node, answer, real)
        except Exception as error:  # a device may answer anything
            if simulated:
                raise
            self._refused[node] = str(error)
            log.warning("node %d is left out: %s", node, error)
            return
        self.deployed = answer.pinned
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

    def _announced(self, node: int, answer: Announcement, real: bool) -> list[Member]:
        """Return the clients that live on a node: the one of a device; none on a node of a simulation.

        Raises:
            RunError: if the node cannot be one of this run.
        """
        if answer.code != self._code:
            raise RunError(
                f"node {node} runs other code (hash {answer.code}) than the server ({self._code}). In a simulation "
                "the workers import what lies in the folder the SuperLink was started from: start it from an empty "
                "folder, or use `florilegium run`. On a device, restart its SuperNode."
            )
        if (self.nodes and answer.pinned != self.deployed) or (real and not answer.pinned):
            raise RunError(f"node {node}: devices and simulated nodes cannot share a run")
        sizes = list(zip(answer.clients, answer.train, answer.test, answer.labeled, strict=True))
        if answer.pinned and len(sizes) != 1:
            raise RunError(f"node {node} announces {len(sizes)} clients; a device is one")
        for client, train, test, _ in sizes:
            if not re.fullmatch(NAME, client) or train < 0 or test < 0:
                raise RunError(f"node {node} announces client '{client}' with {train} and {test} examples")
        return [Member(client, train, test, labeled=labeled, node=node) for client, train, test, labeled in sizes]

    def _holder(self, client: str) -> int | None:
        return self.clients[client].node if client in self.clients else None

    def ask_again(self, client: str) -> None:
        """Ask the device of a client what it holds before the next round: it may have other data by now."""
        node = self._holder(client)
        if node is not None:
            self._changed.add(node)

    def _admit(self, clients: Iterable[Member]) -> None:
        """Take in the clients that are fit for the run."""
        for client in clients:
            self.away.discard(client.id)
            if not (reason := self.unfit(client)):
                self.clients[client.id] = client
                self.left_out.pop(client.id, None)
                continue
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
