"""Buffered asynchronous rounds: a server step for every K updates, while other clients go on with older models.

FedBuff (Nguyen et al. 2022, Algorithm 1) and, with K = 1 and averages of models, FedAsync (Xie et al. 2019, Algorithm
1). A round is a server step. The cohort's size is the concurrency C: before each step, as many clients begin with the
present model as are missing to C. The step takes the K replies that arrive first (``arrivals.py``). One that was sent
the model s steps ago has the staleness s and the weight p_k/(1 + s)^a; the divisor is Σ p_k, so that stale updates make
the step shorter. Another client begins at once in the place of one that fails. Running statistics of batch norm are
always averaged as models are. With K = C a step is the exchange of a synchronous round.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import count
from typing import Any

from numpy.typing import NDArray

from florilegium.models.parameters import Arrays, is_statistic
from florilegium.strategies.core.arrivals import Arrivals, DeviceArrivals, SimulatedArrivals, Step
from florilegium.strategies.core.federation import Federation
from florilegium.strategies.core.round import Arguments, Round
from florilegium.strategies.exchange.exchange import Outcome, joined
from florilegium.strategies.folder.run_folder import BUFFER


class Buffer:
    """Collects updates for server steps.

    Args:
        federation: the run's federation; its roster must be ready when the first step begins.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation, self._settings = federation, federation.settings.buffer

    @cached_property
    def _arrivals(self) -> Arrivals:
        kind = DeviceArrivals if self._federation.roster.deployed else SimulatedArrivals
        return kind(self._federation)

    @property
    def busy(self) -> set[str]:
        """The clients that have been sent a model and have not replied yet."""
        return self._arrivals.busy

    def step(self, round: Round, sent: Arrays, arguments: Arguments) -> Outcome:
        """Return the merged updates for a server step; its arrays are Σ p_k/(1 + s_k)^a·Δ_k.

        Args:
            round: the round.
            sent: the arrays that clients are sent which begin now.
            arguments: returns the phase's arguments for the clients of a round.

        Raises:
            RunError: if a smaller share than ``min-success`` of K updates has arrived when all clients have replied,
                failed or been given up.
        """
        arrivals, number, size = self._arrivals, round.number, self._settings.size
        arrivals.models[number] = sent
        attempts = count(1)

        def begin(heard: Collection[str], used: int) -> None:
            self._begin(round, arguments, number, next(attempts), heard=heard, used=used)

        self._begin(round, arguments, number)
        enough = max(1, math.ceil(self._federation.settings.min_success * size))
        outcomes = arrivals.take(
            round, Step(size, enough, lambda version: self._too_stale(number - version), begin, arguments)
        )
        merged = joined([outcome for _, outcome in outcomes])
        for version, outcome in outcomes:
            for name, array in self._weighted(outcome, number - version, arrivals.models[version], sent).items():
                merged.arrays[name] = merged.arrays[name] + array if name in merged.arrays else array
        arrivals.forget()
        merged.failures |= round.record.failures  # among them those of clients that were given up
        return round.require(merged, size)

    def _begin(
        self, round: Round, arguments: Arguments, *path: int, heard: Collection[str] = (), used: int = 0
    ) -> None:
        """Have as many clients begin with the present model as are missing to C.

        Args:
            round: the round.
            arguments: returns the phase's arguments.
            path: names the random draws.
            heard: clients that do not begin, since they have replied or failed in this step.
            used: number of clients whose places stay free until the next step, since their updates have arrived.
        """
        federation, pending = self._federation, self._arrivals.pending
        free = [client for client in federation.method.trainable() if client not in pending and client not in heard]
        missing = min(federation.cohort_size(round.number) - len(pending) - used, len(free))
        if missing > 0 and (drawn := federation.draw(free, missing, *path, wait=not pending)):
            self._arrivals.begin(round, drawn, path, arguments)

    def _weighted(self, outcome: Outcome, staleness: int, old: Arrays, new: Arrays) -> Arrays:
        """Return the sum of updates of clients that were all sent the model ``old``, times its staleness's factor."""
        factor = (1 + staleness) ** -self._settings.staleness_exponent
        models = self._settings.average == "models"

        def update(name: str, Δ: NDArray[Any]) -> NDArray[Any]:
            if staleness and (models or is_statistic(name)):  # stale differences could make running variances negative
                Δ = Δ + outcome.weight * (old[name] - new[name].astype(float))  # x_new − x_t = Δ + (x_τ − x_t)
            return factor * Δ

        return {name: update(name, Δ) for name, Δ in outcome.arrays.items()}

    def _too_stale(self, staleness: int) -> str:
        most = self._settings.max_staleness
        if not most or staleness <= most:
            return ""
        return f"{staleness} server steps have overtaken its update (key buffer.max-staleness = {most})"

    # ------------------------------------------------------------------------------------- checkpoints

    def arrays(self) -> Arrays:
        """Return the models that a resumed run needs, for checkpoints."""
        models = {} if self._federation.roster.deployed else self._arrivals.models
        return {f"{BUFFER}{v}:{name}": array for v, sent in models.items() for name, array in sent.items()}

    def facts(self) -> dict[str, Any]:
        """Return the other state for checkpoints; JSON values."""
        names = next(iter(self._arrivals.models.values()), {})
        return {"names": [*names], "arrivals": self._arrivals.facts()}

    def take_back(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`arrays` and :meth:`facts` returned."""
        arrivals = self._arrivals
        arrivals.take_back(facts["arrivals"])
        fixed = self._federation.start.frozen.arrays  # which earlier versions stored with each model
        names = [name for name in facts["names"] if name not in fixed]
        arrivals.models = {v: {n: arrays[f"{BUFFER}{v}:{n}"] for n in names} for v in arrivals.versions}
