"""LoRA's matrices: parts, sums of products, components; against dense matrices and PEFT."""

from __future__ import annotations

import numpy as np
import peft
import pytest
import torch
from torch import nn

from florilegium.models.low_rank import A, B, Product, completed, layers_of, mean, padded, product, taken, total
from florilegium.models.parameters import Arrays

LAYER = "query.weight"
SHAPES = {A + LAYER: (4, 9), B + LAYER: (7, 4), "head.weight": (3, 7)}


def _drawn(rank: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    shapes = {**SHAPES, A + LAYER: (rank, 9), B + LAYER: (7, rank)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_layer_has_both_matrices() -> None:
    assert layers_of(["A.q", "A.v", "B.v", "B.k", "head"]) == ["v"]


def test_what_is_cut_and_padded_again_lacks_the_last_rows_and_columns() -> None:
    whole = _drawn(4, 1)
    part = taken(whole, {LAYER: 3})
    assert part[A + LAYER].shape == (3, 9)
    assert part[B + LAYER].shape == (7, 3)
    again = padded(part, SHAPES)
    assert np.array_equal(again[A + LAYER][:3], whole[A + LAYER][:3])
    assert not again[A + LAYER][3:].any()
    assert not again[B + LAYER][:, 3:].any()
    assert again["head.weight"] is whole["head.weight"]
    with pytest.raises(ValueError, match=r"'A.query.weight' has shape \(4, 9\), the network's is \(3, 9\)"):
        padded(whole, {**SHAPES, A + LAYER: (3, 9)})


def test_a_stack_is_the_weighted_sum_of_products_of_any_rank() -> None:
    clients, weights = [_drawn(4, 1), _drawn(2, 2), _drawn(1, 3)], [0.5, 0.3, 0.2]
    expected = sum(w * (c[B + LAYER].astype(float) @ c[A + LAYER]) for w, c in zip(weights, clients, strict=True))
    found = total(clients, LAYER, weights)
    assert found.left.shape == (7, 7)
    np.testing.assert_allclose(found.whole, expected, rtol=1e-6)
    dense = clients[0][B + LAYER] @ clients[0][A + LAYER]
    assert product(clients[0], LAYER).norm() == pytest.approx(np.linalg.norm(dense))


@pytest.mark.parametrize("ranks", [(2, 1), (4, 4, 4)], ids=["narrow", "wider than the matrix"])
def test_components_are_those_of_the_dense_matrix(ranks: tuple[int, ...]) -> None:
    clients = [_drawn(rank, seed) for seed, rank in enumerate(ranks)]
    found = total(clients, LAYER, [1 / len(ranks)] * len(ranks))
    u, values, v = found.components()
    dense = np.linalg.svd(found.whole, compute_uv=False)
    np.testing.assert_allclose(values, dense[: len(values)], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose((u * values) @ v, found.whole, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, np.eye(len(values)), atol=1e-12)
    np.testing.assert_allclose(v @ v.T, np.eye(len(values)), atol=1e-12)
    for kept in range(len(values)):  # Eckart, Young 1936
        error = np.linalg.norm(found.whole - (u[:, :kept] * values[:kept]) @ v[:kept])
        assert error == pytest.approx(np.sqrt(np.sum(dense[kept:] ** 2)), rel=1e-9)


def test_a_product_of_zero_has_orthonormal_sides() -> None:
    u, values, v = Product(np.zeros((7, 2)), np.random.default_rng(1).normal(size=(2, 9))).components()
    assert not values.any()
    np.testing.assert_allclose(u.T @ u, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(v @ v.T, np.eye(2), atol=1e-12)


def test_rows_are_completed_by_directions_that_they_lack() -> None:
    rows, others = np.eye(5)[:2], np.array([[1.0, 1, 1, 0, 0], [0, 0, 3, 4, 0], [0, 1, 0, 0, 0]])
    found = completed(rows, others, 4)
    np.testing.assert_allclose(found[:2], rows)
    np.testing.assert_allclose(found @ found.T, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(np.abs(found[2:]), np.eye(5)[2:4], atol=1e-12)  # the span of others beyond rows


def test_matrices_of_lower_rank_count_as_zeros_in_a_mean() -> None:
    clients = [_drawn(4, 1), _drawn(2, 2)]
    found = mean(clients, A + LAYER, [0.75, 0.25], SHAPES[A + LAYER])
    np.testing.assert_allclose(found[:2], 0.75 * clients[0][A + LAYER][:2] + 0.25 * clients[1][A + LAYER], rtol=1e-6)
    np.testing.assert_allclose(found[2:], 0.75 * clients[0][A + LAYER][2:], rtol=1e-6)


def test_a_convolution_is_changed_by_the_product_as_peft_changes_it() -> None:
    network = peft.inject_adapter_in_model(
        peft.LoraConfig(r=2, lora_alpha=2, target_modules=["conv"]),  # type: ignore[arg-type]
        nn.ModuleDict({"conv": nn.Conv2d(3, 5, 3)}),
    )
    layer = network["conv"]
    assert isinstance(layer, peft.tuners.lora.Conv2d)
    with torch.no_grad():
        layer.lora_B["default"].weight.normal_(generator=torch.Generator().manual_seed(1))
    arrays = {
        "A.conv": layer.lora_A["default"].weight.detach().numpy(),
        "B.conv": layer.lora_B["default"].weight.detach().numpy(),
    }
    expected = layer.get_delta_weight("default").detach().numpy()
    np.testing.assert_allclose(product(arrays, "conv").whole.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)
