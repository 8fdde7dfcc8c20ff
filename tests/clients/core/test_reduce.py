"""Tests of clients.reduce: sums and stacks against NumPy, and the check of what clients return."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from florilegium.clients.core.base import Answer
from florilegium.clients.core.reduce import REDUCTIONS, Reduction
from florilegium.clients.core.wire import Request, Work
from florilegium.clients.layers.bound import Bound, longest_update
from florilegium.clients.layers.noise import Contribution
from florilegium.common.errors import RunError
from florilegium.privacy.settings import PrivacySettings

SENT = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.array([10, 20], np.float32)}


def _answers(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{n: rng.normal(size=a.shape).astype(np.float32) for n, a in SENT.items()} for _ in range(count)]


def _reduce(kind, answers, weights, sent=SENT):
    reduction = Reduction(kind, sent)
    for arrays, weight in zip(answers, weights, strict=True):
        reduction.check(arrays)
        reduction.add(arrays, weight)
    return reduction.result()


def test_deltas_are_the_changes_one_by_one() -> None:
    answers = _answers(3)
    result = _reduce("deltas", answers, [1.0, 2.0, 3.0])
    for name, sent in SENT.items():
        np.testing.assert_allclose(result[name], np.stack([answer[name] - sent for answer in answers]), rtol=1e-5)


def test_a_change_that_is_too_long() -> None:
    """One number changed by 3, another by 4: the norm is 5."""
    arrays = {name: array.copy() for name, array in SENT.items()}
    arrays["weight"][0, 0] += 3
    arrays["bias"][1] -= 4
    length, answer = Reduction("delta", SENT).check(arrays), Answer(arrays, 1)
    request = Request(["0"], "train", "delta", Work(1), arrays=SENT)
    Bound(5.001).check(request, answer, length)
    with pytest.raises(RunError, match="its update has norm 5, more than max-update-norm"):
        Bound(4.999).check(request, answer, length)


def test_every_update_is_clipped_before_it_is_summed() -> None:
    """Four equal changes are four times C together; a sum that is clipped as a whole would be C."""
    reduction, clip = Reduction("delta", SENT), Contribution(PrivacySettings(unit="client", clip_norm=0.5), {})
    for _ in range(4):
        change = reduction.change({name: array + 10 for name, array in SENT.items()})
        reduction.add(clip(change), 1.0, changed=True)
    assert np.sqrt(sum(np.square(array).sum() for array in reduction.result().values())) == pytest.approx(2.0, rel=1e-5)


def test_the_longest_update_of_a_device_follows_from_what_was_sent() -> None:
    norm = np.sqrt(sum(np.square(array).sum() for array in SENT.values()))
    assert longest_update(SENT) == pytest.approx(10 * norm)
    assert longest_update({"w": np.zeros(3)}) == 10


class TestDelta:
    def test_by_hand(self):
        """Weights 1 and 3, one number sent as 10 and returned as 12 and 9: 1·(12 − 10) + 3·(9 − 10) = −1."""
        sent = {"x": np.array([10.0], np.float32)}
        answers = [{"x": np.array([12.0], np.float32)}, {"x": np.array([9.0], np.float32)}]
        assert _reduce("delta", answers, [1.0, 3.0], sent)["x"].tolist() == [-1.0]

    def test_the_weighted_mean_of_the_models_follows(self):
        answers, weights = _answers(5), [3.0, 1.0, 4.0, 1.0, 5.0]
        result = _reduce("delta", answers, weights)
        for name, sent in SENT.items():
            mean = np.average([answer[name] for answer in answers], axis=0, weights=weights)
            np.testing.assert_allclose(sent + result[name] / sum(weights), mean, rtol=1e-5)

    def test_travels_in_the_precision_of_the_model_but_is_computed_in_double(self):
        """Differences 2²⁴ + 1 and −2²⁴ + 1, whose sum is 2; float32 has no 2²⁴ + 1, only 2²⁴, and would give 1."""
        sent = {"x": np.array([-1.0], np.float32)}
        answers = [{"x": np.array([2.0**24], np.float32)}, {"x": np.array([-(2.0**24)], np.float32)}]
        result = _reduce("delta", answers, [1.0, 1.0], sent)["x"]
        assert result.dtype == np.float32
        assert result.tolist() == [2.0]

    def test_small_weights_beside_a_large_one_are_not_lost(self):
        """10⁸ + 1 + 1 − 10⁸ = 2, of which float32 would keep nothing (10⁸ > 2²⁴)."""
        sent, one = {"x": np.zeros(1, np.float32)}, {"x": np.ones(1, np.float32)}
        assert _reduce("delta", [one, one, one, one], [1e8, 1.0, 1.0, -1e8], sent)["x"].tolist() == [2.0]

    def test_large_arrays_as_small_ones(self):
        """In whatever pieces they are added, the sum is Σ wᵢ·(returned − sent), in double precision."""
        rng, weights = np.random.default_rng(0), [3.0, 0.25]
        sent, *answers = ({"x": rng.normal(size=(3, 70_001)).astype(np.float32)} for _ in range(3))
        changes = [weight * (a["x"].astype(float) - sent["x"]) for weight, a in zip(weights, answers, strict=True)]
        result = _reduce("delta", answers, weights, sent)["x"]
        np.testing.assert_array_equal(result, (changes[0] + changes[1]).astype(np.float32))

    def test_unchanged_models_sum_to_exactly_zero(self):
        result = _reduce("delta", [SENT, SENT], [0.1, 0.7])
        assert all(not array.any() for array in result.values())

    def test_what_was_sent_and_returned_is_not_changed(self):
        sent = {name: array.copy() for name, array in SENT.items()}
        answers = _answers(2)
        copies = [{name: array.copy() for name, array in answer.items()} for answer in answers]
        _reduce("delta", answers, [2.0, 2.0], sent)
        for before, after in zip([SENT, *copies], [sent, *answers], strict=True):
            for name in SENT:
                np.testing.assert_array_equal(before[name], after[name])


class TestSum:
    @given(
        st.integers(1, 5).flatmap(
            lambda count: st.lists(hnp.arrays(np.float64, (2, 3), elements=st.floats(-1e6, 1e6)), min_size=count)
        )
    )
    def test_is_the_plain_sum_whatever_the_weights(self, parts):
        weights = [float(i) for i in range(len(parts))]
        result = _reduce("sum", [{"x": part} for part in parts], weights, sent={})
        np.testing.assert_allclose(result["x"], np.sum(parts, axis=0), rtol=1e-12, atol=1e-6)

    def test_arrays_need_not_be_those_that_were_sent(self):
        result = _reduce("sum", [{"histogram": np.array([1, 2])}, {"histogram": np.array([3, 4])}], [1.0, 1.0])
        assert result["histogram"].tolist() == [4, 6]

    def test_the_first_answer_is_not_changed_by_the_second(self):
        first = {"x": np.ones(2)}
        _reduce("sum", [first, {"x": np.ones(2)}], [1.0, 1.0], sent={})
        assert first["x"].tolist() == [1, 1]

    def test_travels_in_double_precision(self):
        # In single precision 2^24 + 1 is 2^24: a count of examples would be lost.
        result = _reduce(
            "sum", [{"x": np.array([2**24], np.float32)}, {"x": np.ones(1, np.float32)}], [1.0, 1.0], sent={}
        )
        assert result["x"] == 2**24 + 1


class TestStack:
    def test_is_numpys_stack_in_the_order_of_the_answers(self):
        answers = _answers(3)
        result = _reduce("stack", answers, [1.0, 1.0, 1.0])
        for name in SENT:
            np.testing.assert_array_equal(result[name], np.stack([answer[name] for answer in answers]))
            assert result[name].dtype == np.float32

    def test_integers_and_single_numbers_keep_their_type(self):
        result = _reduce("stack", [{"count": np.array(3)}, {"count": np.array(5)}], [1.0, 1.0], sent={})
        assert result["count"].dtype == np.int64
        assert result["count"].tolist() == [3, 5]


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_without_answers_the_result_is_empty(kind):
    assert Reduction(kind, SENT).result() == {}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_clients_that_answer_only_numbers_are_allowed(kind):
    assert _reduce(kind, [{}, {}], [1.0, 1.0], sent={}) == {}


class TestFailure:
    def test_an_unknown_kind_names_those_allowed(self):
        with pytest.raises(RunError, match="reduce: 'mean' is unknown; allowed: delta, deltas, sum, stack"):
            Reduction("mean", SENT)

    @pytest.mark.parametrize("kind", REDUCTIONS)
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_numbers_that_are_not_finite_name_the_array_and_the_remedy(self, kind, value):
        (answer,) = _answers(1)
        answer["bias"][1] = value
        with pytest.raises(
            RunError,
            match=r"array 'bias' came back with NaN, infinity or numbers above 1e\+15; lower the learning rate",
        ):
            Reduction(kind, SENT).check(answer)

    def test_another_shape_names_the_array_and_both_shapes(self):
        (answer,) = _answers(1)
        answer["weight"] = answer["weight"].T
        with pytest.raises(RunError, match=r"array 'weight' came back as \(3, 2\), expected \(2, 3\)"):
            Reduction("delta", SENT).check(answer)

    def test_a_missing_array_is_named(self):
        (answer,) = _answers(1)
        del answer["bias"]
        with pytest.raises(RunError, match=r"array 'bias' came back as None, expected \(2,\)"):
            Reduction("delta", SENT).check(answer)

    def test_an_additional_array_is_named(self):
        (answer,) = _answers(1)
        with pytest.raises(RunError, match=r"array 'more' came back as \(1,\), expected None"):
            Reduction("delta", SENT).check({**answer, "more": np.zeros(1)})

    @pytest.mark.parametrize("kind", ["sum", "stack"])
    def test_later_answers_must_have_the_shapes_of_the_first(self, kind):
        reduction = Reduction(kind, {})
        reduction.add({"x": np.zeros((2, 3))}, 1.0)
        with pytest.raises(RunError, match=r"array 'x' came back as \(3,\), expected \(2, 3\)"):
            reduction.check({"x": np.zeros(3)})

    @pytest.mark.parametrize("kind", REDUCTIONS)
    def test_a_refused_answer_leaves_the_result_alone(self, kind):
        good, bad = _answers(2)
        bad["weight"][0, 0] = np.nan
        reduction = Reduction(kind, SENT)
        reduction.check(good)
        reduction.add(good, 2.0)
        with pytest.raises(RunError):
            reduction.check(bad)
        alone = _reduce(kind, [good], [2.0])
        for name, array in reduction.result().items():
            np.testing.assert_array_equal(array, alone[name])

    def test_a_difference_to_nothing_names_the_array(self):
        with pytest.raises(RunError, match="'x'"):
            _reduce("delta", [{"x": np.zeros(2)}], [1.0], sent={})
