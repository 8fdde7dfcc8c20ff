"""A party of a secure sum, a device: keys, shares, its masked vector, and the shares that it reveals of others.

The stages follow each other strictly: a party sends one masked vector for its keys, and reveals shares once. It
never reveals both secrets of another party: its seed, without which the sum keeps its own mask, and its mask key, which
takes away the masks that it has in common with others.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from florilegium.privacy.secure_sum import keys, shamir
from florilegium.privacy.secure_sum.identity import CERTIFICATE, Identity
from florilegium.privacy.secure_sum.masks import Vector

TOKEN = 16
"""Length in bytes of what names an exchange, and keeps messages of different exchanges apart."""
PUBLIC = 3 * keys.KEY
"""Length of a party's public keys: for sealing shares, for masks, and to verify its signatures."""
ENTRY = PUBLIC + keys.KEY + keys.SIGNATURE
"""Length of a party's first message: its public keys, and what shows that it holds them."""
_HEADER, _NUMBER, _CHOICE = struct.Struct("<III"), struct.Struct("<I"), struct.Struct("<IB")
_COMPLAINT = b"florilegium complaint: its share cannot be opened"
_SHARES = 2 * shamir.SHARE
SEALED = _SHARES + keys.SEALED
"""Length of two sealed shares."""
LEAF = 16
"""Length of what stands for a party in the list of all parties' keys."""
SEED, MASK_KEY = 0, 1
"""Which share is revealed: of the seed of a party whose vector is in the sum, of the mask key of one that vanished."""


class ProtocolError(ValueError):
    """A message that an honest server does not send."""


@dataclass
class Party:
    """The state of a party between two stages.

    Attributes:
        token: names the exchange.
        index: the party's number, from 0 on.
        stage: the stage that it has finished.
        threshold: t, how many shares give a secret.
        seal_key, mask_key, sign_key, seed: its secrets, "" in hexadecimal once they are not needed any more.
        peers: the public keys of its neighbours, by their numbers.
        shares: the shares of its neighbours' seeds and mask keys, those that it could open.
        senders: the neighbours that have sent shares.
        cohort: a hash of the list of all parties' keys, if the server has sent one; shares can be opened by those alone
            that have seen the same list.
    """

    token: bytes
    index: int = 0
    stage: str = "keys"
    threshold: int = 0
    seal_key: bytes = field(default_factory=keys.new_key)
    mask_key: bytes = field(default_factory=keys.new_key)
    sign_key: bytes = field(default_factory=keys.new_key)
    seed: bytes = field(default_factory=keys.new_key)
    peers: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)
    senders: list[int] = field(default_factory=list)
    cohort: bytes = b""

    def public(self) -> bytes:
        """Return the public keys, which the server passes to the neighbours."""
        return keys.public_key(self.seal_key) + keys.public_key(self.mask_key) + keys.verification_key(self.sign_key)

    def enter(self, message: bytes, identity: Identity | None = None) -> bytes:
        """Return the public keys, what shows the server that the party holds them, and a certificate if it has one.

        Args:
            message: as :func:`invitation` makes it.
            identity: the device's identity.

        Raises:
            ProtocolError: if it is malformed, or the server's key is of low order.
        """
        self._expect("keys")
        if len(message) != _NUMBER.size + keys.KEY:
            raise ProtocolError(f"an invitation has {_NUMBER.size + keys.KEY} bytes, not {len(message)}")
        (self.index,), server = _NUMBER.unpack_from(message), message[_NUMBER.size :]
        secrets = [_agreed(key, server, b" possession" + self.token) for key in (self.seal_key, self.mask_key)]
        shown = possession(secrets, self.index, self.token)
        public = self.public()
        certificate = identity.certify(certified(self.token, self.index, public)) if identity else b""
        return public + shown + keys.sign(self.sign_key, shown) + certificate

    def share(self, message: bytes, identity: Identity | None = None) -> bytes:
        """Read the neighbours' public keys; return a commitment to the seed, and sealed shares for each neighbour.

        Args:
            message: as :func:`introduction` makes it.
            identity: the device's identity.

        Raises:
            ProtocolError: if it is malformed, or the threshold is so low that both secrets could be had, or neighbours'
                keys are not in the list of all parties' or not certified by devices that this one knows.
        """
        self._expect("keys")
        self.index, self.threshold, count = _HEADER.unpack_from(_long_enough(message, _HEADER.size))
        end = _HEADER.size + count * (_NUMBER.size + PUBLIC)
        entries = _entries(message[_HEADER.size : end], PUBLIC, count)
        self.cohort, certificates = self._listed(message[end:], entries)
        if identity is not None:
            signed = {peer: certified(self.token, peer, public) for peer, public in entries.items()}
            try:
                identity.check(signed, certificates)
            except ValueError as error:
                raise ProtocolError(str(error)) from error
        if self.index in entries or not len(entries) < 2 * self.threshold <= 2 * len(entries):
            raise ProtocolError(f"{len(entries)} neighbours and threshold {self.threshold} protect nothing")
        every = [
            own[i : i + keys.KEY] for own in (*entries.values(), self.public()) for i in range(0, PUBLIC, keys.KEY)
        ]
        if len({*every}) < len(every):
            raise ProtocolError("two parties have the same keys")
        self.peers, self.stage = entries, "shares"
        places = [peer + 1 for peer in entries]
        seeds, mask_keys = (shamir.split(secret, self.threshold, places) for secret in (self.seed, self.mask_key))
        sealed = [
            number(peer) + keys.seal(self._sealing(peer), seed + mask_key, self._seal(self.index, peer))
            for peer, seed, mask_key in zip(entries, seeds, mask_keys, strict=True)
        ]
        return keys.commitment(self.seed, self._context(self.index)) + b"".join(sealed)

    def open(self, message: bytes) -> bytes:
        """Read the neighbours' sealed shares; return a signed complaint about each neighbour whose cannot be opened.

        Args:
            message: the shares that :meth:`share` of the neighbours made for this party, each with its sender's number.

        Raises:
            ProtocolError: if it is malformed, or fewer neighbours than the threshold have sent shares.
        """
        self._expect("shares")
        received = _entries(message, SEALED)
        if not received.keys() <= self.peers.keys() or len(received) < self.threshold:
            raise ProtocolError(f"shares came from {len(received)} parties, at least {self.threshold} are needed")
        complaints = b""
        for peer, sealed in received.items():
            try:
                self.shares[peer] = keys.unseal(self._sealing(peer), sealed, self._seal(peer, self.index))
            except ValueError:
                complaints += number(peer) + keys.sign(self.sign_key, complaint(self.token, self.index, peer))
        self.senders, self.stage, self.seal_key, self.sign_key = [*received], "open", b"", b""
        return complaints

    def mask(self, vector: Vector, message: bytes) -> None:
        """Add the party's masks to ``vector``, all but its first wide entry, and forget the party's secrets.

        Args:
            vector: the party's contribution to the sum, which begins with a number that is no secret; changed in place.
            message: the neighbours with which it has masks in common, as :func:`members` makes it.

        Raises:
            ProtocolError: if it is malformed, or fewer neighbours than the threshold are left.
        """
        self._expect("open")
        peers = [_NUMBER.unpack_from(message, start)[0] for start in range(0, len(message) - 3, _NUMBER.size)]
        if len(message) % _NUMBER.size or not {*peers} <= {*self.senders} or len({*peers}) < len(peers):
            raise ProtocolError("masks are to be in common with others than the neighbours that have sent shares")
        if len(peers) < self.threshold:
            raise ProtocolError(f"{len(peers)} neighbours are left, at least {self.threshold} are needed")
        clear = vector.wide[:1].copy()
        common = [(mask_seed(self.mask_key, self.peers[peer], self.token), sign(self.index, peer)) for peer in peers]
        vector.add_masks([(self.seed, 1), *common])
        vector.wide[:1] = clear
        self.shares = {peer: share for peer, share in self.shares.items() if peer in peers}
        self.stage, self.mask_key, self.seed = "mask", b"", b""

    def reveal(self, message: bytes) -> bytes:
        """Return the shares that the server asks for, in its order; the party has none left afterwards.

        Args:
            message: as :func:`question` makes it.

        Raises:
            ProtocolError: if it asks for shares that the party does not have, for both of a party, or for the seeds of
                fewer neighbours than the threshold.
        """
        self._expect("mask")
        choices = [
            _CHOICE.unpack_from(message, start) for start in range(0, len(message) - _CHOICE.size + 1, _CHOICE.size)
        ]
        asked = {peer for peer, _ in choices}
        if len(message) % _CHOICE.size or len(asked) < len(choices) or not asked <= self.shares.keys():
            raise ProtocolError("it asks for shares that are not there, or for two of one party")
        if any(kind not in (SEED, MASK_KEY) for _, kind in choices):
            raise ProtocolError("it asks for a share of an unknown kind")
        if sum(kind == SEED for _, kind in choices) < self.threshold:
            raise ProtocolError(f"fewer than {self.threshold} neighbours have sent their vectors")
        shares, self.shares, self.stage = self.shares, {}, "reveal"
        return b"".join(shares[peer][kind * shamir.SHARE :][: shamir.SHARE] for peer, kind in choices)

    def dump(self) -> str:
        """Return the state as text."""
        state = asdict(self)
        return json.dumps(
            state | {name: _hex(value) for name, value in state.items() if isinstance(value, bytes | dict)}
        )

    @staticmethod
    def load(text: str) -> Party:
        """Return the party whose state :meth:`dump` returned."""
        state = json.loads(text)
        for name in ("token", "seal_key", "mask_key", "sign_key", "seed", "cohort"):
            state[name] = bytes.fromhex(state[name])
        for name in ("peers", "shares"):
            state[name] = {int(peer): bytes.fromhex(value) for peer, value in state[name].items()}
        return Party(**state)

    def _expect(self, stage: str) -> None:
        if self.stage != stage:
            raise ProtocolError(f"the stage after '{self.stage}' was expected, not the one after '{stage}'")

    def _sealing(self, peer: int) -> bytes:
        """Return the key with which this party and a neighbour seal shares."""
        return _agreed(self.seal_key, self.peers[peer][: keys.KEY], b" shares" + self.token)

    def _listed(self, message: bytes, entries: Mapping[int, bytes]) -> tuple[bytes, dict[int, bytes]]:
        """Return the hash of the list of all parties' keys, and the neighbours' certificates; both empty without them.

        Raises:
            ProtocolError: if the list is malformed, or has other keys of this party or its neighbours.
        """
        if not message:
            return b"", {}
        (count,) = _NUMBER.unpack_from(_long_enough(message, _NUMBER.size))
        end = _NUMBER.size + count * (_NUMBER.size + LEAF)
        leaves = _entries(message[_NUMBER.size : end], LEAF, count)
        for party, public in {**entries, self.index: self.public()}.items():
            if leaves.get(party) != leaf(public):
                raise ProtocolError(f"the list of all parties has other keys of party {party}")
        return keys.commitment(message[_NUMBER.size : end], self.token), _entries(message[end:], CERTIFICATE)

    def _seal(self, *numbers: int) -> bytes:
        return self.cohort + self._context(*numbers)

    def _context(self, *numbers: int) -> bytes:
        return self.token + b"".join(map(number, numbers))


def invitation(party: int, server: bytes) -> bytes:
    """Return the message that asks a party for its keys, with its number and the server's public key."""
    return number(party) + server


def possession(secrets: Sequence[bytes], party: int, token: bytes) -> bytes:
    """Return what shows that a party holds its keys: a hash of what these and the server's key have in common."""
    return keys.commitment(b"".join(secrets), token + number(party))


def complaint(token: bytes, party: int, peer: int) -> bytes:
    """Return what ``party`` signs if it cannot open the shares of ``peer``."""
    return _COMPLAINT + token + number(party) + number(peer)


def complaints(message: bytes) -> dict[int, bytes]:
    """Return the signatures of a party's complaints, by the neighbours that they are about.

    Raises:
        ProtocolError: if they are malformed.
    """
    return _entries(message, keys.SIGNATURE)


def members(peers: Iterable[int]) -> bytes:
    """Return the message that tells a party with which neighbours it has masks in common."""
    return b"".join(map(number, peers))


def introduction(
    index: int,
    threshold: int,
    neighbours: Mapping[int, bytes],
    cohort: bytes = b"",
    certificates: Mapping[int, bytes] | None = None,
) -> bytes:
    """Return the message that tells a party its number, the threshold, and its neighbours' public keys.

    Args:
        index, threshold, neighbours: these.
        cohort: the list of all parties' keys, as :func:`listed` makes it; b"" in exchanges without certificates.
        certificates: those of some parties.
    """
    entries = b"".join(number(peer) + public for peer, public in neighbours.items())
    shown = b"".join(number(peer) + one for peer, one in (certificates or {}).items() if peer in neighbours)
    return _HEADER.pack(index, threshold, len(neighbours)) + entries + cohort + shown


def listed(public: Mapping[int, bytes]) -> bytes:
    """Return the list of all parties' keys: a hash of each party's."""
    return number(len(public)) + b"".join(number(party) + leaf(own) for party, own in sorted(public.items()))


def leaf(public: bytes) -> bytes:
    """Return what stands for a party's public keys in the list of all parties'."""
    return keys.commitment(public, b"florilegium secure sum: a party")[:LEAF]


def certified(token: bytes, party: int, public: bytes) -> bytes:
    """Return what the certificate of a party's keys in an exchange is for."""
    return token + number(party) + public


def question(choices: Mapping[int, int]) -> bytes:
    """Return the message that asks a party for shares: of each of its neighbours ``SEED`` or ``MASK_KEY``."""
    return b"".join(_CHOICE.pack(peer, kind) for peer, kind in choices.items())


def answers(message: bytes, asked: Mapping[int, int]) -> dict[int, bytes]:
    """Return the shares of a party's reply to a question, by the neighbours they belong to.

    Raises:
        ProtocolError: if there are not as many as were asked for.
    """
    if len(message) != len(asked) * shamir.SHARE:
        raise ProtocolError(f"{len(message)} bytes are not {len(asked)} shares")
    return {peer: message[i * shamir.SHARE :][: shamir.SHARE] for i, peer in enumerate(asked)}


def sealed_shares(message: bytes, expected: Mapping[int, object]) -> tuple[bytes, dict[int, bytes]]:
    """Return the commitment and the sealed shares of a party, by the neighbours that they are for.

    Raises:
        ProtocolError: if they are not for the ``expected`` neighbours.
    """
    entries = _entries(message[keys.KEY :], SEALED)
    if entries.keys() != expected.keys():
        raise ProtocolError("shares for others than the party's neighbours")
    return message[: keys.KEY], entries


def passed_on(sealed: Mapping[int, bytes]) -> bytes:
    """Return the message that brings a party its neighbours' sealed shares."""
    return b"".join(number(peer) + entry for peer, entry in sealed.items())


def mask_seed(private: bytes, public: bytes, token: bytes) -> bytes:
    """Return the seed of the mask that two parties have in common.

    Args:
        private: the private key for masks of one.
        public: all public keys of the other.
        token: names the exchange.
    """
    return _agreed(private, mask_key_of(public), b" mask" + token)


def verification_key_of(public: bytes) -> bytes:
    """Return the key among a party's public keys with which its signatures are verified."""
    return public[2 * keys.KEY :]


def mask_key_of(public: bytes) -> bytes:
    """Return the key for masks among a party's public keys."""
    return public[keys.KEY : 2 * keys.KEY]


def number(party: int) -> bytes:
    """Return a party's number as it stands in messages and contexts."""
    return _NUMBER.pack(party)


def sign(index: int, peer: int) -> int:
    """Return whether party ``index`` adds (1) or subtracts (−1) the mask that it has in common with ``peer``."""
    return 1 if index < peer else -1


def _agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    try:
        return keys.agree(private, public, purpose)
    except ValueError as error:
        raise ProtocolError("a public key is not valid") from error


def _long_enough(message: bytes, size: int) -> bytes:
    if len(message) < size:
        raise ProtocolError(f"{len(message)} bytes are too few")
    return message


def _entries(data: bytes, size: int, count: int | None = None) -> dict[int, bytes]:
    """Return entries of ``size`` bytes by the numbers before them, ``count`` if given."""
    step = _NUMBER.size + size
    starts = range(0, len(data) - step + 1, step)
    entries = {_NUMBER.unpack_from(data, start)[0]: data[start + _NUMBER.size : start + step] for start in starts}
    if len(data) != len(entries) * step or (count is not None and len(entries) != count):
        raise ProtocolError(f"{len(data)} bytes are not one entry of {size} bytes for each party")
    return entries


def _hex(value: bytes | dict[int, bytes]) -> str | dict[str, str]:
    return value.hex() if isinstance(value, bytes) else {str(peer): entry.hex() for peer, entry in value.items()}
