"""The owner's part of the supervisor: every app, run, request and reply passes here, and is logged.

In mode "report" everything passes as it is, and the log has what would have been refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flwr.app import Message, RecordDict

from florilegium.clients.core.wire import REFUSED
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.foreign import printable
from florilegium.common.settings import Value
from florilegium.owner import asked as requests
from florilegium.owner.account import Account
from florilegium.owner.admission import check_app, check_run, check_time
from florilegium.owner.asked import ROSTER, Asked
from florilegium.owner.cells import Cells, Room
from florilegium.owner.confine.probe import probe
from florilegium.owner.denied import DeniedError
from florilegium.owner.gate import FAILED, Leaving, passed
from florilegium.owner.home import Home
from florilegium.owner.policy import Policy
from florilegium.owner.signing import signer
from florilegium.owner.withdrawn import read_withdrawn

log = logging.getLogger("flwr")

_ALL = 100
"""Refusals of a run by one line of the policy that are all logged; of more, every 128th, 256th, 512th, … is."""
_NUMBER = 8
"""Bytes that a number of a reply counts as, besides its arrays."""


@dataclass
class Admitted:
    """A run that may use the device.

    Attributes:
        app: hash of its bundle.
        config: its configuration, flat.
        announced: what the device has announced, which does not change within a run.
        name: its name, once a request has it.
    """

    app: str
    config: Mapping[str, Value] = field(default_factory=dict)
    announced: RecordDict | None = None
    name: str = ""


class Keeper:
    """Decides for the owner.

    Args:
        home: the owner's folder.
        client: the device's client id.
        defaults: the keys of this version of the suite, with their defaults.
        cells: makes the cells of runs; None: their processes are not confined.
        now: returns local time.

    Raises:
        DataError: if the policy, the log or an account cannot be used.
    """

    def __init__(
        self,
        home: Home,
        client: str,
        defaults: Mapping[str, Value],
        cells: Cells | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.home, self._client, self._defaults, self._now = home, client, defaults, now
        self._cells = cells
        self._account, self._log = Account(home), home.log()
        self._runs: dict[int, Admitted] = {}
        self._refusals: Counter[tuple[int, str]] = Counter()
        self._policy = home.policy()
        self._read = self._state()
        missing = self._missing()
        self._log.add("start", policy=self._hash(), mode=self._policy.mode, client=client, not_enforced=missing)

    @property
    def policy(self) -> Policy:
        """The policy, read again if its file has changed.

        Raises:
            DeniedError: if it can no longer be used: then nothing is allowed.
        """
        if (state := self._state()) != self._read:
            try:
                self._policy = self.home.policy()
            except DataError as error:
                raise DeniedError("policy", str(error)) from error
            self._read = state
            self._log.add("policy", policy=self._hash(), mode=self._policy.mode)
        return self._policy

    def trust(self, run_id: int, content: bytes) -> None:
        """Check a run's app, before anything of it is read.

        Raises:
            DeniedError: if the owner does not trust it.
        """
        digest = hashlib.sha256(content).hexdigest()
        self._runs[run_id] = Admitted(digest)
        with self._watched(run_id, "app"):
            try:
                check_app(self.policy.apps, content, signer)
            except DataError as error:
                raise DeniedError("apps", str(error)) from error

    def admit(self, run_id: int, config: Mapping[str, Value], account: str) -> None:
        """Check a run's configuration, and charge the ε that its code promises to keep to.

        Raises:
            DeniedError: if the policy does not allow the run.
        """
        self._runs[run_id].config = config
        with self._watched(run_id, "run", account=printable(account, 80)):
            policy = self.policy
            check_time(policy.limits, self._now())
            check_run(policy, config, self._defaults, account)
            if config.get("privacy.unit") == "example" and policy.budget.epsilon:
                epsilon = float(config.get("privacy.epsilon") or 0.0)
                if not epsilon:
                    raise DeniedError("budget.epsilon", "the run has no privacy.epsilon, the total that it promises")
                self._account.promise(f"{run_id}", epsilon, policy.budget)
        self._log.add(
            "run", run_id=run_id, app=self._runs[run_id].app, account=printable(account, 80), config=dict(config)
        )

    def ask(self, message: Message) -> Asked | None:
        """Check a request before the app's process gets it; None in mode "report" if it would be refused.

        Raises:
            DeniedError: if the policy does not allow it.
        """
        run_id, run = message.metadata.run_id, self._runs[message.metadata.run_id]
        asked: Asked | None = None
        with self._watched(run_id, "request", type=printable(message.metadata.message_type, 80)):
            policy = self.policy
            check_time(policy.limits, self._now())
            rounds = run.config.get("rounds")
            asked = requests.read(message, policy, self._client, rounds if type(rounds) is int else None)
            run.name = asked.run or run.name
            read_withdrawn(self.home.withdrawn_file).check(run.name, run.app)
            if asked.rule is not None:
                self._account.ask(asked)
        return asked

    def room(self, message: Message) -> Room:
        """Return what the process of a run has for a request.

        Raises:
            DeniedError: if the run's name is none.
        """
        run_id = message.metadata.run_id
        if self._cells is None or self._policy.mode == "report":
            return Room()
        with self._watched(run_id, "request"):
            return self._cells.room(run_id, self._runs[run_id].name, self._policy)
        return Room()

    def watch(self, message: Message) -> Callable[[], None]:
        """Return a function that raises :class:`DeniedError` once a request has to end before it has a reply."""
        run_id = message.metadata.run_id
        run = self._runs[run_id]
        limits = self._cells.watch(run_id, run.name, self._policy.limits) if self._cells else None

        def check() -> None:
            with self._watched(run_id, "request"):
                read_withdrawn(self.home.withdrawn_file).check(run.name, run.app)
                if limits is not None and self._policy.mode == "enforce":
                    limits()

        return check

    def ended(self, run_id: int) -> None:
        """Delete the temporary files of a run whose process has ended."""
        if self._cells is not None:
            self._cells.clear(run_id)

    def leave(self, message: Message, asked: Asked | None, content: RecordDict) -> RecordDict:
        """Return what leaves of a reply, after it was charged and logged.

        Raises:
            DeniedError: if nothing of it may leave.
        """
        run_id, run = message.metadata.run_id, self._runs[message.metadata.run_id]
        leaving: Leaving | None = None
        epsilon = 0.0
        with self._watched(run_id, "reply"):
            policy = self.policy
            read_withdrawn(self.home.withdrawn_file).check(run.name, run.app)  # since the request came
            if asked is not None:
                leaving = passed(asked, content, policy, self._client)
                if asked.type == ROSTER:
                    leaving = self._same(run, leaving)
                size = leaving.bytes + _NUMBER * sum(map(_numbers, leaving.content.values()))
                epsilon = self._account.leave(
                    asked.full_name, size, leaving.multiplier, policy.limits, policy.budget, self._now().date()
                )
        if leaving is None:
            return content
        assert asked is not None
        self._log.add("reply", run_id=run_id, run=run.name, phase=asked.phase or asked.type, round=asked.round,
                      **_facts(leaving), epsilon=epsilon)  # fmt: skip
        return content if self._policy.mode == "report" else leaving.content

    def fail(self, message: Message, why: str) -> str:
        """Log why an app's process failed; return what the server learns of it."""
        self._log.add("failed", run_id=message.metadata.run_id, why=printable(why))
        return why if self._policy.mode == "report" else FAILED

    def told(self, error: DeniedError) -> str:
        """Return what a server learns of a refusal."""
        how = self._policy.tell
        line = "" if how == "nothing" else f": policy, {error.line}"
        return f"{REFUSED}{line}" + (f": {error.why}" if how == "reason" else "")

    def _missing(self) -> list[str]:
        """Return what of the isolation cannot be enforced on this machine, after telling it.

        Raises:
            ConfigurationError: if the policy is strict and something cannot.
        """
        if self._cells is None:
            return []
        self._cells.clear()
        missing = probe(self._cells.cell(0, "", self._policy), self.home.policy_file)
        self._cells.clear(0)
        if missing and self._policy.strict:
            raise ConfigurationError(f"the policy is strict, and this machine cannot enforce: {'; '.join(missing)}")
        for one in missing:
            log.warning("the owner's policy: this machine cannot enforce %s", one)
        return missing

    def _same(self, run: Admitted, leaving: Leaving) -> Leaving:
        """Return an announcement; a run's later ones differ from its first in the hash of frozen parameters alone."""
        if run.announced is None:
            run.announced = leaving.content
        before, now = dict(run.announced["roster"]), dict(leaving.content["roster"])
        if before.get("clients") and now.get("clients"):
            changed = [key for key in {*before, *now} - {"frozen"} if before.get(key) != now.get(key)]
            if changed:
                raise DeniedError("reply", f"it announces another '{min(changed)}' than before in this run")
        elif now.get("clients"):
            run.announced = leaving.content
        return leaving

    @contextmanager
    def _watched(self, run_id: int, what: str, **facts: Any) -> Iterator[None]:
        """Context in which a refusal is logged, and in mode "report" goes no further."""
        try:
            yield
        except DeniedError as error:
            report = self._policy.mode == "report" and error.line not in ("policy", "withdrawn")
            run, times = self._runs[run_id], self._refusals[run_id, error.line] + 1
            self._refusals[run_id, error.line] = times
            if times <= _ALL or times.bit_count() == 1:  # a server that asks for ever must not fill the disk
                self._log.add(
                    "would-refuse" if report else "refused", of=what, run_id=run_id, run=run.name, app=run.app,
                    line=error.line, why=printable(error.why), times=times, **facts,
                )  # fmt: skip
            log.warning("run %d: the %s %s refused: %s", run_id, what, "would be" if report else "is", error)
            if not report:
                raise

    def _state(self) -> tuple[int, int, int]:
        found = self.home.policy_file.stat()
        return found.st_mtime_ns, found.st_size, found.st_mode

    def _hash(self) -> str:
        return hashlib.sha256(self.home.policy_file.read_bytes()).hexdigest()


def _facts(leaving: Leaving) -> dict[str, Any]:
    """Return what the log says of a reply; NaN, which JSON does not know, is left out."""
    found = {
        "bytes": leaving.bytes, "norm": leaving.norm, "rows": leaving.rows, "scaled": leaving.scaled,
        "multiplier": leaving.multiplier, "failure": leaving.failure or None, "hash": leaving.content.object_id,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None and value == value}


def _numbers(record: Any) -> int:
    """Return how many numbers a record of a reply has besides its arrays."""
    return sum(len(value) if isinstance(value, list) else 1 for name, value in record.items() if name != "data")
