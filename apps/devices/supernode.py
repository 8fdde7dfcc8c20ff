"""A SuperNode whose messages are answered by resident processes: ``florilegium device serve``.

To the SuperLink it is a SuperNode like any other: it has the same key, heartbeat and protocol, and takes the options of
``flower-supernode``. That program hands each message through a local HTTP server to a process that it starts for this
message. Here a message is passed to the process of its run (:mod:`florilegium.apps.devices.resident`), and no port is
opened.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flwr.app import Context, Error, Message, RecordDict

from florilegium.apps.devices.resident import App, DiedError, Resident, prepare
from florilegium.apps.devices.superlink import Link, Over, connected
from florilegium.apps.devices.unasked import UNASKED, Owner
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.owner.denied import DeniedError
from florilegium.strategies.exchange.flower_inside import ErrorCode, ObjectTree, update_console_handler

log = logging.getLogger("flwr")

_RUNS = 2
"""Runs whose processes are kept; the process of the run that was silent for longest ends when another run begins."""
_IDLE = 600.0
"""Seconds after which a silent run's process ends: it holds memory, and nobody says when a run is over."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
"""Seconds between two requests for messages: a quarter of the time since the last one, within these bounds. Requests
cost the SuperLink some 20 ms of CPU each, and all devices make them."""
_UNUSED = ("--isolation", "--host", "--port", "--ssl-", "--superexec-auth-secret", "--allow-runtime-dependency")
"""Options of ``flower-supernode`` for its local server and the processes that it starts."""


def serve(options: Sequence[str], owner: Owner = UNASKED) -> None:
    """Take part in runs until a signal ends the process.

    Args:
        options: options of ``flower-supernode``.
        owner: decides what may be done.

    Raises:
        ConfigurationError: if an option is for the local server, which there is none of.
        RunError: if the connection to the SuperLink ends.
    """
    if wrong := [one for one in options if one.startswith(_UNUSED)]:
        raise ConfigurationError(
            f"{wrong[0]}: leave it out; `florilegium device serve` opens no port and installs no packages"
        )
    update_console_handler(timestamps=True)
    prepare(confined=owner is not UNASKED)
    with connected(options) as link:
        log.info("SuperNode %d is connected", link.node)
        _take_part(link, owner)
    raise RunError("the connection to the SuperLink has ended; the reason is above")


def _take_part(link: Link, owner: Owner) -> None:
    """Receive messages and answer them, for ever."""
    answers, last = Answers(link, owner), time.monotonic()
    try:
        while True:
            try:
                if received := link.receive():
                    answers.give(*received)
                    last = time.monotonic()
                answers.end(idle=_IDLE)
            except Over:
                log.info("the run of this message is over")
            time.sleep(min(max(_SHORTEST_PAUSE, (time.monotonic() - last) / 4), _LONGEST_PAUSE))
    finally:
        answers.end()


@dataclass
class _Run:
    """A run that this device takes part in.

    Attributes:
        app, context: its app, and the context kept for it.
        heard: when it was last heard.
        resident: its process, from its first message on.
        name: the name of the state that the process may write, where that is confined.
    """

    app: App
    context: Context
    heard: float
    resident: Resident | None = None
    name: str = ""


class Answers:
    """Answers the messages of several runs, each by a process of its own.

    Args:
        link: the connection to the SuperLink.
        owner: decides what may be done.

    Attributes:
        runs: the runs that have a process, by id; the one that was silent for longest comes first.
    """

    def __init__(self, link: Link, owner: Owner = UNASKED) -> None:
        self._link, self._owner = link, owner
        self.runs: OrderedDict[int, _Run] = OrderedDict()
        self._states: dict[int, RecordDict] = {}  # what apps keep, by series of runs, as in Flower

    def give(self, message: Message, tree: ObjectTree) -> None:
        """Answer one message. If it cannot be fetched or sent, that is logged, and the SuperLink waits in vain."""
        about = message.metadata
        log.info("run %d, round %s: %s", about.run_id, about.group_id or "-", about.message_type)
        try:
            start = time.monotonic()
            reply = self._reply(self._link.content(message, tree))
            self._link.send(reply, time.monotonic() - start)
        except Exception:
            log.exception("message %s could not be answered", about.message_id)

    def end(self, idle: float = 0.0) -> None:
        """End the processes of all runs that were silent for ``idle`` seconds."""
        for run_id in [one for one, run in self.runs.items() if time.monotonic() - run.heard >= idle]:
            self._end(run_id)

    def _end(self, run_id: int) -> None:
        """End the process of a run, if it has one."""
        if (resident := self.runs.pop(run_id).resident) is not None:
            resident.end()
        self._owner.ended(run_id)

    def _reply(self, message: Message) -> Message:
        run_id = message.metadata.run_id
        try:
            run = self._present(run_id) or self._begin(run_id)
            if run is None:
                return Message(Error(ErrorCode.INVALID_FAB, "The FAB could not be verified."), reply_to=message)
            asked = self._owner.ask(message)
            reply = self._carried_out(message, run)
            if reply.has_error():
                said = self._owner.fail(message, str(reply.error.reason))
                return Message(Error(reply.error.code, said), reply_to=message)
            return Message(self._owner.leave(message, asked, reply.content), reply_to=message)
        except DeniedError as error:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, self._owner.told(error)), reply_to=message)
        except Exception:  # of the device itself, such as a damaged account: the server need not wait for its timeout
            log.exception("message %s was not carried out", message.metadata.message_id)
            said = "the device has failed; its log says why"
            return Message(Error(ErrorCode.CLIENT_APP_CRASHED, said), reply_to=message)

    def _carried_out(self, message: Message, run: _Run) -> Message:
        """Have the process of a run carry out a message; if it dies, the reply is an error."""
        room = self._owner.room(message)
        if run.resident is not None and run.name != room.name:  # by now it is known where its state lies
            run.resident.end()
            run.resident = None
        if run.resident is None:
            run.resident, run.name = Resident(run.app, room.cell, room.most), room.name
        own = {"data-path": room.data} if room.data else {}
        context = replace(run.context, node_config={**run.context.node_config, **own})
        try:
            reply, after = run.resident.answer(message, context, self._owner.watch(message))
            run.context = replace(after, node_config=run.context.node_config)
        except DiedError as error:
            log.error("%s", error)
            reply = Message(Error(ErrorCode.CLIENT_APP_CRASHED, str(error)), reply_to=message)
        self._states[run.context.series_id] = run.context.state
        run.heard = time.monotonic()
        return reply

    def _present(self, run_id: int) -> _Run | None:
        """Return a run whose process lives; one that has died between two messages is forgotten."""
        if run_id in self.runs and (resident := self.runs[run_id].resident) is not None and not resident.alive:
            self._end(run_id)
        if run_id in self.runs:
            self.runs.move_to_end(run_id)
        return self.runs.get(run_id)

    def _begin(self, run_id: int) -> _Run | None:
        """Return a run that may use this device; None if its app is signed by nobody whom the device trusts."""
        found = self._link.app(run_id, self._owner.trust)
        if found is None:
            log.error("run %d: its app has no signature of any of the --trusted-entities", run_id)
            return None
        app, context, account = found
        self._owner.admit(run_id, context.run_config, account)
        context.state = self._states.get(context.series_id, context.state)
        while len(self.runs) >= _RUNS:
            self._end(next(iter(self.runs)))
        self.runs[run_id] = run = _Run(app, context, time.monotonic())
        return run
