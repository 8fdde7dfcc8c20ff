"""Generalised linear models, client side: sums over the client's rows (``models/statistics/glm.py``).

All phases receive ``columns``, the places of the features that are in the model, (d,); those after the first also
``center`` and ``scale``, (d,), of z = (x − center) / scale, and parameters ``theta`` (m, q): q = d + 1 if all clients
have one intercept, which comes first, else d. What they return is summed over clients.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.statistics import GLMHyper
from florilegium.clients.statistics.private import charge, noisy, own_unit
from florilegium.clients.statistics.private_glm import each_of, private_family, scales_of
from florilegium.common.errors import RunError
from florilegium.common.text import listed
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.models.statistics import exact, mixed
from florilegium.models.statistics.glm import FAMILIES, Family, Rows, intercept, margins, sums
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.feature_names import features_of
from florilegium.partitions.loading import dataset_of
from florilegium.privacy.clipping import clip_rows
from florilegium.tasks.task import FAMILY

Array = NDArray[np.float64]

WEIGHT, BIAS = "fc.1.weight", "fc.1.bias"
"""Names of the two arrays of the network ``linear``."""
RATIO = f"{BESIDE}ratio"
"""λ = σ_u²/σ² of a random intercept, (), sent with the model."""
CLEAR, NEAR = 0.5, 1e-5
"""A row moves towards its target if its margin is above the first, away from it if it is below minus the second."""


class GLMClient(BaseClient):
    """Adds up what Newton's steps need; finds its own intercept, if clients have one."""

    needs = frozenset({FAMILY})
    training = Training("it protects its sums itself; set glm.privacy-unit and glm.epsilon")
    uses_finetuning = "never"
    augments = False
    by_column = True
    hyper: GLMHyper

    @classmethod
    def own_unit(cls, hyper: GLMHyper) -> str:
        """Return the unit that clients' own noise protects; "none" if they add none."""
        return own_unit(hyper)

    @phase
    def moments(self, arrays: Arrays) -> Answer:
        """Return ``moments`` (3, 2 + d + m): exact parts of the sums of 1, w, w·x and w·y (``exact.py``)."""
        rows = self._kept_rows(arrays, scaled=False)
        w = rows.weights[:, None]
        return self._sent(rows, {"moments": exact.parts(np.column_stack([np.ones(len(w)), w, w * rows.z, w * rows.y]))})

    @phase
    def spread(self, arrays: Arrays) -> Answer:
        """Return ``spread`` (d,), Σ w |x − center|."""
        rows = self._kept_rows(arrays, scaled=False)
        return self._sent(rows, {"spread": rows.weights @ np.abs(rows.z - arrays["center"])})

    @phase
    def products(self, arrays: Arrays) -> Answer:
        """Return ``products`` (d, d), Σ w z zᵀ; less the client's own mean of z, if it has its own intercept.

        In a private run: ``products`` (2 + d, 2 + d) of the clipped rows (1, x, y/bound).
        """
        if self._private:
            rows = self._kept_rows(arrays, scaled=True)
            y = np.clip(rows.y / self.hyper.target_bound, -1, 1)
            joint, h = clip_rows(np.column_stack([rows.z, y]), self.hyper.clip), self.hyper
            charge(self, h, multiplier := each_of(h, "linear"), 1)
            products = noisy(self, h, "products", joint.T @ joint, multiplier * h.clip**2)
            return self._sent(rows, {"products": products})
        rows = self._kept_rows(arrays, scaled=False)
        centred = (rows.z - arrays["center"]) / arrays["scale"]
        if self._own and rows.weights.any():
            centred = centred - np.average(centred, axis=0, weights=rows.weights)
        return self._sent(rows, {"products": centred.T @ (rows.weights[:, None] * centred)})

    @phase
    def newton(self, arrays: Arrays) -> Answer:
        """Return ``loss`` (), ``gradient`` (m·q,), ``hessian`` (m·q, m·q) at θ, and how the step before moved rows.

        ``against`` and ``towards`` () count the rows that ``step`` (m, q) moves away from their targets, and towards
        them; ``constant`` () is the part of log p that depends on targets alone, ``intercepts`` (m,) n times α and
        ``inside`` () n if the client's own intercept is finite. In a private run: gradient and Hessian of clipped rows.
        """
        rows, θ, family = self._kept_rows(arrays, scaled=True), arrays["theta"], self._family
        if self._private:
            h, family = self.hyper, private_family(self.hyper, self.task.family)
            found, scales = sums(family, rows, θ), scales_of(h, family, self.task.family)
            charge(self, h, each_of(h, self.task.family), 2)
            return self._sent(rows, {
                name: noisy(self, h, name, found[name], scale)
                for name, scale in zip(("gradient", "hessian"), scales, strict=True)
            })  # fmt: skip
        found, shift, α = sums(family, rows, θ, own=self._own), np.zeros(len(θ)), np.zeros(len(θ))
        if self._own:
            α = intercept(family, rows, θ)
            shift = α - intercept(family, rows, θ - arrays["step"])
        far = margins(self.task.family, rows, arrays["step"], shift)[rows.weights > 0]
        inside = self._own and bool(len(far)) and bool((np.abs(α) < 20).all() or family.dispersed)
        counted = {
            "against": float((far < -NEAR).sum()), "towards": float((far > CLEAR).sum()),
            "constant": self._constant(rows), "inside": float(inside * len(rows.y)),
        }  # fmt: skip
        return self._sent(
            rows, found | {name: np.asarray(value) for name, value in counted.items()}
            | {"intercepts": α * float(inside * len(rows.y))}
        )  # fmt: skip

    @phase
    def variances(self, arrays: Arrays) -> Answer:
        """Return ``products`` (L, q + 2, q + 2) and ``determinants`` (L,) for ``ratios`` (L,) (``mixed.py``).

        The rows are (1, z, y − η), with η at the received θ.
        """
        rows = self._kept_rows(arrays, scaled=True)
        joint = np.column_stack([rows.z, rows.y - rows.predictors(arrays["theta"])])
        return self._sent(rows, mixed.sums(joint, arrays["ratios"]))

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Raise :class:`RunError`, since models are fitted by phase ``newton``."""
        raise RunError("method 'glm' trains by Newton steps: it needs its own strategy")

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the received model, with the client's own intercept if clients have one, on the test examples."""
        self._check_columns()
        self._ratio = float(arrays.get(RATIO, np.zeros(())))
        return super().test({name: array for name, array in arrays.items() if name != RATIO})

    def personalise(self) -> bool:
        """Set the client's own intercept: the best one for its rows, or the expected one of a random intercept."""
        if self.hyper.intercept == "common" or not self.data.labeled or not len(self.data.train):
            return False
        model = get_arrays(self.model)
        weight, bias = model[WEIGHT].astype(np.float64), model[BIAS].astype(np.float64)
        rows = self._rows(self.data.train, np.arange(weight.shape[1]))
        first = len(weight) - rows.y.shape[1]  # of two logits of a logistic model the first is 0
        known = Rows(rows.z, rows.y, rows.weights, np.zeros(len(rows.y)))
        if self.hyper.intercept == "client":
            bias = np.concatenate([bias[:first], intercept(self._family, known, weight[first:])])
        else:
            residual = rows.y[:, 0] - known.predictors(weight)[:, 0] - bias[0]
            bias = bias + self._ratio / (1 + self._ratio * len(residual)) * residual.sum()
        set_arrays(self.model, {WEIGHT: weight.astype(np.float32), BIAS: bias.astype(np.float32)})
        return True

    # --------------------------------------------------------------------------------------- details

    _ratio: float = 0.0

    @property
    def _family(self) -> Family:
        return FAMILIES[self.task.family]

    @property
    def _own(self) -> bool:
        return self.hyper.intercept == "client"

    @property
    def _private(self) -> bool:
        return self.hyper.privacy_unit != "none"

    @cached_property
    def _offset(self) -> tuple[int, float, float] | None:
        """The place of the offset among the features, and mean and deviation that encode it; None: there is none."""
        if not self.hyper.offset:
            return None
        features = features_of(dataset_of(self.settings))
        place = next(i for i, one in enumerate(features) if one.name == self.hyper.offset)
        return place, features[place].mean, features[place].std

    def _check_columns(self) -> None:
        """Raise :class:`RunError` if the client lacks a column of the model, so that its rows are in no sum."""
        if not self.data.terms.lacking:
            return
        known = {one.column for one in features_of(dataset_of(self.settings))}
        if lost := self.data.terms.lacks([*(listed(self.hyper.columns) or known), self.hyper.offset]):
            raise RunError(f"it lacks column '{lost[0]}', or its owner withholds it; other glm.columns may do without")

    def _kept_rows(self, arrays: Arrays, *, scaled: bool) -> Rows:
        """Return the training rows for what has been agreed, which the process keeps between requests."""
        self._check_columns()
        columns: NDArray[np.int64] = arrays["columns"]
        agreed = [columns, *([arrays["center"], arrays["scale"]] if scaled else [])]

        def make(before: tuple[NDArray[np.int64], Rows] | None) -> tuple[tuple[NDArray[np.int64], Rows], int]:
            if scaled and before is not None and np.isin(columns, before[0]).all():
                rows = before[1]
                rows = replace(rows, z=rows.z[:, np.searchsorted(before[0], columns)])
            else:
                rows = self._rows(self.data.train, columns)
            rows = self._scaled(rows, arrays) if scaled else rows
            held = columns[:0] if scaled else columns  # scaled rows are no source of others
            return (held, rows), sum(part.nbytes for part in (rows.z, rows.y, rows.weights, rows.offset))

        return self.kept.get(self.client_id, b"".join([b"%d" % scaled, *(one.tobytes() for one in agreed)]), make)[1]

    def _rows(self, examples: Examples, columns: NDArray[np.int64]) -> Rows:
        """Return the rows of examples in double precision, with the features at ``columns``, unscaled."""
        every: Array = examples.x.flatten(1).double().numpy(force=True)
        n = len(every)
        weights = np.ones(n) if examples.weights is None else examples.weights.double().numpy(force=True)
        offset = np.zeros(n)
        if self._offset is not None:
            place, mean, std = self._offset
            offset = mean + std * every[:, place]
        return Rows(every[:, columns], self._targets(examples), weights, offset)

    def _scaled(self, rows: Rows, scaling: Arrays) -> Rows:
        """Return rows scaled by ``center`` and ``scale``, with ones for a common intercept; clipped if private."""
        z = (rows.z - scaling["center"]) / scaling["scale"]
        if not self._own:
            z = np.column_stack([np.ones(len(z)), z])
        return replace(rows, z=clip_rows(z, self.hyper.clip) if self._private else z)

    def _targets(self, examples: Examples) -> Array:
        """Return the targets (n, m): numbers, or indicators of the classes but the first."""
        y = examples.y.numpy(force=True)
        if self.task.family in ("linear", "poisson"):
            numbers = y.astype(np.float64).reshape(-1, 1)
            bounded = self._private and self.task.family == "poisson"
            return np.clip(numbers, 0, self.hyper.target_bound) if bounded else numbers
        return (y[:, None] == np.arange(1, self.task.num_strata)).astype(np.float64)

    def _constant(self, rows: Rows) -> float:
        """Return the part of the log-likelihood that depends on targets and weights alone."""
        if self.task.family == "poisson":
            from scipy.special import gammaln

            return float(-rows.weights @ gammaln(rows.y[:, 0] + 1))
        if self.task.family == "linear":
            return float(0.5 * np.log(rows.weights[rows.weights > 0]).sum())
        return 0.0

    @staticmethod
    def _sent(rows: Rows, arrays: Arrays) -> Answer:
        return Answer(arrays, len(rows.y))
