"""Secure sums: exact whoever vanishes, nothing but the sum for the server, thresholds, unsound messages."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import hypergeom, kstest

from florilegium.privacy.secure_sum import shamir
from florilegium.privacy.secure_sum.entry import Entry
from florilegium.privacy.secure_sum.graph import neighbours
from florilegium.privacy.secure_sum.masks import Vector
from florilegium.privacy.secure_sum.party import (
    MASK_KEY,
    SEED,
    TOKEN,
    Party,
    ProtocolError,
    introduction,
    mask_seed,
    question,
    sign,
)
from florilegium.privacy.secure_sum.plan import ImpossibleError, Plan, plan, tails
from florilegium.privacy.secure_sum.ring import (
    RangeError,
    check_norm,
    coarse_unit,
    fine_unit,
    signed,
    to_narrow,
    to_wide,
)
from florilegium.privacy.secure_sum.tally import Tally, TooFewError
from tests.processes import ROOT

SIZES = (5, 400)


@dataclass
class Protocol:
    """A secure sum of random vectors, and the whole transcript of its server.

    Attributes:
        parties: n.
        plan: the parameters.
        gone: parties that vanish before they reply in a stage.
        alike: two parties with the same vector.
    """

    parties: int
    plan: Plan
    gone: dict[str, Collection[int]] = field(default_factory=dict)
    alike: tuple[int, int] | None = None

    def run(self) -> Protocol:
        """Carry out all stages; keep the sum in ``total`` and what the server saw in the other attributes."""
        rng, n, token = np.random.default_rng(1), self.parties, secrets.token_bytes(TOKEN)
        self.token = token
        self.vectors = [
            Vector(rng.integers(0, 2**64, SIZES[0], np.uint64), rng.integers(0, 2**32, SIZES[1], np.uint32))
            for _ in range(n)
        ]
        if self.alike:
            self.vectors[self.alike[1]] = self.vectors[self.alike[0]]
        self.devices = {i: Party(token) for i in range(n)}
        entry = Entry(token)
        public = {
            i: entry.admit(i, party.enter(entry.invitation(i)))
            for i, party in self.devices.items()
            if not self._gone("keys", i)
        }
        self.tally = Tally(token, self.plan, public)
        for i, message in self.tally.introductions().items():
            if not self._gone("shares", i):
                self.tally.take_shares(i, self.devices[i].share(message))
        for i, message in self.tally.forwarded().items():
            if not self._gone("open", i):
                self.tally.take_complaints(i, self.devices[i].open(message))
        self.masked: dict[int, Vector] = {}
        for i, message in self.tally.members().items():
            if not self._gone("mask", i):
                self.devices[i] = Party.load(self.devices[i].dump())
                vector = Vector(self.vectors[i].wide.copy(), self.vectors[i].narrow.copy())
                self.devices[i].mask(vector, message)
                self.masked[i] = vector
        self.total = _sum(self.masked.values())
        self.revealed = {}
        for i, message in self.tally.questions({*self.masked}).items():
            if not self._gone("reveal", i):
                self.revealed[i] = self.devices[i].reveal(message)
                self.tally.take_revealed(i, self.revealed[i])
        self.tally.unmask(self.total)
        return self

    def _gone(self, stage: str, party: int) -> bool:
        return party in self.gone.get(stage, ())

    def known(self, party: int, kind: int) -> bytes | None:
        """Return a secret of a party if the server's transcript gives it away, else None."""
        shares = {
            helper + 1: message[place * shamir.SHARE :][: shamir.SHARE]
            for helper, message in self.revealed.items()
            for place, (peer, asked) in enumerate(self.tally._choices(helper).items())
            if peer == party and asked == kind
        }
        if len(shares) < self.plan.threshold:
            return None
        return shamir.combine(dict([*shares.items()][: self.plan.threshold]))

    def attack(self, wanted: Collection[int]) -> Vector:
        """Return the sum of the masked vectors of ``wanted`` without the masks that the server's transcript tells."""
        rest = _sum(self.masked[i] for i in wanted)
        public = self.tally.public
        for i in wanted:
            if (seed := self.known(i, SEED)) is not None:
                rest.add_mask(seed, -1)
            for peer in self.tally.graph[i]:
                if peer in self.tally._members and peer not in wanted:
                    if (key := self.known(peer, MASK_KEY)) is not None:
                        rest.add_mask(mask_seed(key, public[i], self.token), -sign(i, peer))
                    elif (key := self.known(i, MASK_KEY)) is not None:
                        rest.add_mask(mask_seed(key, public[peer], self.token), -sign(i, peer))
        rest.wide[:1] = sum(int(self.masked[i].wide[0]) for i in wanted) % 2**64
        return rest


def _sum(vectors: Collection[Vector] | object) -> Vector:
    total = Vector.zeros(*SIZES)
    for vector in vectors:  # type: ignore[attr-defined]
        total.add(vector)
    return total


def _same(one: Vector, other: Vector) -> bool:
    return np.array_equal(one.wide, other.wide) and np.array_equal(one.narrow, other.narrow)


@pytest.mark.parametrize(
    ("parties", "gone"),
    [
        (3, {}),
        (10, {}),
        (10, {"keys": (0, 4)}),
        (10, {"shares": (1,), "mask": (9,)}),
        (10, {"mask": (3,), "reveal": (0,)}),
        (40, {"shares": (1, 2), "mask": (3, 4, 5), "reveal": (6, 7, 39)}),
    ],
)
def test_the_sum_is_that_of_all_who_sent_a_vector(parties: int, gone: dict[str, Collection[int]]) -> None:
    done = Protocol(parties, plan(parties - len(gone.get("keys", ())), 0.1, 0.2, 1e-9), gone).run()
    away = {i for stage in ("keys", "shares", "mask") for i in gone.get(stage, ())}
    assert {*done.masked} == {*range(parties)} - away
    assert _same(done.total, _sum([done.vectors[i] for i in done.masked]))


def test_the_server_learns_no_sum_but_that_of_everybody() -> None:
    done = Protocol(7, plan(7, 0.2, 0.3, 1e-9), {"mask": (6,)}, alike=(1, 2)).run()
    everybody = [*done.masked]
    assert _same(done.attack(everybody), done.total)
    subsets = [part for size in (1, 2, len(everybody) - 1) for part in combinations(everybody, size)]
    for part in subsets:
        rest, truth = done.attack(part), _sum([done.vectors[i] for i in part])
        difference = rest.narrow - truth.narrow
        assert np.mean(difference == 0) < 0.02
        assert kstest(difference / 2**32, "uniform").pvalue > 1e-4
    equal = done.masked[1].narrow - done.masked[2].narrow
    assert np.mean(equal == 0) < 0.02
    assert kstest(equal / 2**32, "uniform").pvalue > 1e-4


def test_no_secret_comes_out_twice() -> None:
    done = Protocol(7, plan(7, 0.2, 0.3, 1e-9), {"mask": (6,)}).run()
    for i in range(7):
        assert (done.known(i, SEED) is None) == (i == 6)
        assert (done.known(i, MASK_KEY) is None) == (i != 6)
    assert done.devices[0].shares == {}
    assert done.devices[0].seed == done.devices[0].mask_key == b""


@pytest.mark.parametrize("stage", ["shares", "mask", "reveal"])
def test_too_many_gone_fail_the_sum(stage: str) -> None:
    many = {"shares": (0, 1, 2), "mask": (0, 1, 2), "reveal": range(6)}[stage]
    with pytest.raises(TooFewError):
        Protocol(10, plan(10, 0.1, 0.2, 1e-9), {stage: many}).run()


def test_a_wrong_share_is_passed_over_or_fails_the_sum() -> None:
    for liars, fails in (((0,), False), (range(6), True)):
        done = Protocol(10, plan(10, 0.1, 0.2, 1e-9)).run()
        total = _sum(done.masked.values())
        for liar in liars:
            done.tally.take_revealed(liar, bytes(len(done.revealed[liar])))
        if fails:
            with pytest.raises(TooFewError):
                done.tally.unmask(total)
        else:
            done.tally.unmask(total)
            assert _same(total, done.total)


# ------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("parties", [3, 5, 12, 60, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize(("colluding", "vanishing", "failure"), [(0.1, 0.2, 1e-9), (0.3, 0.1, 1e-6), (0.0, 0.0, 1e-12)])
def test_parameters_keep_their_promise(parties: int, colluding: float, vanishing: float, failure: float) -> None:
    n, c, v = parties, math.ceil(colluding * parties - 1e-9), int(vanishing * parties + 1e-9)

    def bounds(k: int, t: int, deviating: bool) -> tuple[float, float]:
        """Return *exposed* and *stuck*; for both secrets, a server that deviates needs 2t − k colluding neighbours."""
        apart, both = n * hypergeom.pmf(k // 2, n - 1, c + v, k // 2), min(t, 2 * t - k) if deviating else t
        exposed = apart + n * hypergeom.sf(both - 1, n - 1, c, k)
        return exposed, n * hypergeom.sf(k - t, n - 1, v, k)

    def possible(k: int, deviating: bool) -> bool:
        return any(max(bounds(k, t, deviating)) <= failure for t in range(k // 2 + 1, k + 1))

    for deviating in (False, True):
        found = plan(parties, colluding, vanishing, failure, deviating=deviating)
        k, t = found.degree, found.threshold
        assert found.one_kind >= deviating
        assert k < 2 * t <= 2 * k
        if k == n - 1:
            assert t > ((k + c) / 2 if found.one_kind else c)
            assert k - v >= t
            continue
        assert (found.exposed, found.stuck) == pytest.approx(bounds(k, t, found.one_kind), rel=1e-6, abs=1e-300)
        assert max(found.exposed, found.stuck) <= failure
        assert not possible(k - 2, deviating)
        assert found.one_kind == possible(k, True)  # wherever it costs no more neighbours


@pytest.mark.parametrize(
    ("n", "colluding", "vanishing"), [(3, 0.1, 0.2), (7, 0.5, 0.0), (8, 0.6, 0.0), (9, 0.5, 0.0), (6, 0.1, 0.34)]
)
def test_where_all_are_neighbours_the_threshold_lies_in_the_middle(n: int, colluding: float, vanishing: float) -> None:
    """Above (k + c)/2, or else above c and k/2: nobody has both secrets of a party; at most k − v: no party is stuck.

    As many more may collude as may vanish, or one more.
    """
    found, c, v = plan(n, colluding, vanishing, 1e-12), math.ceil(colluding * n - 1e-9), int(vanishing * n + 1e-9)
    k, t = found.degree, found.threshold
    assert k == n - 1
    least = (k + c) // 2 + 1 if found.one_kind else max(c, k // 2) + 1
    assert found.one_kind == ((k + c) // 2 + 1 <= k - v)
    spare_below, spare_above = t - least, (k - v) - t
    assert min(spare_below, spare_above) >= 0
    assert spare_below - spare_above in (0, 1)


def test_tails_are_those_of_scipy() -> None:
    found = tails(30, 12, 9)
    assert found == pytest.approx([hypergeom.sf(x - 1, 30, 12, 9) for x in range(11)], abs=1e-14)


def test_too_few_parties_are_refused() -> None:
    for parties, colluding, vanishing in ((2, 0.1, 0.0), (4, 0.1, 0.5), (10, 0.5, 0.5)):
        with pytest.raises(ImpossibleError):
            plan(parties, colluding, vanishing, 1e-9)


def test_everybody_has_as_many_neighbours_and_is_theirs() -> None:
    for n, k in ((9, 4), (9, 8), (20, 2)):
        graph = neighbours(range(n), k)
        for party, peers in graph.items():
            assert len({*peers} - {party}) == k
            assert all(party in graph[peer] for peer in peers)
    with pytest.raises(ValueError, match="cannot have 3"):
        neighbours(range(9), 3)


# -------------------------------------------------------------------------------------- messages


def _introduced(threshold: int = 3, count: int = 4) -> tuple[Party, bytes]:
    token = secrets.token_bytes(TOKEN)
    public = {peer: Party(token).public() for peer in range(1, count + 1)}
    return Party(token), introduction(0, threshold, public)


def test_unsound_introductions_are_refused() -> None:
    party, message = _introduced()
    same = Party(party.token).public()
    for wrong in (
        b"", message[:-1], message + b"x", _introduced(threshold=2)[1], _introduced(threshold=5)[1],
        introduction(1, 3, {peer: Party(party.token).public() for peer in range(1, 5)}),
        introduction(0, 3, dict.fromkeys(range(1, 5), same)),
        introduction(0, 3, {peer: party.public() for peer in range(1, 5)}),
        introduction(0, 3, {peer: bytes([0] * 31 + [peer]) + bytes(32) for peer in range(1, 5)})[:-1],
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            replace(party).share(wrong)
    weak = introduction(0, 1, {1: bytes(32) + bytes([1] * 32) + bytes([2] * 32)})
    with pytest.raises(ProtocolError, match="public key"):
        replace(party).share(weak)


def test_unsound_questions_are_refused_and_none_is_answered_twice() -> None:
    n, fine = 5, {1: SEED, 2: SEED, 3: SEED, 4: MASK_KEY}
    done = Protocol(n, plan(n, 0.1, 0.2, 1e-9), {"reveal": (0,)}).run()
    party = done.devices[0]
    for wrong in (
        question(fine)[:-1], question({**fine, 9: SEED}), question(fine) + question({1: MASK_KEY}),
        question({**fine, 4: 2}), question({1: SEED, 2: SEED, 3: MASK_KEY, 4: MASK_KEY}), b"",
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            party.reveal(wrong)
    assert len(party.reveal(question(fine))) == 4 * shamir.SHARE
    with pytest.raises(ProtocolError):
        party.reveal(question(fine))


def test_a_party_masks_one_vector_and_only_with_shares_of_its_neighbours() -> None:
    n = 5
    done = Protocol(n, plan(n, 0.1, 0.2, 1e-9)).run()
    with pytest.raises(ProtocolError, match="stage"):
        done.devices[0].mask(Vector.zeros(*SIZES), done.tally.forwarded()[0])
    token = secrets.token_bytes(TOKEN)
    parties = [Party(token) for _ in range(n)]
    tally = Tally(token, plan(n, 0.1, 0.2, 1e-9), {i: party.public() for i, party in enumerate(parties)})
    for i, message in tally.introductions().items():
        tally.take_shares(i, parties[i].share(message))
    messages = tally.forwarded()
    changed = messages[0][:-1] + bytes([messages[0][-1] ^ 1])
    for wrong in (changed, messages[1], messages[0][: len(messages[0]) // 2], messages[0][1:]):
        with pytest.raises(ProtocolError):
            Party.load(parties[0].dump()).mask(Vector.zeros(*SIZES), wrong)


# ---------------------------------------------------------------------------------- shares, integers


def test_shares_below_the_threshold_tell_nothing() -> None:
    secret = secrets.token_bytes(32)
    assert pow(3, shamir.PRIME - 1, shamir.PRIME) == 1  # as in every prime field
    for threshold, places in ((1, [1]), (3, [2, 5, 9, 11])):
        shares = dict(zip(places, shamir.split(secret, threshold, places), strict=True))
        for chosen in combinations(places, threshold):
            assert shamir.combine({place: shares[place] for place in chosen}) == secret
        for chosen in combinations(places, threshold - 1):
            with suppress(ValueError):
                assert shamir.combine({place: shares[place] for place in chosen}) != secret
    # With one share fewer, every secret goes with some value of the share that is lacking.
    known = {place: shares[place] for place in (2, 5)}
    other = secrets.token_bytes(32)
    lines = {0: int.from_bytes(other), **{place: int.from_bytes(share) for place, share in known.items()}}
    at = sum(
        value * math.prod((9 - q) * pow(p - q, -1, shamir.PRIME) for q in lines if q != p) for p, value in lines.items()
    )
    assert shamir.combine({**known, 9: (at % shamir.PRIME).to_bytes(shamir.SHARE)}) == other


def test_integers_stand_for_numbers_within_half_a_unit_and_never_overflow() -> None:
    rng, n, d, bound = np.random.default_rng(2), 50, 300, 3.0
    unit = coarse_unit(n * bound, n)
    rows: list[NDArray[np.float64]] = [bound * row / np.linalg.norm(row) for row in rng.normal(size=(n, d))]
    rows[0] = np.eye(d)[0] * bound
    total = np.zeros(d, np.uint32)
    for row in rows:
        check_norm([row], bound)
        total += to_narrow(row, unit)
    assert np.abs(signed(total) * unit - np.sum(rows, axis=0)).max() <= n * unit / 2
    most = np.zeros(1, np.uint32)
    for _ in range(n):
        most += to_narrow(np.array([bound]), unit)
    assert signed(most)[0] * unit == pytest.approx(n * bound, rel=1e-6)
    for wrong in (bound * 1.001, np.nan, np.inf):
        with pytest.raises(RangeError):
            check_norm([np.array([wrong])], bound)
        with pytest.raises(RangeError):
            to_wide(np.array([wrong]), np.array([bound]), np.array([0.5]))
    whole = fine_unit(1e15)
    assert signed(to_wide(np.array([-1e12, 7.0]), np.full(2, 1e15), np.full(2, whole)))[1] * whole == 7.0


def test_masks_cancel_and_depend_on_every_bit_of_the_seed() -> None:
    seed, vector = secrets.token_bytes(32), Vector.zeros(3, 200_000)
    vector.add_mask(seed, 1)
    assert kstest(vector.narrow / 2**32, "uniform").pvalue > 1e-4
    vector.add_mask(seed[:-1] + bytes([seed[-1] ^ 1]), -1)
    assert np.mean(vector.narrow == 0) < 1e-3
    vector.add_mask(seed[:-1] + bytes([seed[-1] ^ 1]), 1)
    vector.add_mask(seed, -1)
    assert not vector.narrow.any()
    assert not vector.wide.any()


def test_masks_that_are_added_together_are_those_of_each_alone() -> None:
    """Longer than the pieces that are made at once, which are 32,768 and 65,536 integers."""
    rng = np.random.default_rng(1)
    seeds = [(rng.bytes(32), way) for way in (1, -1, -1, 1)]
    one, other = Vector.zeros(40_000, 70_001), Vector.zeros(40_000, 70_001)
    one.add_masks(seeds)
    for seed, way in reversed(seeds):
        alone = Vector.zeros(40_000, 70_001)
        alone.add_mask(seed, 1)
        for part, mask in ((other.wide, alone.wide), (other.narrow, alone.narrow)):
            part += mask if way > 0 else -mask
    assert (one.wide == other.wide).all()
    assert (one.narrow == other.narrow).all()
    one.add_masks([(seed, -way) for seed, way in seeds])
    assert not one.wide.any()
    assert not one.narrow.any()


def test_the_documented_parameters_are_those_of_the_defaults() -> None:
    page = (ROOT / "docs" / "secure-aggregation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| (\d+) \| ([\d,]+) \| (\S+) \| (\S+) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for n, k, t, gone, exposed, stuck in rows:
        found = plan(int(n.replace(",", "")), 0.1, 0.2, 1e-9)
        assert (found.degree, found.threshold, found.vanishing) == (int(k), int(t), int(gone.replace(",", "")))
        assert (found.exposed, found.stuck) == pytest.approx((float(exposed), float(stuck)), rel=0.5)
