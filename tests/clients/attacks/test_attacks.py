"""Attacks against the papers' conditions, checked by trying rather than by the formulas that the code solves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from florilegium.clients.attacks.attack import Attack, Seen
from florilegium.clients.attacks.colluding import most_deviations
from florilegium.clients.attacks.registry import ATTACKS
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import Examples


def made(name: str, **keys: Value) -> Attack:
    kind = ATTACKS[name]
    return kind(kind.keys.model_validate(keys))


def seen(honest: int = 8, attackers: int = 2, size: int = 12, knows: str = "updates", **other: Any) -> Seen:
    rng = np.random.default_rng(4)
    rows = 0.5 + rng.normal(size=(honest + attackers, size))
    own = rows[honest:]
    return Seen(**{
        "own": own, "others": rows[:honest] if knows != "attackers" else own,
        "clients": [str(i) for i in range(honest)], "sent": rng.normal(size=size), "before": None,
        "tolerated": attackers, "boost": 5.0, "combined": None, "generator": rng, "memory": {}, "knows": knows, **other,
    })  # fmt: skip


def one(name: str, look: Seen, **keys: Value) -> NDArray[Any]:
    """Return the update that all attackers of one mind return."""
    found = made(name, **keys).forged(look)
    assert found.shape == look.own.shape
    assert (found == found[0]).all()
    return np.asarray(found[0])


def test_simple_attacks() -> None:
    look = seen()
    np.testing.assert_array_equal(made("sign-flip", scale=3.0).forged(look), -3 * look.own)
    drawn = made("random", scale=2.0).forged(look)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 2 * np.linalg.norm(look.own, axis=1))
    before = look.sent - 1.0
    again = seen(before=before)
    assert not made("free-rider").forged(look).any()
    np.testing.assert_allclose(made("free-rider").forged(again), np.ones(look.own.shape))
    wide = seen(size=4000, sent=np.ones(4000), before=np.zeros(4000))
    noise = made("free-rider", copies=False, noise=0.5).forged(wide)
    assert np.linalg.norm(noise, axis=1) == pytest.approx(0.5 * np.sqrt(4000), rel=0.05)


def test_inner_product_and_a_little_is_enough() -> None:
    look = seen()
    np.testing.assert_allclose(one("inner-product", look, scale=2.0), -2 * look.others.mean(axis=0))
    mean, σ = look.others.mean(axis=0), look.others.std(axis=0)
    np.testing.assert_allclose(one("little-is-enough", look, deviations=1.5), mean + 1.5 * σ)
    # n = 50, m = 24, as in the paper's section 3.1.1: s = 2, 24/26 of honest ones, z = 1.43
    assert most_deviations(50, 24) == pytest.approx(1.43, abs=0.01)
    assert most_deviations(10, 1) == 0


@pytest.mark.parametrize("toward", ["deviation", "unit", "sign"])
@pytest.mark.parametrize("knows", ["updates", "attackers"])
def test_min_max_goes_as_far_as_honest_ones_are_apart(toward: str, knows: str) -> None:
    look = seen(attackers=4, knows=knows)
    x = look.others
    farthest = max(np.linalg.norm(a - b) for a in x for b in x)
    found = one("min-max", look, direction=toward)
    assert np.linalg.norm(found - x, axis=1).max() == pytest.approx(farthest)
    further = x.mean(axis=0) + 1.01 * (found - x.mean(axis=0))
    assert np.linalg.norm(further - x, axis=1).max() > farthest
    most = max(sum(np.square(a - b).sum() for b in x) for a in x)
    summed = one("min-sum", look, direction=toward)
    assert np.square(summed - x).sum() == pytest.approx(most)


def test_mimic_copies_the_same_client_while_it_takes_part() -> None:
    look = seen()
    look.others[3] += 20.0
    np.testing.assert_array_equal(one("mimic", look), look.others[3])
    later = seen(memory=look.memory)
    np.testing.assert_array_equal(one("mimic", later), later.others[3])
    without = seen(memory=look.memory, clients=[*"abcdefgh"])
    without.others[6] -= 20.0
    np.testing.assert_array_equal(one("mimic", without), without.others[6])


def test_fang_on_trimmed_mean_lies_beyond_all_honest_models() -> None:
    look = seen()
    found, honest = made("fang-trimmed").forged(look) + look.sent, look.others + look.sent
    grows = look.others.mean(axis=0) > 0
    low, high = honest.min(axis=0), honest.max(axis=0)
    assert (found[:, grows] <= low[grows]).all()
    assert (found[:, ~grows] >= high[~grows]).all()
    reach = np.maximum(np.abs(low), np.abs(high))
    assert (np.abs(found) <= 2 * reach).all()
    blind = seen(attackers=6, knows="attackers")
    drawn, mean, σ = made("fang-trimmed").forged(blind), blind.own.mean(axis=0), blind.own.std(axis=0)
    apart = (mean - drawn) * np.sign(mean) / σ
    assert (apart >= 3 - 1e-9).all()
    assert (apart <= 4 + 1e-9).all()


def test_fang_on_krum_is_what_krum_chooses() -> None:
    look = seen(honest=9, attackers=5, size=6)
    found = one("fang-krum", look)
    s = np.sign(look.others.mean(axis=0))
    λ = -found @ s / 6
    np.testing.assert_allclose(found, -λ * s)

    def chosen(step: float) -> int:
        rows = np.concatenate([look.others, np.tile(-step * s, (5, 1))])
        scores = [sorted(np.square(row - rows).sum(axis=1))[1 : 14 - 5 - 2 + 1] for row in rows]
        return int(np.argmin([sum(one) for one in scores]))

    assert chosen(λ) >= 9
    assert chosen(2 * λ) < 9  # it was halved from what Krum does not choose


def test_adaptive_does_more_harm_than_others_against_the_rule_in_use() -> None:
    def median(rows: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.median(rows, axis=0))

    look = seen(honest=9, attackers=4, combined=median, knows="defence")
    mean = look.others.mean(axis=0)

    def harm(rows: NDArray[Any]) -> float:
        return float((mean - median(np.concatenate([look.others, rows]))) @ mean)

    best = harm(made("adaptive").forged(look))
    assert best > 0
    for name in ("min-max", "min-sum", "inner-product"):
        assert best >= harm(made(name).forged(look)) - 1e-9


def _examples() -> Examples:
    return Examples(torch.zeros(10, 1, 8, 8), torch.arange(10) % 5)


def test_wrong_labels() -> None:
    examples = _examples()
    assert made("label-flip").poisoned(examples, 5, 1).y.tolist() == [4, 3, 2, 1, 0] * 2
    assert made("label-flip").probed(examples) is None
    one = made("label-flip", source=3, target=1)
    assert one.poisoned(examples, 5, 1).y.tolist() == [0, 1, 2, 1, 4] * 2
    probed = one.probed(examples)
    assert probed is not None
    assert probed.y.tolist() == [1, 1]
    assert examples.y.tolist() == [0, 1, 2, 3, 4] * 2


def test_a_backdoor_is_a_square_in_the_corner() -> None:
    examples, one = _examples(), made("backdoor", target=2, share=0.4, size=2, value=7.0)
    poisoned = one.poisoned(examples, 5, 1)
    marked = (poisoned.x[:, 0, 6:, 6:] == 7).all(dim=(1, 2))
    assert int(marked.sum()) == 4
    assert (poisoned.y[marked] == 2).all()
    assert float(poisoned.x.sum()) == 4 * 4 * 7.0
    assert (poisoned.y[~marked] == examples.y[~marked]).all()
    assert not examples.x.any()
    probed = one.probed(examples)
    assert probed is not None
    assert len(probed) == 8
    assert (probed.y == 2).all()
    assert float(probed.x.sum()) == 8 * 4 * 7.0
    assert (one.poisoned(examples, 5, 1).x == poisoned.x).all()
    table = one.probed(Examples(torch.zeros(3, 6), torch.tensor([0, 1, 2])))
    assert table is not None
    assert table.x[0].tolist() == [0, 0, 0, 0, 7, 7]


def test_model_replacement_and_projection() -> None:
    look = seen()
    assert not made("backdoor").forges
    np.testing.assert_allclose(made("backdoor", boost=0.0).forged(look), 5 * look.own)
    bounded = made("backdoor", boost=3.0, norm=2.0).forged(look)
    np.testing.assert_allclose(np.linalg.norm(bounded, axis=1), 2)
    np.testing.assert_allclose(bounded, 2 * look.own / np.linalg.norm(look.own, axis=1)[:, None])
