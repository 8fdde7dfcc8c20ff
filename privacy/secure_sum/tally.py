"""The server of a secure sum: it passes messages on, adds masked vectors, and takes the masks away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from florilegium.privacy.secure_sum import keys, shamir
from florilegium.privacy.secure_sum.graph import neighbours
from florilegium.privacy.secure_sum.masks import Vector
from florilegium.privacy.secure_sum.party import (
    MASK_KEY,
    SEED,
    answers,
    introduction,
    mask_seed,
    number,
    passed_on,
    question,
    sealed_shares,
    sign,
)
from florilegium.privacy.secure_sum.plan import Plan


class TooFewError(RuntimeError):
    """So many parties have vanished that the sum must not, or cannot, be unmasked."""


@dataclass
class Tally:
    """What the server knows of a secure sum.

    Attributes:
        token: names the exchange.
        plan: the parameters, for the number of parties that have sent keys.
        public: the public keys of these parties, by their numbers.
        graph: their neighbours.
    """

    token: bytes
    plan: Plan
    public: Mapping[int, bytes]
    graph: Mapping[int, list[int]] = field(init=False)
    _commitments: dict[int, bytes] = field(init=False, default_factory=dict)
    _sealed: dict[int, dict[int, bytes]] = field(init=False, default_factory=dict)
    _shares: dict[int, dict[int, bytes]] = field(init=False, default_factory=dict)
    _summed: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.graph = neighbours(sorted(self.public), self.plan.degree)

    def introductions(self) -> dict[int, bytes]:
        """Return the message of stage ``shares`` for each party."""
        return {
            party: introduction(party, self.plan.threshold, {peer: self.public[peer] for peer in peers})
            for party, peers in self.graph.items()
        }

    def take_shares(self, party: int, message: bytes) -> None:
        """Read a party's reply in stage ``shares``.

        Raises:
            ProtocolError: if it is malformed; the party then counts as vanished.
        """
        self._commitments[party], self._sealed[party] = sealed_shares(message, dict.fromkeys(self.graph[party]))

    def forwarded(self) -> dict[int, bytes]:
        """Return the message of stage ``mask`` for each party that has sent shares and can go on.

        Raises:
            TooFewError: if more have vanished than may.
        """
        self._check(len(self._sealed))
        return {
            party: passed_on({peer: self._sealed[peer][party] for peer in self.graph[party] if peer in self._sealed})
            for party in self._sealed
        }

    def questions(self, summed: set[int]) -> dict[int, bytes]:
        """Return the message of stage ``reveal`` for each party whose masked vector is in the sum.

        Args:
            summed: these parties; all others that have sent shares have vanished.

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

        Raises:
            TooFewError: if there are too few right shares of some secret.
        """
        for party in sorted(self._summed):
            total.add_mask(self._secret(party, self._is_seed), -1)
        for party in sorted(self._sealed.keys() - self._summed):
            if remaining := [peer for peer in self.graph[party] if peer in self._summed]:
                private = self._secret(party, self._is_mask_key)
                for peer in remaining:
                    seed = mask_seed(private, self.public[peer][keys.KEY :], self.token)
                    total.add_mask(seed, -sign(peer, party))

    def _choices(self, party: int) -> dict[int, int]:
        """Return which share a party reveals of each neighbour that has sent it shares."""
        return {peer: SEED if peer in self._summed else MASK_KEY for peer in self.graph[party] if peer in self._sealed}

    def _is_seed(self, party: int, secret: bytes) -> bool:
        return keys.commitment(secret, self.token + number(party)) == self._commitments[party]

    def _is_mask_key(self, party: int, secret: bytes) -> bool:
        return keys.public_key(secret) == self.public[party][keys.KEY :]

    def _secret(self, party: int, fits: Callable[[int, bytes], bool]) -> bytes:
        """Return a secret of a party from the revealed shares; wrong ones among them are passed over."""
        shares, t = [*self._shares.get(party, {}).items()], self.plan.threshold
        for start in range(len(shares) if len(shares) >= t else 0):
            try:
                secret = shamir.combine(dict((shares[start:] + shares[:start])[:t]))
            except ValueError:
                continue
            if fits(party, secret):
                return secret
        raise TooFewError(f"{len(shares)} shares of a secret are left, {t} right ones are needed")

    def _check(self, left: int) -> None:
        """Raise :class:`TooFewError` if so few are left that the sum might tell more than it should."""
        gone = self.plan.parties - left
        if gone > self.plan.vanishing:
            raise TooFewError(f"{gone} of {self.plan.parties} parties have vanished, at most {self.plan.vanishing} may")
