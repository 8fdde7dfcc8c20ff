"""Expansions Pv that are never formed: against their own dense form, lengths, seeds, sizes of any kind."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from florilegium.common.errors import ConfigurationError
from florilegium.models.subspace import EXPANSIONS, expansion

SIZES = [(60, 16), (61, 17), (97, 97), (5, 1), (1, 1), (1000, 3), (129, 128), (9, 8), (16, 13)]


@pytest.mark.parametrize("kind", EXPANSIONS)
class TestExpansions:
    @pytest.mark.parametrize(("d", "k"), SIZES)
    def test_backward_is_the_transpose(self, kind: str, d: int, k: int) -> None:
        """⟨Pv, u⟩ = ⟨v, Pᵀu⟩, Pᵀu by automatic differentiation, and both as the dense matrix has them."""
        p = expansion(kind, d, k, seed=1).to(torch.zeros(1, dtype=torch.float64))
        generator = torch.Generator().manual_seed(2)
        v = torch.randn(k, generator=generator, dtype=torch.float64, requires_grad=True)
        u = torch.randn(d, generator=generator, dtype=torch.float64)
        product = p(v)
        (back,) = torch.autograd.grad(product @ u, v)
        assert product.shape == (d,)
        torch.testing.assert_close(product @ u, v @ back)
        dense = p.dense()
        assert dense.shape == (d, k)
        torch.testing.assert_close(dense @ v, product)
        torch.testing.assert_close(dense.T @ u, back)
        assert torch.linalg.matrix_rank(dense) == k

    def test_lengths_are_kept_on_average(self, kind: str) -> None:
        v = torch.randn(37, generator=torch.Generator().manual_seed(1))
        ratios = [float(expansion(kind, 211, 37, seed)(v).norm() / v.norm()) ** 2 for seed in range(400)]
        error = np.std(ratios) / np.sqrt(len(ratios))
        assert abs(np.mean(ratios) - 1) < 4 * error + 1e-6
        assert error < 0.02

    def test_the_seed_alone_decides_in_any_precision(self, kind: str) -> None:
        v = torch.randn(9, generator=torch.Generator().manual_seed(1))
        torch.manual_seed(5)
        first = expansion(kind, 50, 9, seed=3)
        torch.manual_seed(6)
        second = expansion(kind, 50, 9, seed=3)
        assert torch.equal(first(v), second(v))
        assert not torch.equal(first(v), expansion(kind, 50, 9, seed=4)(v))
        double = expansion(kind, 50, 9, seed=3).to(v.double())
        torch.testing.assert_close(double(v.double()).float(), first(v))

    @pytest.mark.long
    def test_another_process_draws_the_same(self, kind: str) -> None:
        code = (
            "import torch; from models.subspace import expansion; "
            f"print(expansion('{kind}', 50, 9, 3)(torch.arange(9.0)).tolist())"
        )
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert said.strip() == str(expansion(kind, 50, 9, 3)(torch.arange(9.0)).tolist())

    def test_it_does_not_depend_on_the_number_of_threads(self, kind: str) -> None:
        # Of the size of FLowDUP's network on CIFAR-10, where a factorisation in float32 would.
        d, k = (150_366, 10_000) if kind != "dense" else (3000, 100)
        before, drawn = torch.get_num_threads(), []
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                drawn.append(expansion(kind, d, k, seed=3).factors)
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(factor, drawn[1][name]) for name, factor in drawn[0].items())

    def test_more_dimensions_than_parameters_are_refused(self, kind: str) -> None:
        with pytest.raises(ConfigurationError, match="a subspace of 6 dimensions does not fit a network of 5"):
            expansion(kind, 5, 6, seed=1)


def test_kronecker_is_a_kronecker_product() -> None:
    p = expansion("kronecker", 35, 12, seed=1).to(torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(p.dense(), torch.kron(p.factors["a"], p.factors["b"])[:35, :12])


def test_fastfood_is_its_product() -> None:
    """The definition with a Hadamard matrix of scipy's, one block after the other."""
    from scipy.linalg import hadamard

    p = expansion("fastfood", 20, 7, seed=1).to(torch.zeros(1, dtype=torch.float64))
    h = hadamard(8) / np.sqrt(8)
    blocks = []
    for signs, order, normal in zip(*(p.factors[n].numpy() for n in ("signs", "permutation", "normal")), strict=True):
        blocks.append(h @ np.diag(normal) @ np.eye(8)[order] @ h @ np.diag(signs))
    expected = np.concatenate(blocks)[:20, :7] * np.sqrt(8 / 20)
    np.testing.assert_allclose(p.dense().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["kronecker", "fastfood"])
def test_memory_does_not_grow_with_the_product(kind: str) -> None:
    """For ``cnn`` and ``resnet18``, whose dense P would have 6 and 447 GB."""
    assert expansion(kind, 150_366, 10_000, seed=1).bytes < 5e6
    assert expansion(kind, 11_173_962, 10_000, seed=1).bytes < 100e6
