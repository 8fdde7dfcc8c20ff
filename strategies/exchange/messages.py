"""What a method's messages are, stated once by its strategy; layers derive from it whether they apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Messages:
    """What clients return, and what the server does with it: facts about a strategy, in its own class body.

    A class states ``messages = Messages(…)`` or, where they depend on keys, a static method ``messages(hyper)`` that
    returns them (:mod:`florilegium.common.declarations`). The modules of :mod:`florilegium.strategies.layers` derive
    from them which layers apply. Fields that are texts are shown to users as reasons, in the form of a main clause;
    a field that is left out claims nothing.

    Attributes:
        returns: what reaches the server of what clients train, and how it is used:
            "sum": updates of the arrays that it sent, of which it uses sums over the cohort alone;
            "parts": such updates, where each client trains a part of the arrays, and each part has its own mean;
            "groups": such updates in sums over groups of clients, which are exchanges of their own;
            "single": what each client has trained, one by one;
            "statistics": sums over the cohort of statistics, not updates;
            "nothing": clients learn alone.
        step: "mean" if the server's step is a weighted mean of updates, whoever they are from and whenever they were
            made; otherwise what else it is.
        features: "whole" if the server's arrays contain all blocks of the network but the last; otherwise why features
            cannot be transferred to another dataset.
        beside: what clients return besides, as sums that no norm bounds; "" if nothing.
        individual: what the server learns of single clients, other than who takes part; "" if nothing.
        cohorts: what cohorts are made of, if chance alone does not draw them; "" if it does.
        own_privacy: by which keys the method protects its sums itself; "" if it does not.
    """

    returns: Literal["sum", "parts", "groups", "single", "statistics", "nothing"]
    step: str = "the server's step is no weighted mean of updates"
    features: str = "the server has no network"
    beside: str = ""
    individual: str = ""
    cohorts: str = ""
    own_privacy: str = ""
