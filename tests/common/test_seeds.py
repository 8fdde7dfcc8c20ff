"""Tests of common.seeds: generators are named, independent and leave the global ones alone."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from florilegium.common.seeds import entropy, numpy_generator, torch_generator, uniforms

words = st.one_of(st.integers(), st.text(alphabet="abc123-", max_size=4))
paths = st.lists(words, max_size=4).map(tuple)
names = st.tuples(st.integers(0, 3), paths)


def _typed(path: tuple[int | str, ...]) -> tuple[tuple[type, int | str], ...]:
    return tuple((type(word), word) for word in path)


class TestEntropy:
    @given(names, names)
    def test_names_are_equal_exactly_when_their_words_and_types_are(self, a, b):
        same = a[0] == b[0] and _typed(a[1]) == _typed(b[1])
        assert (entropy(a[0], *a[1]) == entropy(b[0], *b[1])) == same

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ((1, "client", "3"), (1, "client", 3)),  # a word and a number
            ((1, "ab", "c"), (1, "a", "bc")),  # where one word ends
            ((1, "a"), (1, "a", "")),  # an empty word more
            ((1, "a", "b"), (1, "b", "a")),  # order
            ((1, "a"), (2, "a")),  # seed
            ((1, 2), (12,)),
        ],
    )
    def test_similar_names_differ(self, one, other):
        assert entropy(*one) != entropy(*other)

    def test_is_the_first_half_of_sha256_whatever_the_machine(self):
        digest = hashlib.sha256(b"int:7\x1fstr:client\x1fint:3").hexdigest()
        assert entropy(7, "client", 3) == int(digest[:32], 16)


class TestGenerators:
    def test_equal_names_give_equal_streams(self):
        one, other = numpy_generator(1, "cohort", 5), numpy_generator(1, "cohort", 5)
        np.testing.assert_array_equal(one.random(100), other.random(100))
        one, other = torch_generator(1, "cohort", 5), torch_generator(1, "cohort", 5)
        assert torch.equal(torch.rand(100, generator=one), torch.rand(100, generator=other))

    def test_different_names_give_different_streams(self):
        numpy_streams = {numpy_generator(1, "round", r).integers(2**62) for r in range(50)}
        torch_streams = {torch.randint(2**62, (1,), generator=torch_generator(1, "round", r)).item() for r in range(50)}
        assert len(numpy_streams) == len(torch_streams) == 50

    def test_streams_do_not_depend_on_what_was_drawn_elsewhere(self):
        first = numpy_generator(1, "a").random(5)
        numpy_generator(1, "b").random(1000)
        np.random.default_rng().random(3)
        np.testing.assert_array_equal(numpy_generator(1, "a").random(5), first)

    def test_global_generators_are_untouched(self):
        def snapshot():
            return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()  # noqa: NPY002

        before = snapshot()
        numpy_generator(3, "x").random(10)
        torch.rand(10, generator=torch_generator(3, "x"))
        assert snapshot() == before


def test_few_uniform_numbers_are_independent_and_named():
    drawn = uniforms(7, ["fleet"], [str(client) for client in range(500)])
    assert drawn.shape == (500, 8)
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 0.01
    assert np.abs(np.corrcoef(drawn.T) - np.eye(8)).max() < 0.15
    assert np.array_equal(uniforms(7, ["fleet"], ["3"])[0], drawn[3])  # whoever else is asked for
    assert not (uniforms(8, ["fleet"], ["3"]) == drawn[3]).any()
    named = uniforms(7, ["fleet"], ["3", "x"], ["train", 2])[1]
    digest = hashlib.sha512(entropy(7, "fleet", "x", "train", 2).to_bytes(16, "big")).digest()
    words = [int.from_bytes(digest[i : i + 8], "big") for i in range(0, 64, 8)]
    assert named.tolist() == [((word >> 11) + 0.5) / 2**53 for word in words]
