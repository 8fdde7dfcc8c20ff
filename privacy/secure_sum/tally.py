"""The server of a secure sum: it passes messages on, adds masked vectors, and takes the masks away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import SystemRandom

from florilegium.privacy.secure_sum import keys, shamir
from florilegium.privacy.secure_sum.graph import neighbours
from florilegium.privacy.secure_sum.masks import Vector
from florilegium.privacy.secure_sum.party import (
    MASK_KEY,
    SEED,
    ProtocolError,
    answers,
    complaint,
    complaints,
    introduction,
    listed,
    mask_key_of,
    mask_seed,
    members,
    number,
    passed_on,
    question,
    sealed_shares,
    sign,
    verification_key_of,
)
from florilegium.privacy.secure_sum.plan import Plan

TRIES = 200
"""How many sets of shares are tried for a secret; with two wrong ones among them, 200 find a right set."""


class TooFewError(RuntimeError):
    """So many parties have vanished, or lied, that the sum must not, or cannot, be unmasked."""


@dataclass
class Tally:
    """What the server knows of a secure sum.

    Attributes:
        token: names the exchange.
        plan: the parameters, for the number of parties that have sent keys.
        public: the public keys of these parties, by their numbers.
        certificates: those of some of them.
        graph: their neighbours.
        named: why parties are to be left out from now on, since they have not kept to the protocol.
    """

    token: bytes
    plan: Plan
    public: Mapping[int, bytes]
    certificates: Mapping[int, bytes] = field(default_factory=dict)
    graph: Mapping[int, list[int]] = field(init=False)
    named: dict[int, str] = field(init=False, default_factory=dict)
    _commitments: dict[int, bytes] = field(init=False, default_factory=dict)
    _sealed: dict[int, dict[int, bytes]] = field(init=False, default_factory=dict)
    _complaints: dict[int, set[int]] = field(init=False, default_factory=dict)  # by the party that complains
    _members: dict[int, None] = field(init=False, default_factory=dict)  # who has masks in common
    _shares: dict[int, dict[int, bytes]] = field(init=False, default_factory=dict)
    _summed: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.graph = neighbours(sorted(self.public), self.plan.degree)

    def introductions(self) -> dict[int, bytes]:
        """Return the message of stage ``shares`` for each party; with certificates, if there are any."""
        cohort = listed(self.public) if self.certificates else b""
        return {
            party: introduction(
                party, self.plan.threshold, {peer: self.public[peer] for peer in peers}, cohort, self.certificates
            )
            for party, peers in self.graph.items()
        }

    def take_shares(self, party: int, message: bytes) -> None:
        """Read a party's reply in stage ``shares``.

        Raises:
            ProtocolError: if it is malformed; the party then counts as vanished.
        """
        self._commitments[party], self._sealed[party] = sealed_shares(message, dict.fromkeys(self.graph[party]))

    def forwarded(self) -> dict[int, bytes]:
        """Return the message of stage ``open`` for each party that has sent shares and can go on.

        Raises:
            TooFewError: if more have vanished than may.
        """
        self._check(len(self._sealed))
        return {
            party: passed_on({peer: self._sealed[peer][party] for peer in self.graph[party] if peer in self._sealed})
            for party in self._sealed
        }

    def take_complaints(self, party: int, message: bytes) -> None:
        """Read a party's reply in stage ``open``.

        Raises:
            ProtocolError: if it is malformed, or it has not signed what it says; the party then counts as vanished.
        """
        said, public = complaints(message), verification_key_of(self.public[party])
        for peer, signature in said.items():
            if peer not in self.graph[party] or peer not in self._sealed:
                raise ProtocolError(f"it complains about party {peer}, which has sent it nothing")
            if not keys.is_signed(public, complaint(self.token, party, peer), signature):
                raise ProtocolError("a complaint is not signed with its key")
        self._complaints[party] = {*said}

    def members(self) -> dict[int, bytes]:
        """Return the message of stage ``mask`` for each party that goes on.

        Whoever most of its neighbours complain about is named. Others go on if enough neighbours hold their shares.

        Raises:
            TooFewError: if more have vanished, or been left out, than may.
        """
        left = {*self._complaints}
        for party in sorted(left):
            peers = [peer for peer in self.graph[party] if peer in self._complaints]
            against = sum(party in self._complaints[peer] for peer in peers)
            if 2 * against > len(peers):
                self.named[party] = f"{against} of {len(peers)} neighbours cannot open its shares"
            if party in self.named or len(peers) - against < self.plan.threshold:
                left.discard(party)
        self._members = dict.fromkeys(sorted(left))
        self._check(len(left))
        return {party: members(self._in_common(party)) for party in self._members}

    def questions(self, summed: set[int]) -> dict[int, bytes]:
        """Return the message of stage ``reveal`` for each party whose masked vector is in the sum.

        Args:
            summed: these parties; all others that have masks in common with them have vanished.

        Raises:
            TooFewError: if more have vanished than may.
        """
        self._check(len(summed))
        self._summed = summed
        return {party: question(self._choices(party)) for party in sorted(summed)}

    def take_revealed(self, party: int, message: bytes) -> None:
        """Read a party's reply in stage ``reveal``.

        Raises:
            ProtocolError: if it is malformed.
        """
        for peer, share in answers(message, self._choices(party)).items():
            self._shares.setdefault(peer, {})[party + 1] = share

    def unmask(self, total: Vector) -> None:
        """Take the masks away from ``total``, the sum of the masked vectors, in place.

        Its first wide entry has none.

        Raises:
            TooFewError: if there are too few right shares of some secret; whoever has shared it wrongly is named.
        """
        clear, found, gone = total.wide[:1].copy(), dict[int, bytes](), {*self._members} - self._summed
        why = ""
        for party in self._members:
            if party in gone and not [peer for peer in self._in_common(party) if peer in self._summed]:
                continue
            try:
                found[party] = self._secret(party, self._is_mask_key if party in gone else self._is_seed)
            except TooFewError as error:
                why = why or str(error)
                if len(self._shares.get(party, {})) > self.plan.threshold:  # else one wrong share may be to blame
                    self.named[party] = "the shares that it has sent do not give its secret"
        if why:
            raise TooFewError(why)
        masks: list[tuple[bytes, int]] = []
        for party, secret in found.items():
            if party not in gone:
                masks.append((secret, -1))
                continue
            masks += [
                (mask_seed(secret, self.public[peer], self.token), -sign(peer, party))
                for peer in self._in_common(party)
                if peer in self._summed
            ]
        total.add_masks(masks)
        total.wide[:1] = clear

    def _in_common(self, party: int) -> list[int]:
        """Return the neighbours with which a party has masks in common."""
        return [peer for peer in self.graph[party] if peer in self._members]

    def _choices(self, party: int) -> dict[int, int]:
        """Return which share a party reveals of each neighbour whose shares it has opened."""
        opened = [peer for peer in self._in_common(party) if peer not in self._complaints[party]]
        return {peer: SEED if peer in self._summed else MASK_KEY for peer in opened}

    def _is_seed(self, party: int, secret: bytes) -> bool:
        return keys.commitment(secret, self.token + number(party)) == self._commitments[party]

    def _is_mask_key(self, party: int, secret: bytes) -> bool:
        return keys.public_key(secret) == mask_key_of(self.public[party])

    def _secret(self, party: int, fits: Callable[[int, bytes], bool]) -> bytes:
        """Return a secret of a party from the revealed shares; wrong ones among them are passed over."""
        shares, t = [*self._shares.get(party, {}).items()], self.plan.threshold
        draw = SystemRandom()
        for _ in range(TRIES if len(shares) >= t else 0):
            try:
                secret = shamir.combine(dict(shares[:t]))
            except ValueError:
                secret = b""
            if secret and fits(party, secret):
                return secret
            draw.shuffle(shares)
        raise TooFewError(f"{len(shares)} shares of a secret are left, {t} right ones are needed")

    def _check(self, left: int) -> None:
        """Raise :class:`TooFewError` if so few are left that the sum might tell more than it should."""
        gone = self.plan.parties - left
        if gone > self.plan.vanishing:
            raise TooFewError(f"{gone} of {self.plan.parties} parties have vanished, at most {self.plan.vanishing} may")
