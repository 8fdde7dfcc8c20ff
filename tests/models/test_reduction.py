"""Tests of models.reduction: the SVD's error, parameter counts of PPFE's paper, masks, narrowing, forms of networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from florilegium.models.adapters import adapted
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.models.reduction import dense_layers, expand, factorise, fitting, mask, narrow
from florilegium.models.settings import AdapterSettings


def _network(name: str = "cnn64", classes: int = 10) -> torch.nn.Sequential:
    return build(name, (3, 32, 32), classes, 1)


def _count(arrays: Arrays) -> int:
    return sum(array.size for array in arrays.values())


def _ranks(network: torch.nn.Sequential, *ranks: int) -> dict[str, int]:
    return dict(zip(dense_layers(network), ranks, strict=True))


class TestLowRank:
    def test_the_error_is_the_norm_of_the_dropped_singular_values(self) -> None:
        rng = np.random.default_rng(1)
        arrays: Arrays = {"fc.weight": rng.normal(size=(30, 50)).astype(np.float32), "fc.bias": np.zeros(30)}
        approximation = expand(factorise(arrays, {"fc": 7}))["fc.weight"]
        singular = np.linalg.svd(arrays["fc.weight"].astype(np.float64), compute_uv=False)
        error = np.linalg.norm(approximation - arrays["fc.weight"])
        assert error == pytest.approx(np.sqrt((singular[7:] ** 2).sum()), rel=1e-5)
        assert np.linalg.matrix_rank(approximation, tol=1e-4) == 7

    def test_adapters_keep_their_form(self) -> None:
        """A layer in another form under one of two names would not be the one that computes."""
        adapter = AdapterSettings(kind="lora", targets="fc1.1,fc2.0", rank=4)
        assert dense_layers(adapted(build("mlp", (1, 8, 8), 10, 1), adapter, "mlp")) == ["fc3"]

    @pytest.mark.parametrize(("ranks", "saved"), [((100, 50, 24), 0.06), ((80, 40, 16), 0.18)])
    def test_cnn64_shrinks_as_ppfes_appendix_says(self, ranks: tuple[int, ...], saved: float) -> None:
        network = _network()
        full = get_arrays(network)
        reduced = factorise(full, _ranks(network, *ranks))
        # By hand: 1600×120, 120×64 and 64×10 weights; only layers that get smaller are factorised.
        weights = [
            min(n * m, min(r, n, m) * (n + m)) for r, n, m in zip(ranks, (1600, 120, 64), (120, 64, 10), strict=True)
        ]
        assert _count(full) - _count(reduced) == 1600 * 120 + 120 * 64 + 64 * 10 - sum(weights)
        assert 1 - _count(reduced) / _count(full) == pytest.approx(saved, abs=0.006)

    def test_cnn128_sends_the_share_of_the_paper(self) -> None:
        # Table of section 6.3.3: 98.8 % without the last block, 19.5 % without the three dense ones.
        arrays = get_arrays(_network("cnn128", 100))
        share = [
            sum(a.size for name, a in arrays.items() if not name.startswith(left)) / _count(arrays)
            for left in ("fc3", ("fc1", "fc2", "fc3"))
        ]
        assert share == pytest.approx([0.988, 0.195], abs=0.001)
        # In between, without the last two and with every dense layer factorised: the shared first one alone is smaller.
        reduced = factorise(arrays, _ranks(_network("cnn128", 100), 200, 80, 60))
        sent = sum(a.size for name, a in reduced.items() if not name.startswith(("fc2", "fc3")))
        assert sent / _count(arrays) == pytest.approx(0.838, abs=0.001)

    def test_enough_rank_leaves_the_function_as_it_is(self) -> None:
        network = _network()
        arrays = get_arrays(network)
        rng = np.random.default_rng(1)
        arrays["fc1.0.weight"] = (rng.normal(size=(120, 50)) @ rng.normal(size=(50, 1600)) / 500).astype(np.float32)
        set_arrays(network, arrays)
        reduced = factorise(arrays, {"fc1.0": 60})
        fitted = fitting(network, reduced)
        set_arrays(fitted, reduced)
        x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(fitted(x), network(x), atol=1e-5, rtol=1e-4)

    def test_factors_can_be_factorised_again(self) -> None:
        arrays = get_arrays(_network())
        once = factorise(arrays, {"fc1.0": 80})
        twice = factorise(factorise(arrays, {"fc1.0": 100}), {"fc1.0": 80})
        for name, array in expand(once).items():  # the best of rank 80 is the best of the best of rank 100
            np.testing.assert_allclose(expand(twice)[name], array, atol=1e-5)

    def test_layers_that_would_grow_stay(self) -> None:
        network = _network()
        reduced = factorise(get_arrays(network), _ranks(network, 100, 50, 24))
        assert {"fc1.0.first", "fc1.0.second"} <= reduced.keys()
        assert {"fc2.0.weight", "fc3.weight"} <= reduced.keys()


class TestMasks:
    def test_equal_everywhere_and_of_the_right_share(self) -> None:
        first, second = (mask("fc3", (10, 64), 0.3, 5) for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert (~first).sum() == 192
        assert not np.array_equal(first, mask("fc3", (10, 64), 0.3, 6))


class TestNarrow:
    def test_units_without_weight_go_first_and_nothing_changes(self) -> None:
        network = _network()
        arrays = get_arrays(network)
        arrays["fc2.0.weight"][[3, 40]] = 0
        arrays["fc2.0.bias"][[3, 40]] = -1  # after the ReLU they are 0
        small = narrow(arrays, ["fc2.0", "fc3"], [62])
        assert small["fc2.0.weight"].shape == (62, 120)
        assert small["fc3.weight"].shape == (10, 62)
        fitted = fitting(network, small)
        set_arrays(fitted, small)
        set_arrays(network, arrays)
        x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(fitted(x), network(x))


class TestFitting:
    def test_the_network_given_is_left_alone(self) -> None:
        network = _network()
        before = get_arrays(network)
        fitted = fitting(network, factorise(before, {"fc1.0": 20}))
        with torch.no_grad():
            for parameter in fitted.parameters():
                parameter.zero_()
        for name, array in get_arrays(network).items():
            np.testing.assert_array_equal(array, before[name])
