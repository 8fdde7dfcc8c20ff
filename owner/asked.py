"""What a server asks of a device: its message read and checked before the app's process gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message

from florilegium.clients.core.secure_wire import STAGE, Stage
from florilegium.clients.core.wire import NOISE, Query, Request
from florilegium.common.errors import RunError
from florilegium.common.foreign import printable
from florilegium.owner.denied import DeniedError
from florilegium.owner.policy import Policy, ReplyRule

ROSTER = "query.roster"
_RECORDS: Mapping[str, frozenset[str]] = {
    ROSTER: frozenset({"frozen", "arrays"}),
    STAGE: frozenset({"secure"}),
    "train": frozenset({"config", "arrays", "scatter", "secure"}),
    "evaluate": frozenset({"config", "arrays", "scatter", "secure"}),
}
"""The types of messages that a device knows, and the records that they may have."""
MESSAGE = "message"
"""The line named for messages that no policy could allow, since they are malformed."""


@dataclass(frozen=True)
class Asked:
    """A request that the policy allows.

    Attributes:
        type: the type of the message.
        run, identity: name of the run, and what distinguishes it from others of its name; "" in a roster query.
        phase: the phase, or the stage of a secure sum; "" in a roster query.
        round, attempt: the number of the round, and of the attempt to carry it out.
        rule: what may leave; None in roster queries and stages of secure sums.
        request: the request; None likewise.
    """

    type: str
    run: str = ""
    identity: str = ""
    phase: str = ""
    round: int = 0
    attempt: int = 0
    rule: ReplyRule | None = None
    request: Request | None = None

    @property
    def full_name(self) -> str:
        """The run's name and what distinguishes it from others of its name."""
        return f"{self.run}/{self.identity}"


def read(message: Message, policy: Policy, client: str, rounds: int | None) -> Asked:
    """Read a message from a server.

    Args:
        message: the message.
        policy: the policy.
        client: the device's client id.
        rounds: the number of rounds that the run's configuration states; None: not known.

    Raises:
        DeniedError: if the policy does not allow it, or it is malformed.
    """
    kind = message.metadata.message_type
    if kind not in _RECORDS:
        raise DeniedError(MESSAGE, f"messages of type '{printable(kind, 80)}' are unknown")
    if other := {*message.content} - _RECORDS[kind]:
        raise DeniedError(MESSAGE, f"a message of type {kind} has a record '{printable(min(other), 80)}'")
    try:
        if kind == ROSTER:
            Query.unpack(message.content)
            return Asked(kind)
        if kind == STAGE:
            return _stage(Stage.unpack(message.content), policy, client)
        request = Request.unpack(message.content, trains=kind == "train", run="", copy=False)
    except (RunError, TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, DeniedError):
            raise
        raise DeniedError(MESSAGE, f"it cannot be read: {printable(error)}") from error
    return _work(kind, request, policy, client, rounds)


def _stage(stage: Stage, policy: Policy, client: str) -> Asked:
    if not any(rule.masked for rule in policy.reply):
        raise DeniedError("reply", "no rule with masked = true allows secure sums")
    if [*stage.messages] != [client]:
        raise DeniedError(MESSAGE, "it is a stage of other clients than this device's")
    return Asked(STAGE, stage.run, stage.identity, stage.stage)


def _work(kind: str, request: Request, policy: Policy, client: str, rounds: int | None) -> Asked:
    work = request.work
    if not request.clients:
        raise DeniedError("reply", "it is a message of a stock strategy, which names no phase")
    if [*request.clients] != [client]:
        raise DeniedError(MESSAGE, "it asks for other clients than this device's")
    if rounds is not None and work.round > rounds:
        raise DeniedError("runs.keys.rounds", f"round {work.round} of a run that has rounds = {rounds}")
    masked = request.secure is not None
    rules = [one for one in policy.reply if (one.phase, one.reduce) == (request.phase, request.reduce)]
    rule = next((one for one in rules if one.masked == masked), None)
    if rule is None:
        how = ", masked" if masked else ""
        raise DeniedError("reply", f"no rule allows phase '{printable(request.phase, 80)}' "
                          f"with reduce = '{printable(request.reduce, 80)}'{how}")  # fmt: skip
    if request.secure is not None:
        terms = request.secure
        if terms.parties < rule.parties:
            raise DeniedError("reply.parties", f"a secure sum of {terms.parties} clients; at least {rule.parties}")
        if rule.norm < float("inf") and not terms.norm <= rule.norm:
            raise DeniedError("reply.norm", f"a secure sum of updates of norm {terms.norm:g}; at most {rule.norm:g}")
    told = request.protection.get(NOISE, 0.0) if request.secure is None else request.secure.noise
    if told < rule.told_noise:
        raise DeniedError(
            "reply.told-noise", f"the request states noise of deviation {told:g}; at least {rule.told_noise:g}"
        )
    return Asked(
        kind, work.run, work.identity, request.phase, work.round, len(work.lineage), rule, request
    )  # fmt: skip
