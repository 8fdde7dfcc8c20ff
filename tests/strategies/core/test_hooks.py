"""Tests of what a method may override or call on the server's side."""

from __future__ import annotations

from typing import Any, cast

from florilegium.clients.core.base import BaseClient
from florilegium.common.settings import NoHyper
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.hooks import Hooks
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.roster import Roster
from tests.support import settings


class Plain(CohortStrategy):
    """A method that learns nothing."""

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Return the model as it is."""
        return model


def test_a_method_sees_few_names() -> None:
    plain = Plain(Setup(settings(), NoHyper(), BaseClient, Roster(list, 1, "code"), cast(Any, None)))
    shown = {name for names in (vars(CohortStrategy), vars(Hooks), vars(plain)) for name in names if name[0] != "_"}
    assert {"train_round", "measure", "start", "clients", "federation"} < shown
    assert len(shown) <= 25, sorted(shown)
