"""The policy of a device's owner: a TOML file, read and checked as a whole. What it does not name is denied."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator

from florilegium.common.errors import DataError
from florilegium.common.places import read_utf8
from florilegium.common.settings import Section
from florilegium.owner.allowed import ANY, problem
from florilegium.owner.owned import check_owned

VERSION = 1
"""Version of the format. A file of another version is refused, so that no line gets another meaning."""
_HOURS = r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-4]):[0-5]\d"
_DIGEST = re.compile("[0-9a-f]{64}")


def _digests(values: list[str]) -> list[str]:
    for value in values:
        if not _DIGEST.fullmatch(value):
            raise ValueError(f"'{value}' is not 64 hexadecimal digits in lower case")
    return values


Digests = Annotated[list[str], AfterValidator(_digests)]


class Apps(Section):
    """Whose code may run on the device.

    Attributes:
        hashes: SHA-256 of bundles (FABs) that may run.
        keys: ed25519 public keys; what one of them has signed may run.
        revoked: keys and hashes that count no more, even if they are listed above.
        any: whether every app may run; then only what the gate enforces holds.
    """

    hashes: Digests = Field(default_factory=list)
    keys: Digests = Field(default_factory=list)
    revoked: Digests = Field(default_factory=list)
    any: bool = False


class Runs(Section):
    """Which runs may use the device.

    Attributes:
        accounts: who may start them, as the SuperLink names its users; "any".
        methods: values of key ``method``.
        keys: for other keys the allowed values (:mod:`florilegium.owner.allowed`).
        free: keys that may have any value. A key that is named nowhere must have its default.
    """

    accounts: list[str] = Field(default_factory=list)
    methods: list[str] = Field(default_factory=list)
    keys: dict[str, Any] = Field(default_factory=dict)
    free: list[str] = Field(default_factory=list)

    @field_validator("keys")
    @classmethod
    def _can_be_met(cls, keys: dict[str, Any]) -> dict[str, Any]:
        for key, allowed in keys.items():
            if wrong := problem(allowed):
                raise ValueError(f"{key}: {wrong}")
            if key == "method":
                raise ValueError("method: list the methods in runs.methods")
        return keys


class Data(Section):
    """What a run may learn of.

    Attributes:
        rows: the least number of training examples that a reply may be about.
        columns: columns of a table that may be read; "any" in the list: all.
        announce: the number of examples that the device states in all messages in place of the true ones; 0: these.
    """

    rows: int = Field(ge=1)
    columns: list[str] = Field(default_factory=list)
    announce: int = Field(0, ge=0, le=10**9)


class Limits(Section):
    """When, how much and how long.

    Attributes:
        until: the last day on which anything leaves the device.
        hours: times of day (local time) at which requests are carried out, such as "18:00-06:00".
        run_bytes, day_bytes: the most bytes that leave the device for one run, and on one day.
        seconds: the longest time that a request may take.
        memory: MB that a run's processes may each hold; disk: MB that they may keep.
        files: open files; processes: 0: a run starts none, only threads; else it may.
        user: name of the system's user as whom a run's processes work; "": the supervisor's.
    """

    until: datetime.date
    hours: list[Annotated[str, Field(pattern=f"^{_HOURS}$")]]
    run_bytes: int = Field(ge=0)
    day_bytes: int = Field(ge=0)
    seconds: float = Field(3600.0, gt=0)
    memory: int = Field(8192, ge=64)
    disk: int = Field(4096, ge=1)
    files: int = Field(1024, ge=64)
    processes: int = Field(0, ge=0)
    user: str = ""


class Budget(Section):
    """The privacy budget over all runs and apps: ε at δ."""

    epsilon: float = Field(default=0.0, ge=0)
    delta: float = Field(default=1e-5, gt=0, lt=0.5)


class ReplyRule(Section):
    """One kind of reply that may leave, and what the gate does to it.

    Attributes:
        phase: the phase of the request.
        reduce: how the request asks for arrays (docs/wire.md).
        masked: whether these are requests of a secure sum, whose arrays the gate cannot see into.
        norm: the largest Euclidean norm of the arrays, relative to a weight of 1. Longer ones are scaled down.
            0: none may leave; inf: any length, which no noise protects.
        noise: Gaussian noise that the gate adds to the arrays: its standard deviation ÷ norm.
        share: the number of devices whose noise adds up to ``noise``; 1: each adds all of it.
        parties: the least number of clients of a secure sum.
        told_noise: the least deviation that a request may state where the app adds noise (``noise-at = "device"``).
        figures: names of the numbers that may leave besides those of every reply.
        digits: significant digits of each figure.
        bytes: the most bytes of arrays.
        times: how often the phase may be asked for in one round.
    """

    phase: str = Field(min_length=1)
    reduce: Literal["delta", "deltas", "sum", "stack"]
    masked: bool = False
    norm: float = Field(0.0, ge=0, allow_inf_nan=True)
    noise: float = Field(0.0, ge=0)
    share: int = Field(1, ge=1)
    parties: int = Field(2, ge=2)
    told_noise: float = Field(0.0, ge=0)
    figures: list[str] = Field(default_factory=list)
    digits: int = Field(3, ge=1, le=17)
    bytes: int = Field(0, ge=0)
    times: int = Field(1, ge=1)

    @field_validator("norm")
    @classmethod
    def _is_a_number(cls, norm: float) -> float:
        if norm != norm:
            raise ValueError("norm is NaN")
        return norm


class Policy(Section):
    """A whole policy.

    Attributes:
        version: of the format.
        mode: "report" lets everything happen and logs what would be refused or changed.
        strict: whether the device does not start where something of the isolation cannot be enforced.
        tell: what a server learns of a refusal: nothing more, the policy's line, or the reason, too.
        reply: the kinds of replies that may leave.
    """

    version: int
    mode: Literal["enforce", "report"] = "enforce"
    strict: bool = False
    tell: Literal["nothing", "line", "reason"] = "line"
    apps: Apps
    runs: Runs
    data: Data
    limits: Limits
    budget: Budget = Field(default_factory=Budget)
    reply: list[ReplyRule] = Field(default_factory=list)

    @field_validator("version")
    @classmethod
    def _is_this_one(cls, version: int) -> int:
        if version != VERSION:
            raise ValueError(f"the policy has version {version}; this version of Florilegium reads {VERSION}")
        return version

    @field_validator("reply")
    @classmethod
    def _goes_together(cls, rules: list[ReplyRule]) -> list[ReplyRule]:
        kinds = [(rule.phase, rule.reduce, rule.masked) for rule in rules]
        for index, (rule, kind) in enumerate(zip(rules, kinds, strict=True), 1):
            if kind in kinds[: index - 1]:
                raise ValueError(f"number {index}: there is already a rule for phase '{rule.phase}', '{rule.reduce}'")
            if rule.noise and not 0 < rule.norm < float("inf"):
                raise ValueError(f"number {index}: noise needs a finite norm above 0, relative to which it is")
            if rule.noise and rule.masked:
                raise ValueError(
                    f"number {index}: the gate cannot add noise to a masked sum; told-noise bounds the app's"
                )
        return rules


def read_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        DataError: if others than its owner may change the file, or it is no policy; the message names the line.
    """
    check_owned(path)
    try:
        return Policy.model_validate(tomllib.loads(read_utf8(path)))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: it is not TOML: {error}") from error
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(str(part) for part in wrong["loc"])
        said = wrong["msg"].removeprefix("Value error, ")
        if wrong["type"] == "extra_forbidden":
            said = "there is no such line"
        raise DataError(f"{path}: {where}: {said}") from error


def open_to_all(names: list[str]) -> bool:
    """Return whether a list of names has "any"."""
    return ANY in names
