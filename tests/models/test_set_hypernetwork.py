"""FLowDUP's hypernetwork: it is a function of the set, and begins near the centre."""

from __future__ import annotations

import torch

from florilegium.models.set_hypernetwork import SetHypernetwork, build_set_hypernetwork


def _inputs() -> torch.Tensor:
    return torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def _build(scale: float) -> SetHypernetwork:
    return build_set_hypernetwork("mlp", (1, 8, 8), 16, 8, 4, scale, 1)


def test_the_order_of_a_set_does_not_matter_and_neither_do_repetitions() -> None:
    h, x = _build(1.0), _inputs()
    for same in (x.flip(0), torch.cat([x, x])):
        torch.testing.assert_close(h(same), h(x))


def test_the_scale_multiplies_the_initial_outputs() -> None:
    x = _inputs()
    torch.testing.assert_close(_build(0.01)(x), 0.01 * _build(1.0)(x))
