"""Robust rules against the papers' formulas, written out plainly, and on cases that can be computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.strategies.robust.before import buckets, nearest_neighbours
from florilegium.strategies.robust.foolsgold import weights
from florilegium.strategies.robust.registry import RULES
from florilegium.strategies.robust.rule import Combined
from florilegium.strategies.robust.stack import Stack

STEPS: dict[str, dict[str, Value]] = {"geometric-median": {"iterations": 60}}


class Alone:
    """The surroundings of a rule that is not part of a run."""

    def __init__(self, count: int, own: Arrays | None = None) -> None:
        self.clients = [str(i) for i in range(count)]
        self.kept: dict[str, Arrays] = {}
        self._own = own or {}

    def generator(self, *purpose: str) -> np.random.Generator:
        return np.random.default_rng(sum(map(ord, "".join(purpose))))

    def remembered(self, name: str) -> Arrays:
        return self.kept.get(name, {})

    def remember(self, name: str, arrays: Arrays) -> None:
        self.kept[name] = arrays

    def trusted(self) -> Arrays:
        return self._own


def combined(
    rows: NDArray[Any],
    rule: str,
    attackers: int = 0,
    weights: NDArray[Any] | None = None,
    around: Alone | None = None,
    **keys: Value,
) -> Combined:
    """Return what a rule makes of rows (n, d), split into two arrays; ``weights``: 1 each by default."""
    kind = RULES[rule]
    named = {name.replace("_", "-"): value for name, value in keys.items()}
    one = kind(kind.keys.model_validate(named), attackers)
    assert len(rows) >= one.least(attackers)
    return one.combine(stacked(rows, weights), around or Alone(len(rows)))


def stacked(rows: NDArray[Any], weights: NDArray[Any] | None = None) -> Stack:
    cut = rows.shape[1] // 2
    shape = (len(rows), 1, cut)
    return Stack(
        {"a.w": rows[:, :cut].reshape(shape), "b.w": rows[:, cut:]}, np.ones(len(rows)) if weights is None else weights
    )


def flat(update: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([array.ravel() for array in update.values()])


def drawn(count: int, size: int = 7, seed: int = 1) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(count, size))


def far(rows: NDArray[Any], attackers: int, at: float = 1e3) -> NDArray[Any]:
    return np.concatenate([rows[:-attackers], np.full((attackers, rows.shape[1]), at)]) if attackers else rows


# ------------------------------------------------------------------------------------- entry by entry


@pytest.mark.parametrize("count", [5, 6])
def test_median_and_trimmed_mean(count: int) -> None:
    rows = drawn(count)
    np.testing.assert_allclose(flat(combined(rows, "median", 2).update), np.median(rows, axis=0))
    kept = np.sort(rows, axis=0)[2 : count - 2]
    np.testing.assert_allclose(flat(combined(rows, "trimmed-mean", 2).update), kept.mean(axis=0))
    assert combined(rows, "median", 2).excluded is None


@pytest.mark.parametrize("attackers", [1, 2, 13, 22])
@pytest.mark.parametrize("count", [45, 47, 49])
def test_as_many_are_trimmed_as_there_are_attackers(count: int, attackers: int) -> None:
    """Counts of which f/c times c is, in floating point, less than f."""
    rows = np.arange(count, dtype=np.float64)
    rows[:attackers], rows[count - attackers :] = -1e9, 1e12
    found = flat(combined(np.stack([rows, rows], axis=1), "trimmed-mean", attackers).update)
    np.testing.assert_allclose(found, np.arange(attackers, count - attackers).mean())


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
def test_rules_compute_in_float64(rule: str) -> None:
    """Updates in float32 with a large common part: ‖x‖² + ‖y‖² − 2xᵀy would be rounding alone, and so would be sums."""
    parts = np.array([0.0, 0.25, 0.5, 3.0, 9.0])[:, None] * np.ones(64)
    found = flat(combined((4096.0 + parts).astype(np.float32), rule, 1).update)
    assert found.dtype == np.float64
    middle = {"median": 0.5, "trimmed-mean": 1.25, "krum": 0.25}[rule]
    np.testing.assert_array_equal(found, np.full(64, 4096.0 + middle))
    pair = np.array([[1.0, 1.0], [1.0 + 2**-23] * 2], np.float32)
    assert (flat(combined(pair, "median").update) == 1.0 + 2**-24).all()  # no number of float32


# ------------------------------------------------------------------------------------------ selection


def krum_scores(rows: NDArray[Any], attackers: int) -> list[float]:
    """Blanchard et al. 2017 by all subsets of others."""
    every = {*range(len(rows))}
    near = max(1, len(rows) - attackers - 2)
    return [
        min(sum(np.square(rows[i] - rows[j]).sum() for j in others) for others in combinations(every - {i}, near))
        for i in every
    ]


@pytest.mark.parametrize(("count", "attackers"), [(7, 2), (8, 2), (5, 1)])
def test_krum_and_multi_krum(count: int, attackers: int) -> None:
    rows = drawn(count)
    order = np.argsort(krum_scores(rows, attackers))
    one = combined(rows, "krum", attackers)
    np.testing.assert_array_equal(flat(one.update), rows[order[0]])
    assert one.excluded is not None
    assert [*np.flatnonzero(~one.excluded)] == [order[0]]
    several = combined(rows, "multi-krum", attackers)
    np.testing.assert_allclose(flat(several.update), rows[order[: count - attackers - 2]].mean(axis=0))
    all_but_one = combined(rows, "multi-krum", attackers, selected=count - 1)
    np.testing.assert_allclose(flat(all_but_one.update), rows[order[:-1]].mean(axis=0))


def test_of_equal_scores_the_first_counts() -> None:
    """On a line 0, 1, 2, …, the inner rows have equal scores in exact arithmetic."""
    rows = np.arange(7.0)[:, None] * np.full(4, 0.1)
    assert krum_scores(rows, 4)[1:6] == pytest.approx([0.04] * 5)
    found = combined(rows[:, :], "krum", 2)
    assert found.excluded is not None
    assert [*np.flatnonzero(~found.excluded)] == [np.round(krum_scores(rows, 2), 9).argmin()]


@pytest.mark.parametrize("size", [1e6, 1e12])
@pytest.mark.parametrize("rule", ["krum", "multi-krum", "bulyan", "geometric-median", "dnc"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_updates_hide_no_others(rule: str, size: float, dtype: type) -> None:
    """One huge update must not take the digits by which the rule tells the others apart."""
    rows = np.concatenate([drawn(12, 40), np.full((1, 40), 30.0), np.full((1, 40), size)]).astype(dtype)
    found = flat(combined(rows, rule, 2, **STEPS.get(rule, {})).update)
    if rule == "geometric-median":  # its two steps apart from the honest mean are bounded, whatever the size
        assert np.linalg.norm(found - rows[:12].mean(axis=0)) < 3 * np.sqrt(40)
        near = np.linalg.norm(rows - found, axis=1)[:12]
        assert near.max() < 12
    elif rule == "dnc":
        assert np.linalg.norm(found) < 30 * np.sqrt(40)
    else:
        assert np.abs(found).max() < 5


def test_bulyan_by_its_own_steps() -> None:
    """n = 4f + 3; Krum is repeated on what is left; then the values nearest to the median, entry by entry."""
    rows, f = far(drawn(11), 2, at=4.0), 2
    left, chosen = [*range(11)], []
    while len(chosen) < 11 - 2 * f:
        scores = krum_scores(rows[left], f)
        chosen.append(left.pop(int(np.argmin(scores))))
    values, expected = rows[chosen], []
    for column in values.T:
        near = column[np.argsort(np.abs(column - np.median(column)), kind="stable")[: 11 - 4 * f]]
        expected.append(near.mean())
    found = combined(rows, "bulyan", f)
    np.testing.assert_allclose(flat(found.update), expected)
    assert found.excluded is not None
    assert {*np.flatnonzero(~found.excluded)} == {*chosen}


def test_dnc_by_a_singular_value_decomposition() -> None:
    rows = far(drawn(9, 30), 2, at=5.0)
    centred = rows - rows.mean(axis=0)
    v = np.linalg.svd(centred)[2][0]
    kept = np.sort(np.argsort(np.square(centred @ v))[:7])
    found = combined(rows, "dnc", 2, passes=3)
    np.testing.assert_allclose(flat(found.update), rows[kept].mean(axis=0))
    assert [*kept] == [*range(7)]
    few = combined(rows, "dnc", 2, entries=10, passes=4)
    np.testing.assert_allclose(flat(few.update), rows[:7].mean(axis=0))


# --------------------------------------------------------------------------------------- combinations


def test_geometric_median_minimises_the_weighted_sum_of_distances() -> None:
    rows, weights = far(drawn(9), 2, at=50.0), np.array([1, 2, 3, 1, 1, 2, 1, 1, 1.0])
    found = flat(combined(rows, "geometric-median", 2, weights, iterations=200).update)
    pulls = (found - rows) / np.linalg.norm(found - rows, axis=1)[:, None]
    np.testing.assert_allclose(weights @ pulls, 0, atol=1e-6)
    v = weights @ rows / weights.sum()
    for _ in range(3):
        β = weights / weights.sum() / np.maximum(1e-6, np.linalg.norm(v - rows, axis=1))
        v = β @ rows / β.sum()
    np.testing.assert_allclose(flat(combined(rows, "geometric-median", 2, weights, iterations=3).update), v)


def test_geometric_median_of_equal_updates_is_their_value() -> None:
    rows = np.tile(drawn(1), (4, 1))
    np.testing.assert_allclose(flat(combined(rows, "geometric-median", 1).update), rows[0])


def test_centred_clipping_over_rounds() -> None:
    rows, around, v = far(drawn(6), 1), Alone(6), np.zeros(7)
    for _ in range(2):
        for _ in range(3):
            d = rows - v
            v = v + (d * np.minimum(1, 2.5 / np.linalg.norm(d, axis=1))[:, None]).mean(axis=0)
        found = combined(rows, "centred-clipping", 1, around=around, radius=2.5, iterations=3)
        np.testing.assert_allclose(flat(found.update), v)
    alone = combined(rows, "centred-clipping", 1)  # the median length is the radius
    lengths = np.linalg.norm(rows, axis=1)
    clipped = rows * np.minimum(1, np.median(lengths) / lengths)[:, None]
    np.testing.assert_allclose(flat(alone.update), clipped.mean(axis=0))


def test_norm_bound_weights_what_it_has_clipped() -> None:
    rows, weights = far(drawn(5), 1), np.array([1, 2, 3, 4, 5.0])
    lengths = np.linalg.norm(rows, axis=1)
    for norm, bound in ((2.0, 2.0), (0.0, np.median(lengths))):
        clipped = rows * np.minimum(1, bound / lengths)[:, None]
        found = flat(combined(rows, "norm-bound", 1, weights, norm=norm).update)
        np.testing.assert_allclose(found, weights @ clipped / 15)
    wide = drawn(5, 4000)
    noisy = flat(combined(wide, "norm-bound", 1, norm=1e9, noise=0.3).update) - wide.mean(axis=0)
    assert noisy.std() == pytest.approx(0.3, rel=0.05)


def test_fltrust() -> None:
    rows, own = drawn(5), drawn(1, seed=3)[0]
    rows[4] = -own
    cosines = np.maximum(0, rows @ own / np.linalg.norm(rows, axis=1) / np.linalg.norm(own))
    scaled = rows / np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(own)
    arrays = {name: array[0] for name, array in stacked(own[None]).arrays.items()}
    found = combined(rows, "fltrust", 4, around=Alone(5, arrays))
    np.testing.assert_allclose(flat(found.update), cosines @ scaled / cosines.sum())
    assert found.excluded is not None
    assert [*found.excluded] == [*(cosines == 0)]
    assert found.excluded[4]
    nothing = combined(-np.tile(own, (3, 1)), "fltrust", 3, around=Alone(3, arrays))
    assert not flat(nothing.update).any()


def foolsgold(cosines: NDArray[Any]) -> NDArray[Any]:
    """Fung et al. 2020, Algorithm 1, line by line, with loops."""
    n = len(cosines)
    cs = cosines.copy()
    v = [max(cs[i, j] for j in range(n) if j != i) for i in range(n)]
    α = np.zeros(n)
    for i in range(n):
        pardoned = [cs[i, j] * (v[i] / v[j] if v[j] > v[i] and v[j] else 1) for j in range(n) if j != i]
        α[i] = min(1, max(0, 1 - max(pardoned)))
    α = α / α.max()
    logits = [np.inf if a == 1 else -np.inf if a == 0 else np.log(a / (1 - a)) for a in α]
    return np.array([min(1, max(0, logit + 0.5)) for logit in logits])


def test_foolsgold_follows_histories() -> None:
    rng, around, totals = np.random.default_rng(2), Alone(6), np.zeros((6, 4))
    for _ in range(3):
        rows = rng.normal(size=(6, 7))
        rows[4:] = rows[4] + 0.01 * rng.normal(size=(2, 7))  # two clients that say the same
        totals += rows[:, 3:]  # of the last array alone
        found = combined(rows, "foolsgold", around=around)
        units = totals / np.linalg.norm(totals, axis=1)[:, None]
        α = foolsgold(units @ units.T)
        np.testing.assert_allclose(flat(found.update), α @ rows / α.sum())
    assert found.excluded is not None
    assert found.excluded[4:].all()
    assert not found.excluded[:4].any()
    assert not weights(np.ones((3, 3))).any()  # all alike: nobody counts


# -------------------------------------------------------------------------------------------- before


def test_nearest_neighbours_and_buckets() -> None:
    rows = np.array([[0.0, 0], [1, 0], [2, 0], [10, 0], [11, 0]])
    mixing = nearest_neighbours(stacked(rows), 2)
    np.testing.assert_allclose((mixing @ rows)[:, 0], [1, 1, 1, 23 / 3, 23 / 3])
    parts = buckets(5, 2, Alone(5))
    assert parts.shape == (3, 5)
    assert (parts > 0).sum(axis=0).tolist() == [1] * 5
    assert sorted((parts > 0).sum(axis=1)) == [1, 2, 2]
    np.testing.assert_allclose(parts.sum(axis=1), 1)


@pytest.mark.parametrize("rule", [name for name in RULES.own if RULES[name].mixes and not RULES[name].trusts])
def test_rules_see_the_mixtures(rule: str) -> None:
    """A rule on M·X without making it is the rule on the rows of M·X."""
    rows = drawn(22)
    mixing = buckets(22, 2, Alone(22))
    kind = RULES[rule]
    one = kind(kind.keys(), 2)
    lazily = one.combine(stacked(rows).mixed(mixing), Alone(11))
    plainly = kind(kind.keys(), 2).combine(stacked(mixing @ rows), Alone(11))
    np.testing.assert_allclose(flat(lazily.update), flat(plainly.update), atol=1e-12)


@pytest.mark.parametrize("rule", RULES.own)
@pytest.mark.parametrize("attackers", [0, 1, 3])
def test_the_fewest_updates_suffice(rule: str, attackers: int) -> None:
    """f at its limit: honest updates are near 1, and the combined one stays there, however far attackers are."""
    kind = RULES[rule]
    count = max(kind.least(attackers), 2 * attackers + 2)
    rows = far(1 + 0.01 * drawn(count, 8), attackers, at=-1e6)
    own = {name: array[0] for name, array in stacked(np.ones((1, 8))).arrays.items()}
    found = flat(
        combined(
            rows,
            rule,
            attackers,
            around=Alone(count, own),
            **STEPS.get(rule, {}),
        ).update
    )
    if rule not in ("mean", "norm-bound", "centred-clipping", "foolsgold"):
        np.testing.assert_allclose(found, 1, atol=0.1)
    elif rule in ("norm-bound", "centred-clipping"):
        assert np.linalg.norm(found) <= 1.1 * np.sqrt(8)


@pytest.mark.parametrize("rule", RULES.own)
def test_unequal_weights_count_where_the_rule_says_so(rule: str) -> None:
    rows, own = drawn(11), {name: array[0] for name, array in stacked(np.ones((1, 7))).arrays.items()}
    equal, unequal = (
        flat(combined(rows, rule, 2, w, around=Alone(11, own)).update) for w in (np.ones(11), np.arange(1, 12.0))
    )
    assert np.allclose(equal, unequal) != RULES[rule].weighted
