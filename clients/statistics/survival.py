"""Survival, client side: numbers at risk, and sums of the Cox model (``models/statistics/survival.py``).

With public intervals times are rounded before anything is counted. Without them a client returns the times of its own
events once; censored times never leave it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.statistics import SurvivalHyper
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays
from florilegium.models.statistics import exact
from florilegium.models.statistics.discrete import periods
from florilegium.models.statistics.survival import counts, cox, risk, rounded
from florilegium.partitions.feature_names import features_of
from florilegium.partitions.loading import dataset_of
from florilegium.tasks.task import TIMES

Array = NDArray[np.float64]
CLOSE = 1e-4
"""How far encoded numbers, in single precision, may be from 0 and 1."""


class SurvivalClient(BaseClient):
    """Counts its rows at risk, and adds up what Newton's steps of a Cox model need."""

    needs = frozenset({TIMES})
    training = Training()
    uses_finetuning = "never"
    augments = False
    hyper: SurvivalHyper

    @phase
    def events(self, arrays: Arrays, *, length: int) -> Answer:
        """Return ``times`` (length,), the different times of the client's events, then zeros."""
        times = np.unique(self._times[self._events > 0])
        if len(times) > length:
            raise RunError(f"it has {len(times)} times of events, more than the {length} that were asked for")
        return self._sent({"times": np.pad(times, (0, length - len(times)))})

    @phase
    def count(self, arrays: Arrays, *, number: int, by_client: bool = False) -> Answer:
        """Return ``at_risk`` and ``deaths`` (number, T) for the received ``grid`` (T,).

        The groups are those of ``places``: the one of a row's features there that is 1; of one place, its 0 or 1.
        With ``by_client`` all rows are in the received ``group`` ().
        """
        places = arrays["places"]
        if by_client:
            groups = np.full(len(self._x), int(arrays["group"]))
        elif len(places) > 1:
            groups = self._x[:, places].argmax(axis=1)
        elif len(places):
            groups = self._zero_or_one(int(places[0]))
        else:
            groups = np.zeros(len(self._x), np.int64)
        return self._sent(counts(self._times, self._events, groups, arrays["grid"], number))

    @phase
    def moments(self, arrays: Arrays) -> Answer:
        """Return ``moments`` (3, 1 + d): exact parts of the number of rows and Σ x of the received ``columns``."""
        x = self._x[:, arrays["columns"]]
        return self._sent({"moments": exact.parts(np.column_stack([np.ones(len(x)), x]))})

    @phase
    def spread(self, arrays: Arrays) -> Answer:
        """Return ``spread`` (d,), Σ |x − center|."""
        return self._sent({"spread": np.abs(self._x[:, arrays["columns"]] - arrays["center"]).sum(axis=0)})

    @phase
    def stratum(self, arrays: Arrays) -> Answer:
        """Return ``loss``, ``gradient`` and ``hessian`` of the client's own partial likelihood at ``beta`` (q,)."""
        grid = np.unique(self._times[self._events > 0])
        return self._sent(cox(risk(self._z(arrays), self._times, self._events, grid, arrays["beta"]), self.hyper.ties))

    @phase
    def risks(self, arrays: Arrays) -> Answer:
        """Return the sums of the Cox model at each time of ``grid`` (T,), for ``beta`` (q,)."""
        return self._sent(risk(self._z(arrays), self._times, self._events, arrays["grid"], arrays["beta"]))

    @phase
    def periods(self, arrays: Arrays) -> Answer:
        """Return the sums of the discrete model for ``alpha`` (T,) and ``beta`` (q,), in the intervals of ``grid``."""
        return self._sent(
            periods(self._z(arrays), self._times, self._events, arrays["grid"], arrays["alpha"], arrays["beta"])
        )

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Raise :class:`RunError`, since models are fitted by other phases."""
        raise RunError("method 'survival' trains by Newton steps: it needs its own strategy")

    # --------------------------------------------------------------------------------------- details

    @cached_property
    def _x(self) -> Array:
        x: Array = self.data.train.x.flatten(1).double().numpy(force=True)
        return x

    @cached_property
    def _raw(self) -> Array:
        y: Array = self.data.train.y.double().numpy(force=True)
        return y

    @cached_property
    def _times(self) -> Array:
        """Times (n,), in public intervals if there are some; those after the last one at its end."""
        times = rounded(self._raw[:, 0], self.hyper.width)
        return np.minimum(times, self.hyper.horizon) if self.hyper.width else times

    @cached_property
    def _events(self) -> Array:
        late = self.hyper.width and self._raw[:, 0] > self.hyper.horizon
        return np.where(late, 0.0, self._raw[:, 1])

    def _zero_or_one(self, place: int) -> NDArray[np.int64]:
        """Return the values (n,) of a column of 0 and 1 from a feature, which may be standardised.

        Raises:
            RunError: if it has other values, or rows lack one, which are filled in.
        """
        one = features_of(dataset_of(self.settings))[place]
        values = one.mean + one.std * self._x[:, place]
        found = np.rint(values).astype(np.int64)
        if (np.abs(values - found) > CLOSE).any() or not np.isin(found, (0, 1)).all():
            raise RunError(
                f"survival.group: column '{one.column}' has other values than 0 and 1, or lacks some; name a column "
                "of categories, or one of 0 and 1 that is known in all rows"
            )
        return found

    def _z(self, arrays: Arrays) -> Array:
        z: Array = (self._x[:, arrays["columns"]] - arrays["center"]) / arrays["scale"]
        return z

    def _sent(self, arrays: Arrays) -> Answer:
        return Answer(arrays, len(self.data.train))
