"""The host: runs the clients a message names in one process, and sends one reply.

A client that raises, or returns NaN or wrong shapes, is skipped and reported with its error; the others are summed. A
message without ``clients`` comes from a stock Flower strategy; the node's own client (in a simulation, the one with the
node's number) replies as stock strategies expect.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import nn

from florilegium.clients.attacks.registry import attack_of
from florilegium.clients.core.augmentation import Augmentation
from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.export import save_model
from florilegium.clients.core.gather import Result
from florilegium.clients.core.kept import Kept
from florilegium.clients.core.own_files import OwnFiles
from florilegium.clients.core.phases import contracts_of
from florilegium.clients.core.reports import COST, GOAL, check_reports, reports_of, usable, validation
from florilegium.clients.core.secure_wire import STAGE, Stage
from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.state import Change, ClientState
from florilegium.clients.core.wire import (
    BYTES_DOWN,
    BYTES_UP,
    GRADIENT_NORM,
    UPDATE_NORM,
    Announcement,
    Query,
    Request,
    Work,
    pack,
    to_files,
)
from florilegium.clients.layers.applied import Applied
from florilegium.clients.layers.layer import Place
from florilegium.clients.layers.secure import carry_out
from florilegium.clients.node.crew import Crew
from florilegium.clients.node.held import Held
from florilegium.clients.node.settling import FLUSHES, settled
from florilegium.common.errors import FileError, FlorilegiumError, RunError
from florilegium.common.seeds import entropy, torch_generator
from florilegium.common.settings import NAME, Section, folder
from florilegium.models.frozen import FILE, NOTHING, Frozen
from florilegium.models.parameters import Arrays, get_arrays, num_bytes
from florilegium.models.scaled import Scaled
from florilegium.partitions.clientdata import ClientData
from florilegium.partitions.loading import task_of
from florilegium.partitions.scaling import Scaling
from florilegium.privacy.allowance import Allowance
from florilegium.privacy.secure_sum.identity import Identity
from florilegium.tasks.weights import FEDERATION, class_weights

log = logging.getLogger("flwr")


class Source(Protocol):
    """Provides a node's clients and their data."""

    pinned: bool
    """Whether the node holds the data of certain clients only (a device), or can run any client (a simulation)."""

    @property
    def allowance(self) -> Allowance | None:
        """The total privacy cost that the node's owner allows its client over all runs; None: any."""

    @property
    def capacity(self) -> float:
        """The share of each layer's channels that the node can hold, in (0, 1]."""

    @property
    def identity(self) -> Identity | None:
        """What the node knows of the identities of devices, for secure sums."""

    def clients(self) -> Sequence[str]:
        """Return the ids of the clients this node holds."""

    def data(self, client_id: str) -> ClientData:
        """Return the data of a client."""

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return how many training examples of each class all clients have together; None on a device."""


class Host:
    """Runs the clients of one node with one network.

    Args:
        client_class: the method's client.
        settings: the run's configuration.
        hyper: the method's own hyper-parameters.
        model: the network, freshly built from the run's seed.
        source: where the clients' data come from.
        state_dir: the node's own folder for client state; "" to use the run's.
        augmentation: random changes of the training images, or None.
        frozen: the network's frozen parameters.
        initial: its other arrays, which nobody changes; None: copies are made.

    Attributes:
        predictor: the model that the last client predicts with, after a test.
    """

    def __init__(
        self,
        client_class: type[BaseClient],
        settings: ClientSettings,
        hyper: Section,
        model: nn.Module,
        source: Source,
        state_dir: str,
        augmentation: Augmentation | None = None,
        frozen: Frozen = NOTHING,
        initial: Arrays | None = None,
    ) -> None:
        self._client_class = client_class
        self._settings = settings
        self._hyper = hyper
        self._model = model
        self._initial = get_arrays(model) if initial is None else initial
        self._folders: dict[tuple[str, str], Path] = {}
        self._held = Held(model, frozen)
        self._source = source
        self._crew = Crew(client_class, settings, hyper, model)
        self._state_dir = state_dir or settings.state_dir
        self._augmentation = augmentation
        self._task = task = task_of(settings)
        held = validation(task)
        self._known = {**reports_of(client_class, task), **held, **COST, **GOAL}
        reportable = [*client_class.reportable(hyper, task), *(held if settings.validation_fraction else ())]
        reportable += GOAL if settings.attack != "none" else ()
        self._place = Place(settings, source.pinned, self._files_for, reportable)
        self.predictor: nn.Module = model
        self._scaling: Scaling | None = None
        self._kept = Kept()
        self._held_back: list[Change] | None = None

    # -------------------------------------------------------------------------------------- messages

    def announce(self, code: str, query: Query) -> Announcement:
        """Return the reply to the roster query: the hash of the code; on a device also its clients and their sizes.

        A device keeps the frozen parameters that come with the query, for all runs that train with them.
        """
        if not self._source.pinned:
            return Announcement(False, code)
        file = self._frozen_file("", query.frozen)
        if query.arrays:
            self._held.keep(query.arrays, query.frozen, file)
        self._held.try_take(query.frozen, file, self._settings.model)
        holds = self._held.frozen.hash
        ids = list(self._source.clients())
        data = [self._source.data(client_id) for client_id in ids]
        labeled = [d.labeled for d in data]
        sizes = [[len(d.train) for d in data], [len(d.test) for d in data], [d.own_validation for d in data]]
        if self._settings.secure_aggregation:  # the server learns the order of magnitude alone
            sizes = [[next_power(size) for size in part] for part in sizes]
        train, test, own = sizes
        return Announcement(
            True, code, ids, train, test, labeled, capacities=[self._source.capacity] * len(ids), frozen=holds,
            validation=own if any(own) else [],
        )  # fmt: skip

    def answer(self, message: Message, own: str) -> Message:
        """Carry out a train or evaluate message; return the reply.

        Args:
            message: the request.
            own: the id of the client that a stock strategy means when it addresses this node.
        """
        if message.metadata.message_type == STAGE:
            reply = carry_out(Stage.unpack(message.content), self._own_files, self._said, self._source.identity)
            return Message(reply.pack(), reply_to=message)
        to_files(message.content)
        trains = message.metadata.message_type.startswith("train")
        request = Request.unpack(message.content, trains=trains, run=str(message.metadata.run_id))
        if not request.clients:
            return Message(self._answer_stock(request, own), reply_to=message)
        if wanted := request.work.frozen:
            self._held.take(wanted, self._frozen_file(request.work.run, wanted), self._settings.model)
        layers, failures = Applied(request, self._place), dict[str, str]()
        gathered = layers.gathered()
        with ThreadPoolExecutor(FLUSHES) as disk:
            work = partial(self._result, request, layers, disk, trains=trains)
            tasks = [partial(work, index) for index in range(len(request.clients))]
            outcomes = settled(self._crew.carry_out(tasks, lambda: self._source.data(request.clients[0]).train))
            clients = iter(request.clients)
            for outcome in outcomes:  # zip would keep a client's model until the next one is trained
                client_id = next(clients)
                if isinstance(outcome, Exception):  # an error in one client must not affect the others
                    failures[client_id] = self._said(outcome)
                    continue
                try:
                    gathered.add(client_id, outcome)
                except Exception as error:
                    failures[client_id] = self._said(error)
                del outcome
        return Message(gathered.reply(failures, request.work.mark(request.phase)), reply_to=message)

    def hold_back(self) -> None:
        """From now on leave clients' new states beside their files, for :meth:`held_back`.

        So a message can be carried out again from the same states, if the process dies before the server has its
        reply.
        """
        self._held_back = []

    def held_back(self) -> list[Change]:
        """Return the new states of the last message's clients, which do not count before they are published."""
        found, self._held_back = self._held_back or [], []
        return found

    def exported(self) -> nn.Module:
        """Return the predictor behind the client's own scaling of its inputs, if it has one."""
        scaling = self._scaling
        return self.predictor if scaling is None else Scaled(self.predictor, scaling.fill, scaling.mean, scaling.std)

    def data(self, client_id: str) -> ClientData:
        """Return the examples that a client trains on and is tested on in this run, without augmentation."""
        data, s = self._source.data(client_id), self._settings
        if s.validation_fraction:
            data = data.hold_back(s.validation_fraction, torch_generator(s.seed, "validation", client_id), self._task)
        data = data.without_test() if s.evaluate_on == "validation" else data
        if not (self._task.choices.class_weights and data.labeled):
            return data
        counts = self._source.class_counts() if self._task.choices.class_weights == FEDERATION else None
        return data.weighted(lambda y: class_weights(self._task, y, counts))

    # --------------------------------------------------------------------------------------- details

    def _result(
        self, request: Request, layers: Applied, disk: Executor, index: int, *, trains: bool
    ) -> tuple[Result, Future[None] | None]:
        """Have a client carry out a request's phase; return its checked result, and the flush of its state.

        Args:
            request: the request.
            layers: what is done to what clients return.
            disk: flushes states.
            index: place of the client in the request.
            trains: whether the request is one of training.
        """
        client_id, s = request.clients[index], self._settings
        client = self._client(client_id, request.work, poisoned=client_id in request.poisoning)
        received = request.arrays | {name: array[index] for name, array in request.scatter.items()}
        answer = client.perform(request.phase, received, request.arguments)
        length = layers.check(answer)
        self._check_numbers(answer)
        leaving, size = layers.leaving(index, answer, client.state)
        change = client.state.draft()
        flush = None
        if change and self._held_back is None:
            flush = disk.submit(change.publish)
        elif change and self._held_back is not None:
            self._held_back.append(change)
            flush = disk.submit(change.flush)
        self.predictor, self._scaling = client.predictor, client.data.scaling
        if request.work.keep and self._source.pinned:
            save_model(client.state.own.folder, self.exported(), client_id, request.work.run, s)
        counted = {BYTES_UP: float(size), BYTES_DOWN: float(num_bytes(received))}
        if trains and s.privacy.unit == "none":
            norms = {UPDATE_NORM: length, GRADIENT_NORM: client.gradient_norm}
            if s.secure_aggregation:  # all clients must send the same metrics
                norms = {name: math.nan if norm is None else norm for name, norm in norms.items()}
            counted |= {name: usable(norm) for name, norm in norms.items() if norm is not None}
        return Result(answer, leaving, layers.changes, counted), flush

    def _said(self, error: Exception) -> str:
        """Return the text of an error for the server; on a device, nothing that may quote data or names of files."""
        if not self._source.pinned:
            return str(error) if isinstance(error, FlorilegiumError) else f"{type(error).__name__}: {error}"
        log.error(
            "%s: %s", type(error).__name__, error, exc_info=None if isinstance(error, FlorilegiumError) else error
        )
        if self._settings.secure_aggregation:  # even which check has failed may tell of the data
            return "it failed; the device's log says why"
        tells = isinstance(error, RunError) and not isinstance(error, FileError)
        return str(error) if tells else f"{type(error).__name__}; the device's log says why"

    def _check_numbers(self, answer: Answer) -> None:
        """Check the numbers that a client reports (:attr:`BaseClient.reports`).

        Where its examples are private, one that is not finite becomes NaN: if it were an error, the client's failure
        would tell something of a single example.

        Raises:
            RunError: if one is NaN or infinite, unless there were no examples to compute it from, or it is a figure of
                the task, which may be undefined for few examples; or not declared, or outside of its range.
        """
        numbers = answer.metrics
        if self._settings.privacy.unit == "example":
            answer.metrics.update({name: usable(value) for name, value in numbers.items()})
        else:
            for name, value in numbers.items() if answer.num_examples else ():
                undefined = (
                    math.isnan(value) and name.removeprefix("validation_").partition("_")[0] in self._task.figures
                )
                if not math.isfinite(value) and not undefined:
                    raise RunError(f"'{name}' is {value}; lower the learning rate or set max-grad-norm")
        try:
            check_reports({name: [value] for name, value in numbers.items()}, self._known)
        except ValueError as error:
            raise RunError(f"{error}; a client's class names what it reports in 'reports'") from error

    def _client(self, client_id: str, work: Work, *, poisoned: bool = False) -> BaseClient:
        state = ClientState(
            self._own_files(client_id, work.run, work.identity), work.round, work.lineage, work.checkpoint,
            work.identity, self._held.frozen, work.best,
        )  # fmt: skip
        self._held.restore()  # what an earlier client has counted or changed there is not this one's
        data = self.data(client_id)
        if poisoned:
            data = self._poisoned(client_id, data)
        if self._augmentation is not None:
            data = data.redrawn(self._augmentation)
        client = self._client_class(
            client_id, data, self._model, self._initial, state, self._settings, self._hyper, work
        )
        client.allowance, client.capacity = self._source.allowance, self._source.capacity
        client.kept, client.task = self._kept, self._task
        return client

    def _poisoned(self, client_id: str, data: ClientData) -> ClientData:
        """Return the data with the training examples of an attacker.

        Raises:
            RunError: if the client is a real device's, which attacks nobody.
        """
        if self._source.pinned:
            raise RunError("attack: clients of simulations alone attack")
        s = self._settings
        attack, seed = attack_of(s.attack, s.attack_keys), entropy(s.seed, "attack", client_id) % 2**63
        return data.changed(lambda examples: attack.poisoned(examples, self._task.targets.classes, seed))

    def _frozen_file(self, run: str, named: str) -> Path:
        """Return the file of frozen parameters that the node does not build: the run's, or on a device its own."""
        if not self._source.pinned:
            return folder(self._settings.runs_dir) / run / FILE
        if named and not re.fullmatch(NAME, named):
            raise _not_a_name(named)
        return folder(self._state_dir or self._settings.runs_dir) / "_frozen" / f"{named}.safetensors"

    def _files_for(self, request: Request, client_id: str) -> OwnFiles:
        return self._own_files(client_id, request.work.run, request.work.identity)

    def _own_files(self, client_id: str, run: str, identity: str) -> OwnFiles:
        if not re.fullmatch(NAME, client_id):
            raise _not_a_name(client_id)
        if (run, identity) not in self._folders:  # expanding ~ for every client takes longer than a light client's work
            if wrong := [name for name in (run, identity) if not re.fullmatch(NAME, name)]:
                raise _not_a_name(wrong[0])
            home, runs = self._state_dir, self._settings.runs_dir
            self._folders = {(run, identity): folder(home) / run if home else folder(runs) / run / "clients"}
        root = self._folders[run, identity]
        return OwnFiles.alone(root / client_id) if self._source.pinned else OwnFiles.within(root, client_id)

    def _answer_stock(self, request: Request, own: str) -> RecordDict:
        """Return the reply that a stock strategy expects: the trained arrays themselves, and the client's metrics."""
        if self._settings.secure_aggregation:
            raise RunError(
                "secure-aggregation: stock strategies do not support it; set it to false, or use the app's own"
            )
        if self._settings.privacy.unit != "none":
            raise RunError("privacy.unit: stock strategies do not support it; set it to 'none', or use the app's own")
        if self._settings.compression.scheme != "none":
            raise RunError(
                "compression.scheme: stock strategies do not support it; set it to 'none', or use the app's own"
            )
        known = contracts_of(self._client_class)[request.phase].arguments
        arguments = {name: value for name, value in request.arguments.items() if name in known}
        if ignored := request.arguments.keys() - arguments.keys():
            log.warning("phase '%s' takes no %s; ignored", request.phase, ", ".join(sorted(ignored)))
        client = self._client(own, request.work)
        answer = client.perform(request.phase, request.arrays, arguments)
        client.state.commit()
        content = RecordDict({"metrics": MetricRecord({"num-examples": answer.num_examples, **answer.metrics})})
        if request.phase == "train":
            content["arrays"] = pack(answer.arrays)
        return content


def _not_a_name(text: str) -> RunError:
    return RunError(f"'{text}' cannot name a folder or file; use letters, digits, '.', '_' and '-'")


def next_power(count: int) -> int:
    """Return the smallest power of two that is no less than ``count``; 0 for 0."""
    return 1 << (count - 1).bit_length() if count else 0
