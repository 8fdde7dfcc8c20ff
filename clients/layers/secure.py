"""Secure sums, client side: the clients of a node keep their secrets between messages, and mask what they return.

A client's secrets are a file in its own folder, since messages may reach different processes. It is removed before the
reply that uses it up is sent, so that no message, sent twice, makes a client tell more than it may. A device also keeps
the vector that it has masked, until the next one: where another party has lied, the sum is repeated with new masks.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Self

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from florilegium.clients.core.gather import Gathers, Result, weight_of
from florilegium.clients.core.own_files import OwnFiles
from florilegium.clients.core.reduce import Reduction
from florilegium.clients.core.secure_layout import Layout, Scale
from florilegium.clients.core.secure_wire import RECORD, Stage, StageReply, Terms
from florilegium.clients.core.wire import BYTES_DOWN, BYTES_UP, NOISE, Reply, Request
from florilegium.clients.layers.layer import Layer, Place
from florilegium.common.errors import RunError
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays
from florilegium.privacy.secure_sum.identity import Identity
from florilegium.privacy.secure_sum.masks import NARROW, WIDE, Vector
from florilegium.privacy.secure_sum.party import TOKEN, Party

SECRETS, VECTOR = "secure-sum.json", "secure-vector"
"""Files of a client's own: its secrets of the present exchange, and a device's last vector without masks."""
_SIZES = struct.Struct("<QQ")


@dataclass(frozen=True)
class Secrets:
    """A client's file of secrets.

    Attributes:
        own: where the client's files are.
    """

    own: OwnFiles

    @property
    def path(self) -> Path:
        """The file."""
        return self.own.file(SECRETS)

    def take(self, token: bytes) -> Party:
        """Return the party of exchange ``token``; its file is gone, until it is stored again.

        Raises:
            RunError: if the client takes no part in this exchange, or no longer.
        """
        try:
            text = self.path.read_text(encoding="ascii")
        except FileNotFoundError:
            raise RunError("the client has no secrets of this exchange") from None
        self.path.unlink()
        party = Party.load(text)
        if party.token != token:
            raise RunError("the client's secrets are those of another exchange")
        return party

    def store(self, party: Party) -> None:
        """Write the party's state to the file, which only the owner can read."""
        _write(self.path, party.dump().encode("ascii"))

    def keep(self, token: bytes, vector: Vector) -> None:
        """Keep a vector without masks, which was masked in exchange ``token``."""
        _write(self.own.file(VECTOR), token, _SIZES.pack(*vector.sizes), vector.wide.data, vector.narrow.data)

    def kept(self, token: bytes) -> Vector:
        """Return the vector of exchange ``token``; its file is gone, so that none is masked a third time.

        Raises:
            RunError: if there is none.
        """
        file = self.own.file(VECTOR)
        start = TOKEN + _SIZES.size
        with file.open("rb") if file.exists() else BytesIO() as data:
            head, size = data.read(start), data.seek(0, os.SEEK_END)
            wide, narrow = _SIZES.unpack_from(head.ljust(start), TOKEN)
            if head[:TOKEN] != token or size != start + wide * WIDE.itemsize + narrow * NARROW.itemsize:
                raise RunError("the client has no vector of this exchange")
            vector = Vector.zeros(wide, narrow)
            data.seek(start)
            data.readinto(vector.wide.data)
            data.readinto(vector.narrow.data)
        file.unlink()
        return vector


def _write(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    # Not flushed to disk: what a power cut destroys only makes the exchange fail.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for part in parts:
            file.write(part)


def carry_out(
    stage: Stage,
    files: Callable[[str, str, str], OwnFiles],
    said: Callable[[Exception], str],
    identity: Identity | None = None,
) -> StageReply:
    """Have the clients of a node carry out a stage that is a message of its own; return the reply.

    Args:
        stage: the stage, and what each client is told.
        files: returns where the files of a client are, given its id, the run's name and identity.
        said: returns what the server may know of an error.
        identity: the identity of a device.
    """
    messages, failures = dict[str, bytes](), dict[str, str]()
    for client, told in stage.messages.items():
        try:
            messages[client] = _step(stage, Secrets(files(client, stage.run, stage.identity)), told, identity)
        except Exception as error:  # an error in one client must not affect the others
            failures[client] = said(error)
    return StageReply(messages, failures)


def _step(stage: Stage, secrets: Secrets, told: bytes, identity: Identity | None) -> bytes:
    if stage.stage == "keys":
        if len(stage.token) != TOKEN:
            raise RunError(f"an exchange is named by {TOKEN} bytes")
        party = Party(stage.token)
        reply = party.enter(told, identity)
    else:
        party = secrets.take(stage.token)
        steps: dict[str, Callable[[bytes], bytes]] = {
            "shares": partial(party.share, identity=identity), "open": party.open, "reveal": party.reveal,
        }  # fmt: skip
        reply = _again(party, secrets, told) if stage.stage == "again" else steps[stage.stage](told)
    if stage.stage != "reveal":
        secrets.store(party)
    return reply


def _again(party: Party, secrets: Secrets, told: bytes) -> bytes:
    """Return the vector of an earlier exchange with the masks of this one; ``told``: that one's token, and members."""
    vector = secrets.kept(told[:TOKEN])
    party.mask(vector, told[TOKEN:])
    return b"".join((vector.wide.data, vector.narrow.data))


class MaskedSum:
    """The reply of a node whose clients mask what they return.

    Masks add up as sums do: a node with several clients, in a simulation, sends the sum of their masked vectors.

    Args:
        request: the request, with the terms of the secure sum.
        place: where the clients are. Metrics that are not reportable must be the same for all clients.
    """

    def __init__(self, request: Request, terms: Terms, place: Place) -> None:
        settings = place.settings
        self._settings, self._request, self._terms = settings, request, terms
        self._files, self._optional = partial(place.files, request), place.reportable
        self._deployed = place.deployed
        updates = request.reduce == "delta"
        self._sent: Arrays = request.arrays if updates else {}
        uniform = settings.weighting == "uniform"
        self._scale = Scale(
            terms.parties,
            terms.total,
            uniform,
            terms.norm if updates else 0.0,
            settings.secure_range,
            terms.coarse,
            terms.noise,
        )
        self._done: list[str] = []
        self._layout: Layout | None = None
        self._total = Vector.zeros(0, 0)

    def add(self, client_id: str, result: Result) -> None:
        """Mask the result of a client, and add it to the sum.

        Raises:
            Exception: of several kinds, if the client cannot take part.
        """
        secrets = Secrets(self._files(client_id))
        party = secrets.take(self._terms.token)
        answer, own = result.answer, Reduction(self._request.reduce, self._request.arrays)
        weight = weight_of(answer, self._settings)
        own.add(result.arrays, weight, changed=result.changed)
        sums = own.sums()
        # Arrays beside the model that a client does not return have not changed.
        arrays = sums | {name: np.zeros(array.shape) for name, array in self._sent.items() if name not in sums}
        metrics = {**dict.fromkeys(self._optional, math.nan), **result.counted, **answer.metrics}
        metrics = {name: float(value) for name, value in metrics.items() if name not in (BYTES_DOWN, BYTES_UP)}
        layout = Layout.of(arrays, metrics)
        if self._layout not in (None, layout):
            raise RunError("it returns arrays or metrics of other names or shapes than others do")
        most = self._terms.examples[client_id]
        named = (self._settings.seed, "secure rounding", client_id, self._request.work.round, self._request.phase)
        vector = self._scale.encode(
            layout, arrays, weight, float(answer.num_examples), metrics, most, lambda: numpy_generator(*named)
        )
        if self._deployed:
            secrets.keep(self._terms.token, vector)
        party.mask(vector, self._terms.messages[client_id])
        secrets.store(party)
        if self._layout is None:
            self._layout, self._total = layout, vector
        else:
            self._total.add(vector)
        self._done.append(client_id)

    def reply(self, failures: Mapping[str, str], mark: str = "") -> RecordDict:
        """Return the content of the reply.

        Args:
            failures: the error of each client that failed; its secrets are removed.
            mark: which request it is to.
        """
        for client in failures:
            Secrets(self._files(client)).path.unlink(missing_ok=True)
        arrays: Arrays = {"wide": self._total.wide, "narrow": self._total.narrow} if self._done else {}
        content = Reply(self._done, arrays, {}, dict(failures), mark).pack()
        content[RECORD] = ConfigRecord({"layout": self._layout.text() if self._layout else ""})
        return content


class Secure(Layer):
    """Masks what clients return, with secure aggregation; nothing else leaves a host then."""

    def __init__(self, request: Request, terms: Terms, place: Place) -> None:
        self._request, self._terms, self._place = request, terms, place

    @classmethod
    def opened(cls, request: Request, place: Place) -> Self | None:
        """Return the layer in a run with secure sums.

        Raises:
            RunError: if the request asks for something in the clear, or for other noise than the terms say.
        """
        s, terms = place.settings, request.secure
        if not s.secure_aggregation:
            return None
        if terms is None or request.reduce not in ("delta", "sum") or request.scatter:
            raise RunError("secure-aggregation: clients reply to requests for secure sums alone")
        asked = request.protection.get(NOISE, 0.0) if s.privacy.noise_at == "device" else 0.0
        if request.reduce == "delta" and terms.noise != asked:
            raise RunError("the terms of the secure sum have other noise than the request")
        return cls(request, terms, place)

    def gather(self, gathered: Gathers) -> Gathers:
        """Return the sum of masked vectors."""
        return MaskedSum(self._request, self._terms, self._place)
