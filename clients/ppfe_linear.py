"""PPFE for linear regression with exact local solutions, client side (Emrani et al., section 6.1).

The model of stage t is w = ψ^(t) + φ_k^(t), a shared and a personal vector; the personal one minimises

    Σ_i ω_i/n (y_i − (ψ + φ)ᵀx_i)² + λ‖φ‖²                                                     (ridge regression)

A fifth of the training examples is held out while λ is chosen. Phase ``solve`` receives vectors ψ_g, one for each λ_g
of a grid, and returns ψ_g + φ_k(ψ_g, λ_g). Phase ``validate`` returns the errors on the held-out examples. Both
multiply their results by the client's weight. Phase ``finish`` receives the stage's ψ and λ; the client fits φ_k^(t) to
all its examples, and computes β_k^(t) and its next weights ω.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import NUMBER, POSITIVE, Reports
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.ppfe import PPFELinearHyper
from florilegium.clients.ppfe import coefficient, reweight
from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import NUMBERS

Array = NDArray[np.float64]

WEIGHT, BIAS = "fc.1.weight", "fc.1.bias"
"""Names of the two arrays of the network ``linear``."""

_VALIDATION = 0.2
_MIN_ERROR = 0.01


def ridge(x: Array, targets: Sequence[Array], ω: Array, penalties: Sequence[float] | Array) -> Array:
    """Return argmin_φ Σ ω_i/n (y_i − φᵀx_i)² + λ‖φ‖² for each of G pairs of targets y and penalty λ, (G, d).

    Args:
        x: inputs (n, d).
        targets: G vectors y (n,).
        ω: weights (n,).
        penalties: G numbers λ > 0.
    """
    weighted = (x * ω[:, None]).T / len(x)
    matrices = weighted @ x + np.asarray(penalties)[:, None, None] * np.eye(x.shape[1])
    solved = np.linalg.solve(matrices, np.stack([weighted @ y for y in targets])[:, :, None])
    return np.asarray(solved[:, :, 0], np.float64)


class PPFELinearClient(BaseClient):
    """Solves ridge regressions; predicts with the weighted mean of the stages' vectors."""

    ignores_loss = "solves least squares"
    needs = frozenset({NUMBERS})
    training = Training()
    uses_finetuning = "never"
    augments = False
    hyper: PPFELinearHyper
    reports: ClassVar[Reports] = {"beta": NUMBER, r"loss_stage\d+": POSITIVE}

    @phase
    def solve(self, arrays: Arrays, *, whole: bool) -> Answer:
        """Return ψ_g + φ_k for every λ_g: ``solutions`` (G, d) for received ``shared`` (G, d), ``penalties`` (G,).

        φ_k is fitted to all training examples with ``whole``, else to those that are not held out.
        """
        part = "all" if whole else "fit"
        return self._weighed("solutions", self._solutions(arrays, part), len(self._examples(part)[1]))

    @phase
    def validate(self, arrays: Arrays, *, personal: bool) -> Answer:
        """Return ``errors`` (G,), the mean squared errors of the received models on the held-out examples.

        In a ``personal`` stage the client's φ_k for λ_g is first added to each ψ_g.
        """
        models = self._solutions(arrays, "fit") if personal else arrays["shared"]
        return self._weighed("errors", self._errors(models), len(self._examples("validation")[1]))

    @phase
    def finish(self, arrays: Arrays, *, stage: str) -> Answer:
        """Add the stage's model to the ensemble; return the metric ``beta``.

        If ``stage`` is "local", the client chooses λ itself; if it is "averaged", the model has no personal part.
        """
        ψ, λ = arrays["shared"][0], float(arrays["penalties"][0])
        if stage == "local":
            ψ = np.zeros_like(ψ)
            grid = {"shared": np.tile(ψ, (len(arrays["penalties"]), 1)), "penalties": arrays["penalties"]}
            λ = float(arrays["penalties"][self._errors(self._solutions(grid, "fit")).argmin()])
        x, y, ω = self._examples("all")
        w = ψ if stage == "averaged" else ψ + ridge(x, [y - x @ ψ], ω, [λ])[0]
        kept = self._kept or {"members": np.empty((0, len(w))), "betas": np.empty(0), "weights": ω}
        β = coefficient(self._losses(x, y, w), ω, 1.0, _MIN_ERROR)
        members, betas = np.vstack([kept["members"], w]), np.append(kept["betas"], β)
        ω = reweight(self._losses(x, y, combined(members, betas)), ω, β)
        self.state.save({"members": members, "betas": betas, "weights": ω})
        return Answer({}, len(y), {"beta": β})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the ensemble and its members on the test examples; the received ψ if there is no member yet.

        Metrics: ``loss``, the mean squared error of the ensemble; ``loss_stage<t>`` that of member t alone.
        """
        kept = self._kept
        members = arrays[WEIGHT].astype(np.float64) if kept is None else kept["members"]
        w = combined(members, np.ones(1) if kept is None else kept["betas"])
        set_arrays(self.model, {WEIGHT: w[None].astype(np.float32), BIAS: np.zeros(1, np.float32)})
        x, y = _arrays(self.data.test)
        metrics = {"loss": float(((y - x @ w) ** 2).mean())}
        metrics |= {f"loss_stage{t}": float(((y - x @ w) ** 2).mean()) for t, w in enumerate(members, start=1)}
        return Answer({}, len(y), metrics)

    # --------------------------------------------------------------------------------------- details

    @cached_property
    def _kept(self) -> Arrays | None:
        """The state before this request, which several steps of a phase need; None in the first stage."""
        return self.state.load()

    def _solutions(self, arrays: Arrays, part: str) -> Array:
        """Return ψ_g + φ_k for every λ_g, (G, d), with φ_k solved on a ``part`` of the examples."""
        x, y, ω = self._examples(part)
        shared = arrays["shared"]
        return np.asarray(shared + ridge(x, [y - x @ ψ for ψ in shared], ω, arrays["penalties"]), np.float64)

    def _errors(self, models: Array) -> Array:
        """Return the mean squared errors (G,) of models (G, d) on the held-out examples."""
        x, y, _ = self._examples("validation")
        return np.asarray(((y[:, None] - x @ models.T) ** 2).mean(axis=0), np.float64)

    def _weighed(self, name: str, values: Array, count: int) -> Answer:
        """Return ``values`` times the client's weight in the average, which key ``weighting`` defines."""
        weight = float(count) if self.settings.weighting == "examples" else 1.0
        return Answer({name: weight * values}, count, {})

    def _examples(self, part: str) -> tuple[Array, Array, Array]:
        """Return inputs (n, d), targets (n,) and weights ω (n,) of a part of the examples: fit, validation, or all."""
        x, y = _arrays(self.data.train)
        ω = np.ones(len(y)) if self._kept is None else self._kept["weights"]
        if part == "all":
            return x, y, ω
        order = numpy_generator(self.settings.seed, "client", self.client_id, "validation").permutation(len(y))
        held = max(1, round(_VALIDATION * len(y)))
        rows = order[:held] if part == "validation" else order[held:]
        return x[rows], y[rows], ω[rows]

    def _losses(self, x: Array, y: Array, w: Array) -> Array:
        """Return ℓ_i, (n,), 0..1: squared errors as a share of the mean squared target, at most 1."""
        result: Array = np.minimum((y - x @ w) ** 2 / max(float((y**2).mean()), np.finfo(float).tiny), 1.0)
        return result


def combined(members: Array, betas: Array) -> Array:
    """Return Σ_t β_t w_t / Σ_t β_t, (d,), the linear model that equals an ensemble of linear models (T', d)."""
    shares = betas / betas.sum() if betas.sum() > 0 else np.full(len(betas), 1 / len(betas))
    result: Array = shares @ members
    return result


def _arrays(examples: Examples) -> tuple[Array, Array]:
    """Return inputs (n, d) and targets (n,), in doubles."""
    x, y = examples.x.double(), examples.y.double()
    return x.flatten(1).numpy(force=True), y.flatten().numpy(force=True)
