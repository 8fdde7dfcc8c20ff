"""Tests of models.ensemble: weighted means by hand, and the limits of one member and of no weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from florilegium.models.ensemble import Ensemble

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def _members(count: int) -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return [nn.Linear(4, 3) for _ in range(count)]


def test_an_ensemble_of_one_is_its_member() -> None:
    (member,) = _members(1)
    for combination in ("probabilities", "logits", "last"):
        found = Ensemble([member], [0.3], combination)(X).softmax(dim=1)
        torch.testing.assert_close(found, member(X).softmax(dim=1))


def test_probabilities_are_averaged_by_weight() -> None:
    a, b = _members(2)
    found = Ensemble([a, b], [1.0, 3.0], "probabilities")(X).softmax(dim=1)
    torch.testing.assert_close(found, 0.25 * a(X).softmax(dim=1) + 0.75 * b(X).softmax(dim=1))


def test_logits_are_averaged_by_weight() -> None:
    a, b = _members(2)
    torch.testing.assert_close(Ensemble([a, b], [1.0, 3.0], "logits")(X), 0.25 * a(X) + 0.75 * b(X))


def test_only_the_last_counts_where_that_is_asked() -> None:
    a, b = _members(2)
    found = Ensemble([a, b], [9.0, 0.1], "last")(X).softmax(dim=1)
    torch.testing.assert_close(found, b(X).softmax(dim=1))


def test_members_without_weight_do_not_count_unless_all_are() -> None:
    a, b = _members(2)
    torch.testing.assert_close(Ensemble([a, b], [0.0, 2.0], "logits")(X), b(X))
    torch.testing.assert_close(Ensemble([a, b], [0.0, 0.0], "logits")(X), (a(X) + b(X)) / 2)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="1 members, 2 weights"):
        Ensemble(_members(1), [1.0, 1.0], "logits")
