"""How a method's clients train, stated once by its client; layers derive from it whether they apply."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Training:
    """How a client uses its examples: facts about a client class, in its own body.

    A class states ``training = Training(…)`` or, where it depends on keys, a static method ``training(hyper)`` that
    returns it (:mod:`florilegium.common.declarations`). The modules of :mod:`florilegium.clients.layers` derive from it
    which layers apply. A field that is left out claims nothing.

    Attributes:
        examples: "gradients" if the client uses its examples in ``descend`` and ``released`` alone; otherwise what else
            it uses them for, in a main clause that is shown to users.
        stacked: whether the client trains by ``descend``, with no hook but a ``Correction``, and keeps nothing in
            objects that the clients of a process share while others run, other than in its networks. If it has an
            objective of its own, this is a ``StackedObjective``; any other is minimised by the client alone.
    """

    examples: str = "it uses examples for more than the gradients of their losses"
    stacked: bool = False
