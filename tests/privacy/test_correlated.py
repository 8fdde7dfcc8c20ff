"""Tests of privacy.correlated: covariances and sensitivities by brute force, and dp-accounting's account of trees."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.special import binom

from florilegium.privacy.accounting import Release, total
from florilegium.privacy.correlated import MECHANISMS, Matrix, Mechanism, Tree, noise, squared_sensitivity

kinds = pytest.mark.parametrize("kind", ["gaussian", "tree", "matrix"])
periods = pytest.mark.parametrize(("period", "rounds"), [(1, 5), (3, 11), (4, 8), (8, 7), (12, 12)])


def _weights(mechanism: Mechanism, rounds: int) -> np.ndarray:
    """Return w_tj as a matrix, (rounds, number of vectors Z)."""
    rows = [mechanism.weights(number) for number in range(1, rounds + 1)]
    names = sorted({index for row in rows for index in row})
    return np.array([[row.get(name, 0.0) for name in names] for row in rows])


@kinds
def test_noise_has_the_covariance_of_the_weights(kind):
    mechanism, rounds, count = MECHANISMS[kind](5, 9), 9, 40_000
    drawn = np.stack([noise(mechanism, 7, t, 2.0, {"a": (count,)})["a"] for t in range(1, rounds + 1)])
    w = _weights(mechanism, rounds)
    np.testing.assert_allclose(drawn @ drawn.T / count / 4, w @ w.T, atol=0.06)


@kinds
@periods
def test_charges_bound_what_any_client_costs(kind, period, rounds):
    """The exact cost of a client who takes part in rounds u: max over unit vectors x_t of Σ x_tᵀx_u·(WWᵀ)⁻¹_tu."""
    mechanism = MECHANISMS[kind](period, rounds)
    w = _weights(mechanism, rounds)
    precision = np.linalg.inv(w @ w.T)
    rng, exact = np.random.default_rng(0), []
    for slot in range(min(period, rounds)):
        taken = np.arange(slot, rounds, period)
        block = precision[np.ix_(taken, taken)]
        directions = rng.normal(size=(200, len(taken), 3))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        costs = np.einsum("nti,tu,nui->n", directions, block, directions)
        exact.append(max(block.sum(), costs.max()))
    bound = squared_sensitivity(mechanism, rounds)
    assert max(exact) <= bound * (1 + 1e-9)
    if kind != "tree":  # a tree's account also covers its nodes, which are not released one by one
        assert max(exact) == pytest.approx(bound)


@periods
def test_a_tree_charges_for_the_deepest_round_of_each_tree(period, rounds):
    """By listing all complete nodes of each tree and counting those that hold a round."""
    expected = 0
    for begin in range(0, rounds, period):
        size = min(period, rounds - begin)
        nodes = [
            range(m << level, (m + 1) << level)
            for level in range(size.bit_length())
            for m in range(size >> level)
        ]  # fmt: skip
        expected += max(sum(place in node for node in nodes) for place in range(size))
    assert squared_sensitivity(Tree(period, rounds), rounds) == expected


def test_running_totals_of_a_tree_have_the_noise_of_few_nodes():
    period, rounds = 8, 21
    totals = np.cumsum(_weights(Tree(period, rounds), rounds), axis=0)
    for number, row in enumerate(totals, start=1):
        whole, place = divmod(number, period)
        assert set(row) <= {0.0, 1.0}
        assert row.sum() == whole + place.bit_count()


@pytest.mark.parametrize(("period", "rounds"), [(1, 20), (2, 50), (10, 50), (7, 100)])
def test_the_matrix_is_never_worse_than_independent_noise_or_the_whole_root(period, rounds):
    """By mean variance of running totals × cost, from the matrices themselves."""

    def error(c: np.ndarray) -> float:
        slots = [np.isin(np.arange(rounds) % period, slot).astype(float) for slot in range(period)]
        cost = max(float(np.square(c @ slot).sum()) for slot in slots)
        return cost * np.square(np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(c)).sum(axis=1).mean()

    k = np.arange(rounds)
    whole = np.tril((binom(2 * k, k) / 4.0**k)[np.abs(k[:, None] - k)])
    chosen = np.linalg.inv(_weights(Matrix(period, rounds), rounds))
    assert np.allclose(chosen, whole * (chosen.round(12) != 0))
    assert error(chosen) == pytest.approx(
        squared_sensitivity(Matrix(period, rounds), rounds)
        * np.square(np.cumsum(_weights(Matrix(period, rounds), rounds), axis=0)).sum(axis=1).mean()
    )
    assert error(chosen) <= min(error(np.eye(rounds)), error(whole)) * (1 + 1e-9)
    if period == 2:
        assert error(chosen) < 0.7 * min(error(np.eye(rounds)), error(whole))


def test_running_totals_have_the_noise_of_the_literature():
    """At equal privacy, in one pass of T rounds: mean variances (T + 1)/2; (log₂ T + 1)·bits; below the root's."""
    rounds = 1024
    error = {}
    for kind in ("gaussian", "tree", "matrix"):
        mechanism = MECHANISMS[kind](rounds, rounds)
        totals, squares = dict[tuple[int, ...], float](), []
        for number in range(1, rounds + 1):
            for index, weight in mechanism.weights(number).items():
                totals[index] = totals.get(index, 0.0) + weight
            squares.append(sum(np.square([*totals.values()])) if number % 64 in (0, 21) else None)
        kept = [number for number, square in enumerate(squares, start=1) if square is not None]
        error[kind] = squared_sensitivity(mechanism, rounds) * np.array([squares[number - 1] for number in kept])
    np.testing.assert_allclose(error["gaussian"], kept)
    np.testing.assert_allclose(error["tree"], [11 * number.bit_count() for number in kept])
    k = np.arange(rounds)
    root = np.cumsum(np.square([float(binom(2 * n, n)) / 4.0**n if n < 500 else (np.pi * n) ** -0.5 for n in k]))
    assert error["matrix"].mean() < 1.02 * (root * root[-1]).mean() < error["tree"].mean() / 3


@pytest.mark.parametrize(("rounds", "z"), [(1, 2.0), (13, 4.0), (64, 8.0)])
def test_trees_cost_no_more_than_dp_accounting_says_and_hardly_less(rounds, z):
    """Rényi accounting is looser by a little."""
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(z, rounds))
    theirs = accountant.get_epsilon(1e-5)
    ours = total([Release("gaussian", z / squared_sensitivity(Tree(rounds, rounds), rounds) ** 0.5)], 1e-5)
    assert 0.85 * theirs < ours <= theirs


@kinds
def test_other_seeds_and_rounds_give_other_noise(kind):
    mechanism = MECHANISMS[kind](4, 4)
    one = noise(mechanism, 1, 3, 1.0, {"a": (3,), "b": (2, 2)})
    again = noise(mechanism, 1, 3, 1.0, {"a": (3,), "b": (2, 2)})
    assert all(np.array_equal(one[name], again[name]) for name in ("a", "b"))
    for seed, number in ((2, 3), (1, 4)):
        assert not np.allclose(noise(mechanism, seed, number, 1.0, {"a": (3,)})["a"], one["a"])
