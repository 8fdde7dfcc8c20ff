"""Secure sums of which one party lies: seven ways, 3 to 100 parties; and complaints that nobody can invent."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from florilegium.privacy.secure_sum import keys, shamir
from florilegium.privacy.secure_sum.entry import Entry, shared_keys
from florilegium.privacy.secure_sum.masks import Vector
from florilegium.privacy.secure_sum.party import (
    PUBLIC,
    SEALED,
    TOKEN,
    Party,
    ProtocolError,
    complaint,
    mask_seed,
    number,
    sign,
)
from florilegium.privacy.secure_sum.plan import ImpossibleError, plan
from florilegium.privacy.secure_sum.tally import Tally, TooFewError

ONE = 7
"""What every vector begins with."""


@dataclass
class Honest:
    """A party that keeps to the protocol."""

    party: Party

    def enter(self, message: bytes, others: Sequence[bytes]) -> bytes:
        return self.party.enter(message)

    def share(self, message: bytes) -> bytes:
        return self.party.share(message)

    def open(self, message: bytes) -> bytes:
        return self.party.open(message)

    def mask(self, vector: Vector, message: bytes) -> None:
        self.party.mask(vector, message)

    def reveal(self, message: bytes) -> bytes:
        return self.party.reveal(message)


class Opaque(Honest):
    """Its sealed shares cannot be opened."""

    def share(self, message: bytes) -> bytes:
        said = bytearray(self.party.share(message))
        for start in range(keys.KEY, len(said), 4 + SEALED):
            said[start + 4 + SEALED - 1] ^= 1
        return bytes(said)


class Uncommitted(Honest):
    """Its commitment does not fit its seed."""

    def share(self, message: bytes) -> bytes:
        return secrets.token_bytes(keys.KEY) + self.party.share(message)[keys.KEY :]


class ZeroKey(Honest):
    """Its public keys are zero."""

    def enter(self, message: bytes, others: Sequence[bytes]) -> bytes:
        said = self.party.enter(message)
        return bytes(2 * keys.KEY) + said[2 * keys.KEY :]


class CopiedKey(Honest):
    """Its public keys, and what shows that it holds them, are another's."""

    def enter(self, message: bytes, others: Sequence[bytes]) -> bytes:
        return others[0]


class WrongCount(Honest):
    """Its vector counts twice."""

    def mask(self, vector: Vector, message: bytes) -> None:
        self.party.mask(vector, message)
        vector.wide[0] = 2 * ONE


class OwnMasks(Honest):
    """Its vector has masks that nobody has agreed on."""

    def mask(self, vector: Vector, message: bytes) -> None:
        rng = np.random.default_rng(5)
        self.party.mask(vector, message)
        vector.wide[:] = rng.integers(0, 2**64, len(vector.wide), np.uint64)
        vector.narrow[:] = rng.integers(0, 2**32, len(vector.narrow), np.uint32)


class WrongShares(Honest):
    """It reveals shares that it has made up."""

    def reveal(self, message: bytes) -> bytes:
        said = self.party.reveal(message)
        return b"".join(b"\0" + secrets.token_bytes(shamir.SECRET) for _ in range(len(said) // shamir.SHARE))


LIARS = (Opaque, Uncommitted, ZeroKey, CopiedKey, WrongCount, OwnMasks, WrongShares)


@dataclass
class Sum:
    """A server and parties, as the suite's server goes through the stages, with one repetition.

    Attributes:
        n: number of parties.
        liars: the parties that lie, and how.
        named: whom the server has named.
    """

    n: int
    liars: dict[int, type[Honest]]
    named: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(1)
        self.vectors = [
            Vector(
                np.array([ONE, *rng.integers(0, 2**63, 4, np.uint64)], np.uint64),
                rng.integers(0, 2**32, 50, np.uint32),
            )
            for _ in range(self.n)
        ]

    def carry_out(self) -> tuple[list[int], Vector]:
        """Return who is in the sum, and the sum; raise TooFewError or ImpossibleError."""
        try:
            return self._attempt([*range(self.n)])
        except (TooFewError, ImpossibleError):
            if not self.named:
                raise
            return self._attempt([i for i in range(self.n) if i not in self.named])

    def _attempt(self, who: Collection[int]) -> tuple[list[int], Vector]:
        token = secrets.token_bytes(TOKEN)
        entry, said, public = Entry(token), dict[int, bytes](), dict[int, bytes]()
        parties = {i: self.liars.get(i, Honest)(Party(token)) for i in who}
        for i, party in parties.items():
            said[i] = party.enter(entry.invitation(i), [*said.values()])
        for i, message in said.items():
            self._take(i, lambda i=i, message=message: public.update({i: entry.admit(i, message)}))
        assert not shared_keys(public)
        tally = Tally(token, plan(len(public), 0.1, 0.2, 1e-9), public)
        for i, message in tally.introductions().items():
            reply = parties[i].share(message)
            self._take(i, lambda i=i, reply=reply: tally.take_shares(i, reply))
        for i, message in tally.forwarded().items():
            reply = parties[i].open(message)
            self._take(i, lambda i=i, reply=reply: tally.take_complaints(i, reply))
        total, summed = Vector.zeros(5, 50), list[int]()
        try:
            for i, message in tally.members().items():
                vector = Vector(self.vectors[i].wide.copy(), self.vectors[i].narrow.copy())
                parties[i].mask(vector, message)
                if vector.wide[0] != ONE:
                    self.named[i] = "it counts for more than one"
                    continue
                total.add(vector)
                summed.append(i)
            for i, message in tally.questions({*summed}).items():
                tally.take_revealed(i, parties[i].reveal(message))
            tally.unmask(total)
        finally:
            self.named |= tally.named
        return summed, total

    def _take(self, party: int, take: object) -> None:
        try:
            take()  # type: ignore[operator]
        except ProtocolError as error:
            self.named[party] = str(error)

    def truth(self, of: Collection[int]) -> Vector:
        """Return the sum of the vectors of these parties."""
        total = Vector.zeros(5, 50)
        for i in of:
            total.add(self.vectors[i])
        return total


@pytest.mark.parametrize("n", [3, 5, 10, 20, 100])
@pytest.mark.parametrize("lie", LIARS)
def test_one_liar_costs_its_own_share_alone(lie: type[Honest], n: int) -> None:
    """The sum is that of the honest, or of everybody where the lie is in vain; of three, two are too few."""
    liar = n - 1
    done = Sum(n, {liar: lie})
    harmless = lie is WrongShares and n > 3
    if n == 3:
        with pytest.raises((TooFewError, ImpossibleError), match=r"too few|vanished|are needed"):
            done.carry_out()
        assert {*done.named} <= {liar}
        return
    summed, total = done.carry_out()
    assert {*summed} == {*range(n)} - ({*()} if harmless else {liar})
    assert {*done.named} == ({*()} if harmless else {liar})
    truth = done.truth(summed)
    assert np.array_equal(total.wide, truth.wide)
    assert np.array_equal(total.narrow, truth.narrow)


def test_a_share_that_cannot_be_opened_costs_that_share() -> None:
    """One of nine neighbours gets nonsense: its complaint names nobody, and the sum is everybody's."""

    class OnceOpaque(Honest):
        def share(self, message: bytes) -> bytes:
            said = bytearray(self.party.share(message))
            said[keys.KEY + 4 + SEALED - 1] ^= 1
            return bytes(said)

    done = Sum(10, {9: OnceOpaque})
    summed, total = done.carry_out()
    assert (summed, done.named) == ([*range(10)], {})
    assert np.array_equal(total.narrow, done.truth(summed).narrow)


def test_whose_shares_too_few_can_open_takes_no_part_and_is_not_named() -> None:
    """Four of eight neighbours complain, which is no majority, and five shares are needed of the four others."""

    class HalfOpaque(Honest):
        def share(self, message: bytes) -> bytes:
            said = bytearray(self.party.share(message))
            for entry in range(4):
                said[keys.KEY + (entry + 1) * (4 + SEALED) - 1] ^= 1
            return bytes(said)

    assert (plan(10, 0.1, 0.2, 1e-9).degree, plan(10, 0.1, 0.2, 1e-9).threshold) == (8, 5)
    done = Sum(10, {9: HalfOpaque})
    summed, total = done.carry_out()
    assert (summed, done.named) == ([*range(9)], {})
    assert np.array_equal(total.narrow, done.truth(summed).narrow)


def test_false_complaints_of_few_name_nobody() -> None:
    class Complains(Honest):
        def open(self, message: bytes) -> bytes:
            private = self.party.sign_key
            self.party.open(message)
            about = list(self.party.senders)
            self.party.shares.clear()
            return b"".join(
                number(p) + keys.sign(private, complaint(self.party.token, self.party.index, p)) for p in about
            )

        def reveal(self, message: bytes) -> bytes:
            return b""

    done = Sum(10, {9: Complains})
    summed, total = done.carry_out()
    assert (summed, done.named) == ([*range(10)], {})
    assert np.array_equal(total.wide, done.truth(summed).wide)


def test_nobody_can_complain_in_anothers_name() -> None:
    token, n = secrets.token_bytes(TOKEN), 5
    parties = [Party(token) for _ in range(n)]
    entry = Entry(token)
    tally = Tally(
        token, plan(n, 0.1, 0.2, 1e-9), {i: entry.admit(i, p.enter(entry.invitation(i))) for i, p in enumerate(parties)}
    )
    private = [party.sign_key for party in parties]
    for i, message in tally.introductions().items():
        tally.take_shares(i, parties[i].share(message))
    tally.take_complaints(0, number(1) + keys.sign(private[0], complaint(token, 0, 1)))
    for signature in (
        keys.sign(private[2], complaint(token, 0, 1)),  # another's key
        keys.sign(private[0], complaint(token, 0, 2)),  # about another
        keys.sign(private[0], complaint(token, 2, 1)),  # of another
        keys.sign(private[0], complaint(secrets.token_bytes(TOKEN), 0, 1)),  # in another exchange
        bytes(keys.SIGNATURE),
    ):
        with pytest.raises(ProtocolError, match="not signed"):
            tally.take_complaints(0, number(1) + signature)
    with pytest.raises(ProtocolError, match="which has sent it nothing"):
        tally.take_complaints(0, number(7) + bytes(keys.SIGNATURE))


def test_keys_are_admitted_from_their_owner_alone() -> None:
    token = secrets.token_bytes(TOKEN)
    entry, party, other = Entry(token), Party(token), Party(token)
    said, others = party.enter(entry.invitation(3)), other.enter(entry.invitation(4))
    assert entry.admit(3, said) == party.public()
    for wrong in (
        said[:-1], said + b"x", others, bytes(len(said)),
        others[:PUBLIC] + said[PUBLIC:],
        said[: 2 * keys.KEY] + others[2 * keys.KEY : PUBLIC] + said[PUBLIC:],  # another's key for signatures
        others[: keys.KEY] + said[keys.KEY :],
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            entry.admit(3, wrong)
    with pytest.raises(ProtocolError, match="low order"):
        entry.admit(3, bytes(keys.KEY) + said[keys.KEY :])
    with pytest.raises(ProtocolError):
        Entry(secrets.token_bytes(TOKEN)).admit(3, said)
    assert shared_keys({1: party.public(), 2: other.public()}) == set()
    assert shared_keys({1: party.public(), 2: other.public(), 5: party.public()}) == {1, 5}
    twice = party.public()[: keys.KEY] * 2 + party.public()[2 * keys.KEY :]
    assert shared_keys({1: twice, 2: other.public()}) == {1}


def test_the_first_number_alone_is_in_the_clear() -> None:
    done = Sum(5, {})
    token = secrets.token_bytes(TOKEN)
    parties = [Party(token) for _ in range(5)]
    entry = Entry(token)
    tally = Tally(
        token, plan(5, 0.1, 0.2, 1e-9), {i: entry.admit(i, p.enter(entry.invitation(i))) for i, p in enumerate(parties)}
    )
    for i, message in tally.introductions().items():
        tally.take_shares(i, parties[i].share(message))
    for i, message in tally.forwarded().items():
        tally.take_complaints(i, parties[i].open(message))
    seed, mask_key = parties[0].seed, parties[0].mask_key
    vector = Vector(done.vectors[0].wide.copy(), done.vectors[0].narrow.copy())
    parties[0].mask(vector, tally.members()[0])
    assert vector.wide[0] == ONE
    vector.add_mask(seed, -1)
    for peer in range(1, 5):
        vector.add_mask(mask_seed(mask_key, tally.public[peer], token), -sign(0, peer))
    assert np.array_equal(vector.wide[1:], done.vectors[0].wide[1:])
    assert np.array_equal(vector.narrow, done.vectors[0].narrow)


def test_two_who_reveal_wrong_shares_hide_no_secret() -> None:
    """Wherever they stand among the others: twelve right shares are left of fourteen, and eight are needed."""
    for first, second in ((0, 1), (0, 7), (3, 12)):
        done = Sum(20, {first: WrongShares, second: WrongShares})
        summed, total = done.carry_out()
        assert (summed, done.named) == ([*range(20)], {})
        assert np.array_equal(total.wide, done.truth(summed).wide)
