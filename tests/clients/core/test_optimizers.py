"""Tests of clients.optimizers: step by step against torch.optim's plain loops, in every layout and edge case."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from florilegium.clients.core.optimizers import SGD, Adam

rates = st.sampled_from([1e-3, 0.1, 1.5])
decays = st.sampled_from([0.0, 1e-2, 0.5])


def _parameters(seed: int = 0) -> list[nn.Parameter]:
    """A matrix, a vector, a single number, and a convolution in channels-last layout, in double precision.

    Long steps on a curved loss magnify rounding: in single precision, beyond any bound worth testing.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = (3, 4), (5,), (), (4, 3, 5, 5)
    matrix, vector, number, kernel = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return [nn.Parameter(t) for t in (matrix, vector, number, kernel.to(memory_format=torch.channels_last))]


def _loss(parameters: list[nn.Parameter], step: int) -> Tensor:
    """Something curved whose gradient is different in every step and for every number."""
    return sum((torch.sin(p * (i + 1 + step)) + 0.1 * p**2).sum() for i, p in enumerate(parameters))


def _run(optimizer, parameters, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        _loss(parameters, step).backward()
        optimizer.step()


def _assert_close(ours: list[nn.Parameter], theirs: list[nn.Parameter]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)


class TestAgainstTorch:
    @settings(max_examples=20)
    @given(rates, st.sampled_from([0.0, 0.5, 0.99]), decays, st.integers(1, 4))
    def test_sgd(self, rate, momentum, decay, steps):
        ours, theirs = _parameters(), _parameters()
        _run(SGD(ours, rate, momentum, decay), ours, steps)
        reference = torch.optim.SGD(theirs, lr=rate, momentum=momentum, weight_decay=decay, foreach=False, fused=False)
        _run(reference, theirs, steps)
        _assert_close(ours, theirs)

    @settings(max_examples=20)
    @given(rates, decays, st.integers(1, 4))
    def test_adam(self, rate, decay, steps):
        ours, theirs = _parameters(), _parameters()
        _run(Adam(ours, rate, decay), ours, steps)
        _run(torch.optim.Adam(theirs, lr=rate, weight_decay=decay, foreach=False, fused=False), theirs, steps)
        _assert_close(ours, theirs)


OPTIMIZERS = {
    "sgd": lambda parameters: SGD(parameters, 0.1, 0.0, 0.0),
    "momentum": lambda parameters: SGD(parameters, 0.1, 0.9, 0.01),
    "adam": lambda parameters: Adam(parameters, 0.1, 0.01),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
class TestEdges:
    def test_updates_in_place_and_keeps_the_layout(self, make):
        parameters = _parameters()
        places = [(p.data_ptr(), p.stride()) for p in parameters]
        _run(make(parameters), parameters, 2)
        assert [(p.data_ptr(), p.stride()) for p in parameters] == places
        assert all(not torch.equal(p, q) for p, q in zip(parameters, _parameters(), strict=True))

    def test_single_precision_is_double_precision_rounded(self, make):
        single = [nn.Parameter(p.detach().float()) for p in _parameters()]
        double = [nn.Parameter(p.detach().double()) for p in single]
        for parameters in (single, double):
            _run(make(parameters), parameters, 2)
        for mine, exact in zip(single, double, strict=True):
            torch.testing.assert_close(mine, exact.float(), rtol=1e-4, atol=1e-5)

    def test_zero_grad_forgets(self, make):
        parameters = _parameters()
        optimizer = make(parameters)
        _loss(parameters, 0).backward()
        optimizer.zero_grad()
        assert [p.grad for p in parameters] == [None] * 4

    def test_a_parameter_without_gradient_is_treated_as_one_with_gradient_zero(self, make):
        ours, theirs = _parameters(), _parameters()
        for parameters, fill in ((ours, False), (theirs, True)):
            optimizer = make(parameters)
            for step in range(3):
                optimizer.zero_grad()
                _loss(parameters[:3], step).backward()
                if fill:
                    parameters[3].grad = torch.zeros_like(parameters[3])
                optimizer.step()
        _assert_close(ours, theirs)

    def test_gradients_are_not_changed(self, make):
        parameters = _parameters()
        optimizer = make(parameters)
        _loss(parameters, 0).backward()
        before = [p.grad.clone() for p in parameters]
        optimizer.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(parameters, before, strict=True))

    def test_a_generator_of_parameters_is_as_good_as_a_list(self, make):
        ours, theirs = _parameters(), _parameters()
        _run(make(p for p in ours), ours, 2)
        _run(make(theirs), theirs, 2)
        _assert_close(ours, theirs)

    def test_a_gradient_in_another_layout_is_the_same_gradient(self, make):
        """As per-example gradients (Opacus), torch.func or torch.from_numpy give it to a channels-last kernel."""
        ours, theirs = _parameters()[3:], _parameters()[3:]
        gradient = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        ours[0].grad = gradient.clone()
        theirs[0].grad = gradient.to(memory_format=torch.channels_last)
        for parameters in (ours, theirs):
            make(parameters).step()
        _assert_close(ours, theirs)
