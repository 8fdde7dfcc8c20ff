"""The roster of a run: its clients, the nodes that host them, and which node runs which client.

Simulated nodes are interchangeable and any of them can run any client; a real device is pinned to its own clients.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from flwr.app import Message
from flwr.serverapp import Grid

from florilegium.clients.core.wire import REFUSED, VERSION, Announcement, Query
from florilegium.common.errors import RunError
from florilegium.common.foreign import printable
from florilegium.common.settings import NAME
from florilegium.models.frozen import NOTHING, Frozen
from florilegium.partitions.clientdata import validating
from florilegium.strategies.exchange.exchange import POLLS_DEPLOYED, deliver, describe_error
from florilegium.strategies.exchange.expected import Expected

log = logging.getLogger("flwr")

_LONGEST_PAUSE = 4
"""A node without a reply to the roster query is asked again after 1, 2, 4, … rounds, at most 2 to this power."""


@dataclass(frozen=True, slots=True)
class Member:
    """One client as the server knows it.

    Attributes:
        id: its name.
        train, test: numbers of examples that it is trained and evaluated on, the expected costs of both.
        unseen: whether it is held out from training.
        labeled: whether training may use its labels.
        node: the node it is pinned to, or None where any node can run it.
        name: name of a natural client; "" if it has none.
        capacity: the share of each layer's channels that its device can hold, in (0, 1].
        validation: number of validation examples of its own; 0: they are held out from training examples.
    """

    id: str
    train: int
    test: int
    unseen: bool = False
    labeled: bool = True
    node: int | None = None
    name: str = ""
    capacity: float = 1.0
    validation: int = 0

    @property
    def group(self) -> str:
        """The group it is evaluated in: "seen", "unseen", or "unlabeled"."""
        return "unseen" if self.unseen else "seen" if self.labeled else "unlabeled"

    def without_validation(self, fraction: float) -> int:
        """Return the number of training examples without those held out, which are a ``fraction`` of a client's."""
        return self.train - (validating(self.train, fraction) if self.labeled and not self.validation else 0)


@dataclass(frozen=True)
class Failed:
    """A node that failed the roster query: how often, before which refresh it is not asked again, and the reason."""

    times: int
    until: int
    reason: str


def _reaches_devices(grid: Grid) -> bool:
    """Return whether the grid talks to a SuperLink's SuperNodes."""
    # By name, since importing the class takes half a second.
    return any(cls.__name__ == "HttpGrid" for cls in type(grid).__mro__)


def _place(name: str) -> tuple[bool, int, str]:
    """Return the sort key of a client's id."""
    return not name.isdecimal(), int(name) if name.isdecimal() else 0, name


class Roster:
    """The clients and nodes of a run.

    Args:
        population: returns the clients of a simulation; not called if nodes are real devices.
        expected: number of clients to wait for if nodes are real devices.
        code: hash of the server's code; nodes that run other code are refused.
        packages: packages outside this one that the run needs, with versions; devices must have the same.
        patience: seconds that a node may take to reply to the roster query; for it a device starts a process and reads
            its data.

    Attributes:
        nodes: the nodes in use.
        deployed: whether the nodes are real devices.
        unfit: returns why a client cannot take part in the run, "" if it can; set by the strategy.
        left_out: clients that cannot take part in the run, by id, with the reasons.
        away: clients that took part in the run, and whose devices are offline, by id.
    """

    def __init__(
        self,
        population: Callable[[], Sequence[Member]],
        expected: int,
        code: str,
        patience: float = 60.0,
        packages: Sequence[str] = (),
    ) -> None:
        self._population = population
        self._expected = expected
        self._code = code
        self._packages = list(packages)
        self._patience = patience
        self.unfit: Callable[[Member], str] = lambda client: ""
        self._frozen, self._built = NOTHING, ""
        self.nodes: list[int] = []
        self._clients: Mapping[str, Member] = {}
        self._sorted: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
        self.deployed = False
        self.left_out: dict[str, str] = {}
        self.away: dict[str, Member] = {}
        self._refused: dict[int, str] = {}
        self._looks = 0
        self._failed: dict[int, Failed] = {}
        self._changed: set[int] = set()  # nodes to ask again
        self._doubles: dict[int, set[str]] = {}  # nodes that announced clients of other nodes, with these clients

    @property
    def clients(self) -> Mapping[str, Member]:
        """The clients of the run, by id."""
        return self._clients

    @clients.setter
    def clients(self, clients: Mapping[str, Member]) -> None:
        self._clients, self._sorted = clients, {}

    def ready(self) -> bool:
        """Return whether the run can start: on devices, once all expected clients have been announced."""
        return bool(self.clients) and (not self.deployed or len(self.clients) + len(self.left_out) >= self._expected)

    def wait(
        self, grid: Grid, timeout: float, key: str = "start-timeout", until: Callable[[], bool] | None = None
    ) -> None:
        """Query the nodes for their clients until the run can start or continue.

        Args:
            grid: the connection to the nodes.
            timeout: seconds to wait at most.
            key: name of the configuration key that ``timeout`` is from, for error messages.
            until: condition for the end of the wait; default: :meth:`ready`.

        Raises:
            RunError: if the time is over, or as many nodes as are expected have been refused and none accepted, or a
                simulation's code differs.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.refresh(grid, max(1.0, min(self._patience, deadline - time.monotonic())))
            if (until or self.ready)():
                return
            if time.monotonic() > deadline or (not self.clients and len(self._refused) >= max(1, self._expected)):
                raise RunError(self._nobody(timeout, key))
            time.sleep(POLLS_DEPLOYED[1] if self.deployed else 0.1)

    def _nobody(self, timeout: float, key: str) -> str:
        """Return the error message that says which clients or nodes are missing, and why."""
        if self.left_out and not self.clients:
            client, reason = next(iter(self.left_out.items()))
            return f"all {len(self.left_out)} clients are skipped; client {client}: {reason}"
        if without := self._refused | {node: failed.reason for node, failed in self._failed.items()}:
            reasons = "; ".join(f"node {node}: {reason}" for node, reason in without.items())
            return f"{len(self.clients)} clients are ready, but some nodes were skipped: {reasons}"
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

    @property
    def refused(self) -> list[str]:
        """Why nodes that are online were refused, or their owners refuse, a sentence for each; at most 100."""
        owners = [
            f"node {n}: {failed.reason}" for n, failed in self._failed.items() if failed.reason.startswith(REFUSED)
        ]
        return [*self._refused.values(), *owners][:100]

    def refresh(self, grid: Grid, timeout: float | None = None) -> None:
        """Update the nodes and clients: query new nodes for their clients, and remove nodes that are offline.

        Args:
            grid: the connection to the nodes.
            timeout: seconds that new nodes may take to reply; None: the roster's patience.
        """
        online = list(grid.get_node_ids())
        self._looks += 1
        # A node that went offline and came back is asked again.
        self._failed = {node: failed for node, failed in self._failed.items() if node in online}
        self._refused = {node: reason for node, reason in self._refused.items() if node in online}
        if not set(self.nodes) <= set(online):
            self.nodes = [node for node in self.nodes if node in online]
            self.away |= {i: c for i, c in self.clients.items() if c.node is not None and c.node not in online}
            self.clients = {i: c for i, c in self.clients.items() if i not in self.away}
        self._doubles = {node: ids for node, ids in self._doubles.items() if node in online}
        waiting = {node for node, ids in self._doubles.items() if self.clients.keys() & ids}
        paused = {node for node, failed in self._failed.items() if failed.until > self._looks}
        known = {*self.nodes, *self._refused, *waiting, *paused} - self._changed
        new = [node for node in online if node not in known]
        self._changed = set()
        real = self.deployed or _reaches_devices(grid)
        seconds = self._patience if timeout is None else timeout
        replies = self._asked(grid, new, Query(self._frozen.hash), seconds)
        if lacking := [node for node, reply in replies.items() if self._may_be_given(reply)]:
            replies |= self._asked(grid, lacking, Query(self._frozen.hash, self._frozen.arrays), seconds)
        for node, reply in replies.items():
            self._enrol(node, reply, real)

    def _asked(self, grid: Grid, nodes: Sequence[int], query: Query, timeout: float) -> dict[int, Message]:
        """Return the nodes' replies to the roster query."""
        queries = [Message(query.pack(), node, "query.roster") for node in nodes]
        replies = deliver(grid, queries, timeout, Expected(), deployed=self.deployed, key="roster-timeout")
        return dict(zip(nodes, replies, strict=True))

    def _may_be_given(self, reply: Message) -> bool:
        """Return whether a device lacks the run's frozen parameters, and no device can build them."""
        if self._frozen.hash == self._built or reply.has_error():
            return False
        with suppress(Exception):  # a device may reply anything; it is refused when it is enrolled
            answer = Announcement.unpack(reply.content)
            return answer.pinned and answer.code == self._code and answer.frozen != self._frozen.hash
        return False

    def trains_with(self, frozen: Frozen, built: Frozen) -> None:
        """State the frozen parameters of the run, and those that each node builds from the run's seed."""
        self._frozen, self._built = frozen, built.hash

    def _enrol(self, node: int, reply: Message, real: bool) -> None:
        """Add the clients of a node that has replied to the roster query.

        Args:
            node, reply: the node and its reply.
            real: whether nodes are known to be devices; if not, the first node's reply decides.
        """
        if reply.has_error():
            times, reason = self._failed[node].times if node in self._failed else 0, describe_error(reply)
            self._failed[node] = Failed(times + 1, self._looks + 2 ** min(times, _LONGEST_PAUSE), reason)
            log.warning("node %d is skipped for now: %s", node, reason)
            return
        self._failed.pop(node, None)
        simulated = False
        try:
            answer = Announcement.unpack(reply.content)
            simulated = not (real or answer.pinned)
            own = self._announced(node, answer, real)
            self._check_same(node, own)
        except Exception as error:  # a device may reply anything
            if simulated:
                raise
            self._forget(node)
            self._refused[node] = printable(error)
            log.warning("node %d is skipped: %s", node, self._refused[node])
            return
        self.deployed = answer.pinned
        if double := {client.id for client in own if self._holder(client.id) not in (None, node)}:
            first = min(double)
            log.warning(
                "node %d is skipped: client %s is still on node %s. If its device has just restarted, that ends within "
                "a minute; if it has not, two devices have this client-id, and each needs one of its own",
                node, first, self._holder(first),
            )  # fmt: skip
            self._doubles[node] = double
            return
        if node not in self.nodes:
            self.nodes.append(node)
        if self.deployed:
            self._forget(node)
        if self.deployed or not self.clients:
            self._admit(own if self.deployed else self._population())

    def _check_same(self, node: int, own: Sequence[Member]) -> None:
        """Raise :class:`RunError` if a device announces another client than before: it is one for a whole run."""
        earlier = {client.id for client in (*self.clients.values(), *self.away.values()) if client.node == node}
        if own and earlier - {client.id for client in own}:
            raise RunError(
                f"node {node} announces client {own[0].id}, and was client {min(earlier)} in this run; a device is one"
            )

    def _forget(self, node: int) -> None:
        """Remove the clients of a device, which announces them anew or can no longer take part."""
        if gone := [client.id for client in self.clients.values() if client.node == node]:
            self.clients = {i: client for i, client in self.clients.items() if i not in gone}

    def _announced(self, node: int, answer: Announcement, real: bool) -> list[Member]:
        """Return the clients that a node announces: one for a device; none for a node of a simulation.

        Raises:
            RunError: if the node cannot take part in this run.
        """
        who = f"node {node}" + (f" (client {printable(answer.clients[0], 60)})" if len(answer.clients) == 1 else "")
        if answer.wire != VERSION:
            raise RunError(
                f"{who} speaks version {answer.wire} of the messages, the server version {VERSION}. Install the "
                "server's version of Florilegium on the device, then restart its SuperNode."
            )
        if answer.packages != self._packages and answer.pinned:
            raise RunError(
                f"{who} has other packages than this run needs ({', '.join(answer.packages) or 'none'}; needed: "
                f"{', '.join(self._packages) or 'none'}). Install them on the device, then restart its SuperNode."
            )
        if answer.code != self._code:
            raise RunError(
                f"{who} runs other code (hash {answer.code}) than the server ({self._code}). In a simulation "
                "the workers import what lies in the folder the SuperLink was started from: start it from an empty "
                "folder, or use `florilegium run`. On a device, restart its SuperNode."
            )
        if answer.pinned and answer.frozen != self._frozen.hash:
            raise RunError(
                f"{who} has other frozen parameters in its network (hash {answer.frozen or 'none'}) than the "
                f"server ({self._frozen.hash or 'none'}). Let the function or file that key model names give both the "
                "same, such as the same files of pretrained parameters, then restart its SuperNode."
            )
        if (self.nodes and answer.pinned != self.deployed) or (real and not answer.pinned):
            raise RunError(f"{who}: devices and simulated nodes cannot share a run")
        own = answer.validation or [0] * len(answer.clients)
        sizes = list(
            zip(answer.clients, answer.train, answer.test, answer.labeled, answer.capacities, own, strict=True)
        )
        if answer.pinned and len(sizes) != 1:
            raise RunError(f"{who} announces {len(sizes)} clients; a device is one")
        for client, train, test, *_ in sizes:
            if not re.fullmatch(NAME, client) or train < 0 or test < 0:
                raise RunError(f"{who} announces client '{client}' with {train} and {test} examples")
        return [
            Member(client, train, test, labeled=labeled, node=node, capacity=capacity, validation=validation)
            for client, train, test, labeled, capacity, validation in sizes
        ]

    def _holder(self, client: str) -> int | None:
        return self.clients[client].node if client in self.clients else None

    def ask_again(self, client: str) -> None:
        """Query the device of a client again before the next round, since its data may have changed."""
        node = self._holder(client)
        if node is not None:
            self._changed.add(node)

    def _admit(self, clients: Iterable[Member]) -> None:
        """Add the clients that are fit for the run; note why others are not."""
        admitted = dict[str, Member]()
        for client in clients:
            self.away.pop(client.id, None)
            if not (reason := self.unfit(client)):
                admitted[client.id] = client
                self.left_out.pop(client.id, None)
                continue
            log.warning("client %s is skipped: %s", client.id, reason)
            self.left_out[client.id] = reason
        self.clients = {**self.clients, **admitted}

    def ids(self, *groups: str, tested: bool = False) -> list[str]:
        """Return the ids of the clients in ``groups``, sorted; ids that are numbers come first, in numeric order.

        ``tested``: only of those with examples that they are evaluated on.
        """
        key = tested, groups
        if key not in self._sorted:  # every exchange asks, and there may be a million clients
            members = self.clients.values()
            chosen = (client.id for client in members if client.group in groups and (client.test or not tested))
            self._sorted[key] = sorted(chosen, key=_place)
        return self._sorted[key].copy()

    def absent(self, *groups: str) -> list[Member]:
        """Return the clients in ``groups`` whose devices are offline, sorted by id."""
        return [client for _, client in sorted(self.away.items()) if client.group in groups]

    def heaviest(self, ratio: float) -> float | None:
        """Return the largest weight of a device's update: ``ratio`` times the median number of training examples.

        None, for no limit, in a simulation, or if ``ratio`` is 0.
        """
        if not self.deployed or not ratio:
            return None
        return ratio * median([client.train for client in self.clients.values() if client.train] or [1])

    def assign(self, cohort: Sequence[str], *, evaluation: bool) -> dict[int, list[str]]:
        """Distribute ``cohort`` over the nodes: the most expensive clients first, each to the node with the least work.

        Returns:
            The clients of each node; nodes with the most work come first, in the order in which messages are sent.
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
