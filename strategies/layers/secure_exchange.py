"""One exchange of which the server learns sums alone: the stages of SecAgg+ with the nodes of a run.

``keys``, ``shares``, ``open`` and ``reveal`` are short messages; between the last two, clients carry out the phase and
return masked vectors. Where some have lied, the sum is repeated once without them. Clients that have their vectors
already then mask these again (``again``), rather than carry out the phase twice. What a client and the server compute
in each stage is in :mod:`florilegium.privacy.secure_sum`.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from florilegium.clients.core.reports import Reports, range_of
from florilegium.clients.core.secure_layout import METRIC_BOUND, Layout, Scale, Sums
from florilegium.clients.core.secure_wire import RECORD, STAGE, Stage, StageReply, Terms
from florilegium.clients.core.wire import Reply
from florilegium.common.errors import RunError
from florilegium.common.foreign import printable
from florilegium.models.parameters import Arrays, norm, num_bytes
from florilegium.privacy.secure_sum.entry import Entry, shared_keys
from florilegium.privacy.secure_sum.masks import NARROW, WIDE, Vector
from florilegium.privacy.secure_sum.party import TOKEN, ProtocolError
from florilegium.privacy.secure_sum.plan import ImpossibleError, Plan, plan
from florilegium.privacy.secure_sum.ring import PRECISION, at_random, coarse_error, random_error
from florilegium.privacy.secure_sum.tally import Tally, TooFewError
from florilegium.strategies.exchange.exchange import Outcome, deliver, describe_error
from florilegium.strategies.exchange.expected import UNUSABLE, Expected
from florilegium.strategies.exchange.totals import Totals
from florilegium.strategies.settings.server import ServerSettings

log = logging.getLogger("flwr")

LEAST_NOISE, _ROOM = 16, 12
"""The least noise of a client in units of the integers, on which the account relies; and the room for a sum's noise, in
standard deviations above its usual norm."""
ROUNDING = 1e-5
"""What rounding to integers may change in a sum of metrics, for each client or example that it is over."""


@dataclass(frozen=True)
class Task:
    """What a cohort shall carry out, with secure sums as the result.

    Attributes:
        cohort: the clients.
        nodes: the clients of each node.
        run, identity: name of the run, and what distinguishes it from others of its name.
        examples: the most examples that each client may have.
        sent: the arrays that every client receives.
        norm: bound of the norm of an update of these; 0 if clients return statistics.
        exact: whether no rounded update may be longer, since privacy depends on it: then none is rounded at random.
        shapes: names and shapes of the arrays that each client returns.
        reports: the numbers that clients may report.
        noise: standard deviation of the noise that each client adds to its update.
        colluding: number of the cohort that may collude with the server; None: as ``secure-colluding`` says.
        mark: the request that masked vectors must be a reply to, if they name one.
        messages: makes the messages of stage ``mask``, given the clients of each node and the terms for some clients.
    """

    cohort: Sequence[str]
    nodes: Mapping[int, Sequence[str]]
    run: str
    identity: str
    examples: Mapping[str, float]
    sent: Arrays
    norm: float
    exact: bool
    shapes: Mapping[str, tuple[int, ...]]
    reports: Reports
    noise: float
    colluding: int | None
    mark: str
    messages: Callable[[Mapping[int, Sequence[str]], Callable[[Sequence[str]], Terms]], Sequence[Message]]


def plan_for(settings: ServerSettings, parties: int, colluding: int | None = None) -> Plan:
    """Return the parameters of a secure sum of a cohort of this size; :class:`ImpossibleError` if it is too small.

    Args:
        settings: the run's configuration.
        parties: the size.
        colluding: number of them that may collude with the server; None: as ``secure-colluding`` says.
    """
    s = settings
    share = s.secure_colluding if colluding is None else colluding / max(parties, 1)
    return plan(parties, share, s.secure_vanishing, s.secure_failure, deviating=s.secure_deviating)


@dataclass(frozen=True)
class Sent:
    """Masked vectors that have arrived in an exchange.

    Attributes:
        token: names the exchange.
        summed: whose vectors are in the sum.
        layout, scale: what their integers stand for.
    """

    token: bytes
    summed: list[int]
    layout: Layout
    scale: Scale


def credible(name: str, four: tuple[float, float, float, float], sums: Sums, reports: Reports) -> bool:
    """Return whether the four sums of a metric can be those of numbers within its range; if not, warn.

    Args:
        name, four: the metric and its sums.
        sums: all sums of the exchange.
        reports: the numbers that clients may report.
    """
    allowed = range_of(name, reports)
    low, high = (min(max(end, -METRIC_BOUND), METRIC_BOUND) for end in (allowed.low, allowed.high))
    known, total, squares, by_examples = four
    slack, looser = ROUNDING * sums.clients, ROUNDING * max(sums.examples, 1.0)
    possible = (
        0 <= known <= sums.clients
        and known == round(known)
        and low * known - slack <= total <= high * known + slack
        and -slack <= squares <= max(-low, high) ** 2 * known + slack
        and min(low, 0) * sums.examples - looser <= by_examples <= max(high, 0) * sums.examples + looser
    )
    if not possible:
        log.warning(
            "metric '%s' is left out: its sum over %d clients is %.4g, its sum of squares %.4g, and its sum by "
            "examples %.4g, which cannot all be if it lies between %g and %g",
            name, round(sums.clients), total, squares, by_examples, low, high,
        )  # fmt: skip
    return possible


def _check_one(vector: Vector, clients: int, scale: Scale) -> None:
    """Raise :class:`ProtocolError` unless a sum of masked vectors begins with its number of clients."""
    if int(vector.wide[0]) != clients * scale.one():
        raise ProtocolError(f"its vector does not begin with the number of its clients ({clients})")


class SecureExchange:
    """Carries out a task.

    Args:
        settings: the run's configuration.
        grid: the connection to the nodes.
        task: the task.
        deployed: whether the nodes are real devices.

    Attributes:
        plan: the parameters of the sum, once keys have come.
        exposed: bound of the probability that more than the sum comes out, of all attempts together.
        named: why clients are left out from now on, since they have not kept to the protocol.
        error: bound of the rounding error of a sum of updates, as a share of the bound of their norms together.
    """

    def __init__(self, settings: ServerSettings, grid: Grid, task: Task, *, deployed: bool) -> None:
        self._settings, self._grid, self._task, self._deployed = settings, grid, task, deployed
        self._token = b""
        self._numbers = {client: number for number, client in enumerate(task.cohort)}
        self._failures: dict[str, str] = {}
        self._down = self._up = 0.0
        self._revealed = 0
        self._sent: Sent | None = None
        self.plan: Plan | None = None
        self.exposed = self.error = 0.0
        self.named: dict[str, str] = {}

    def carry_out(self) -> Outcome:
        """Return the sums of the clients that have come through; without clients if the exchange has failed."""
        if not self._task.cohort:
            return Outcome([], {}, {})
        try:
            return self._attempt([*self._numbers.values()])
        except (ImpossibleError, TooFewError) as error:
            if not self.named:
                return self._failed(error)
            log.warning("the secure sum has failed: %s. It is repeated without %s", error, ", ".join(self.named))
        try:
            kept = self._numbers.values() if self._sent is None else self._sent.summed
            return self._attempt([party for party in kept if self._task.cohort[party] not in self.named])
        except (ImpossibleError, TooFewError) as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> Outcome:
        log.warning("the secure sum has failed: %s", error)
        without = f", without {', '.join(self.named)}, which did not keep to the protocol" if self.named else ""
        reasons = dict.fromkeys(self._task.cohort, f"the secure sum has failed{without}: {error}")
        return Outcome([], {}, {}, reasons | self._failures, revealed=self._revealed)

    def _attempt(self, parties: Sequence[int]) -> Outcome:
        """Carry out all stages with these parties; those that have sent their vectors already mask them again.

        Raises:
            ImpossibleError, TooFewError: if there is no sum.
        """
        self._token, sent = secrets.token_bytes(TOKEN), self._sent
        entry, public = Entry(self._token), dict[int, bytes]()
        self._stage(
            "keys", {party: entry.invitation(party) for party in parties},
            lambda party, message: public.update({party: entry.admit(party, message)}),
        )  # fmt: skip
        self._name(dict.fromkeys(sorted(shared_keys(public)), "it has the same public key as another"))
        public = {party: own for party, own in public.items() if self._task.cohort[party] not in self.named}
        self._check_enough(len(public))
        self.plan = plan_for(self._settings, len(public), self._task.colluding)
        self.exposed += self.plan.exposed
        tally = Tally(self._token, self.plan, public, entry.certificates)
        self._stage("shares", tally.introductions(), tally.take_shares)
        self._stage("open", tally.forwarded(), tally.take_complaints)
        try:
            members = tally.members()
            self._name(tally.named)
            few = [self._task.cohort[party] for party in public if party not in members]
            self._fail(few, f"{UNUSABLE}: too few neighbours hold its shares")  # unless another reason is known
            total = self._masked(members) if sent is None else self._masked_again(sent, members, parties)
            assert self._sent is not None
            summed, scale = self._sent.summed, self._sent.scale
            self._check_enough(len(summed))
            self._stage("reveal", tally.questions({*summed}), tally.take_revealed)
            self._revealed = len(summed)  # from here on the sum is known, whether or not it is used
            tally.unmask(total)
        finally:
            self._name(tally.named)
        sums = scale.decode(self._sent.layout, total)
        self._check(sums, len(summed), scale)
        s, clients = self._settings, [self._task.cohort[party] for party in sorted(summed)]
        metrics = {name: four for name, four in sums.metrics.items() if credible(name, four, sums, self._task.reports)}
        totals = Totals(
            len(clients), sums.weight, sums.examples, s.weighting == "uniform", metrics, self._down, self._up
        )
        failures = {client: why for client, why in self._failures.items() if client not in clients}
        return Outcome(clients, dict(sums.arrays), {}, failures, totals=totals)

    def _name(self, parties: Mapping[int, str]) -> None:
        """Note that parties have not kept to the protocol, and why."""
        for party, why in parties.items():
            client = self._task.cohort[party]
            self.named.setdefault(client, printable(why))
            self._fail([client], f"{UNUSABLE}: {why}")

    def _stage(self, stage: str, messages: Mapping[int, bytes], take: Callable[[int, bytes], object]) -> None:
        """Have parties carry out a stage that is a message of its own.

        Args:
            stage: name of the stage.
            messages: what each party is told.
            take: reads what a party says, and raises :class:`ProtocolError` if it is unusable; the party is named then.
        """
        task, nodes = self._task, self._nodes(messages)
        requests = [
            Message(
                Stage(
                    stage, self._token, task.run, task.identity, {c: messages[self._numbers[c]] for c in clients}
                ).pack(), node, STAGE,
            )
            for node, clients in nodes.items()
        ]  # fmt: skip
        self._down += sum(map(len, messages.values()))
        replies = deliver(
            self._grid, requests, self._settings.roster_timeout, Expected(), deployed=self._deployed,
            key="roster-timeout",
        )  # fmt: skip
        for clients, reply in zip(nodes.values(), replies, strict=True):
            if reply.has_error():
                self._fail(clients, describe_error(reply))
                continue
            try:
                answer = StageReply.unpack(reply.content)
            except Exception as error:  # a device may send anything
                self._fail(clients, f"{UNUSABLE}: {error}")
                continue
            for client in clients:
                try:
                    message = answer.messages[client]
                    take(self._numbers[client], message)
                except KeyError:
                    self._fail([client], answer.failures.get(client, f"{UNUSABLE}: it does not mention this client"))
                except ProtocolError as error:
                    self._name({self._numbers[client]: str(error)})
                else:
                    self._up += len(message)

    def _masked(self, members: Mapping[int, bytes]) -> Vector:
        """Have parties carry out the phase and mask what they return; return the sum.

        Args:
            members: tells each party whom it has masks in common with.

        Raises:
            TooFewError: if nobody has sent a vector.
        """
        task, cohort = self._task, self._task.cohort
        total = sum(task.examples[cohort[party]] for party in members)
        sent = sum(array.size for array in task.sent.values())
        chance = at_random(sent, len(members)) and not task.exact
        error = (random_error if chance else coarse_error)(sent, len(members))
        coarse = bool(task.norm) and error <= PRECISION
        self.error = error if coarse else 0.0
        uniform = self._settings.weighting == "uniform"
        scale = Scale(len(members), total, uniform, task.norm, self._settings.secure_range, coarse, task.noise)
        if task.noise and not (coarse and task.noise >= LEAST_NOISE * scale.unit()):
            raise RunError(
                f"privacy.noise-at: sums of {len(members)} clients' {sent:,} entries are too long, or the noise too "
                "small, for devices to add it to 32-bit integers; set it to 'server'"
            )

        def terms(clients: Sequence[str]) -> Terms:
            examples = {client: float(task.examples[client]) for client in clients}
            told = {client: members[self._numbers[client]] for client in clients}
            return Terms(self._token, len(members), float(total), examples, task.norm, coarse, task.noise, told)

        nodes = self._nodes(members)
        self._down += sum(map(len, members.values())) + len(members) * num_bytes(task.sent)
        replies = deliver(
            self._grid, task.messages(nodes, terms), self._settings.round_timeout, Expected(), deployed=self._deployed
        )
        parts: list[tuple[list[str], Layout, Vector]] = []
        for clients, reply in zip(nodes.values(), replies, strict=True):
            if reply.has_error():
                self._fail(clients, describe_error(reply))
                continue
            try:
                answer = Reply.unpack(reply.content, copy=False)
                answer.expect(task.mark)
                parts += self._read(answer, reply, clients, scale)
            except ProtocolError as error:
                self._name({self._numbers[client]: str(error) for client in clients})
                continue
            except Exception as problem:  # a device may send anything
                self._fail(clients, f"{UNUSABLE}: {problem}")
                continue
            for client in {*clients} - {*answer.clients}:
                self._fail([client], answer.failures.get(client, f"{UNUSABLE}: it does not mention this client"))
        layouts = Counter(layout for done, layout, _ in parts for _ in done)
        if not layouts:
            raise TooFewError("no client has sent a masked vector")
        usual = max(layouts, key=layouts.__getitem__)
        result, summed = Vector.zeros(*scale.sizes(usual)), list[int]()
        for done, layout, vector in parts:
            if layout != usual:
                self._fail(done, f"{UNUSABLE}: its arrays have other names or shapes than most have sent")
                continue
            result.add(vector)
            summed += [self._numbers[client] for client in done]
            self._up += len(done) * (vector.wide.nbytes + vector.narrow.nbytes)
        self._sent = Sent(self._token, summed, usual, scale)
        return result

    def _masked_again(self, sent: Sent, members: Mapping[int, bytes], parties: Sequence[int]) -> Vector:
        """Have parties mask the vectors that they have sent in an exchange before; return the sum.

        Args:
            sent: these vectors.
            members: tells each party whom it has masks in common with.
            parties: those that the sum must be over.

        Raises:
            TooFewError: if one is lacking: from sums over two sets of parties follows what those in one alone sent.
        """
        sizes = sent.scale.sizes(sent.layout)
        result, summed = Vector.zeros(*sizes), list[int]()

        def take(party: int, message: bytes) -> None:
            split = sizes[0] * WIDE.itemsize
            if len(message) != split + sizes[1] * NARROW.itemsize:
                raise ProtocolError("its vector is not as long as the one before")
            vector = Vector(np.frombuffer(message, WIDE, sizes[0]), np.frombuffer(message, NARROW, sizes[1], split))
            _check_one(vector, 1, sent.scale)
            result.add(vector)
            summed.append(party)

        if {*members} == {*parties}:
            self._stage("again", {party: sent.token + told for party, told in members.items()}, take)
        if {*summed} != {*parties}:
            raise TooFewError("a party has vanished while the sum was repeated, whose update two sums would give away")
        self._sent = Sent(self._token, summed, sent.layout, sent.scale)
        return result

    def _read(
        self, answer: Reply, reply: Message, clients: Sequence[str], scale: Scale
    ) -> list[tuple[list[str], Layout, Vector]]:
        """Return the masked vector of a node's reply, and whose it is; nothing if none of its clients has succeeded.

        Raises:
            Exception: of any kind, if the reply is unusable.
        """
        if not {*answer.clients} <= {*clients} or len({*answer.clients}) != len(answer.clients):
            raise ValueError(f"it replies for the clients {answer.clients}, but was asked for {list(clients)}")
        if not answer.clients:
            return []
        layout = Layout.read(cast(ConfigRecord, reply.content[RECORD])["layout"])
        for name in layout.metrics:
            range_of(name, self._task.reports)
        if layout.arrays != tuple(sorted(self._task.shapes.items())):
            raise ValueError(f"its arrays have shapes {dict(layout.arrays)}, expected {dict(self._task.shapes)}")
        vector = Vector(answer.arrays["wide"], answer.arrays["narrow"])
        if (vector.wide.dtype, vector.narrow.dtype) != (WIDE, NARROW):
            raise ValueError("its vector is not of integers of 64 and 32 bits")
        if (vector.wide.shape, vector.narrow.shape) != tuple((size,) for size in scale.sizes(layout)):
            raise ValueError("its vector is not as long as its layout says")
        _check_one(vector, len(answer.clients), scale)
        return [(answer.clients, layout, vector)]

    def _check_enough(self, left: int) -> None:
        """Raise :class:`TooFewError` before anything is revealed of an exchange that ``min-success`` would reject."""
        if left < self._settings.min_success * len(self._task.cohort):
            raise TooFewError(f"{left} of {len(self._task.cohort)} clients are left, fewer than min-success asks for")

    def _check(self, sums: Sums, clients: int, scale: Scale) -> None:
        """Raise :class:`TooFewError` if the sums cannot be those of as many clients that keep to what was agreed."""
        weight = float(clients) if scale.uniform else sums.examples
        fits = sums.clients == clients and 0 <= sums.examples <= scale.examples and sums.weight == weight
        entries = sum(array.size for array in sums.arrays.values())
        most = (1 + PRECISION) * scale.norm * max(weight, 1.0)
        most += scale.noise * math.sqrt(clients) * (math.sqrt(entries) + _ROOM)
        if not fits or (scale.norm and (norm(sums.arrays) > most or weight < clients)):
            raise TooFewError("a client has sent more than was agreed, or masks that it had not agreed on")

    def _nodes(self, parties: Iterable[int]) -> dict[int, list[str]]:
        """Return the nodes that host some of ``parties``, with these clients."""
        chosen = {self._task.cohort[party] for party in parties}
        nodes = {node: [c for c in clients if c in chosen] for node, clients in self._task.nodes.items()}
        return {node: clients for node, clients in nodes.items() if clients}

    def _fail(self, clients: Iterable[str], reason: str) -> None:
        for client in clients:
            self._failures.setdefault(client, printable(reason))
