"""What a generalised linear model says: coefficients in the columns' units, their covariance, likelihood, AIC."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.hyper.statistics import GLMHyper
from florilegium.models.parameters import Arrays
from florilegium.models.statistics.glm import FAMILIES
from florilegium.models.statistics.inference import table
from florilegium.partitions.feature_names import Named

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimates:
    """The state of a fit, and what follows from it.

    Attributes:
        hyper: the keys.
        family: name of the family.
        features: the d features in the model.
        classes: names of the m linear predictors; [""] if there is one.
        arrays: ``theta`` (m, q), ``center`` and ``scale`` (d,), ``hessian`` or ``covariance`` (m·q, m·q).
        facts: how far the fit is (``strategies/statistics/glm.py``).
        private: whether sums have noise.
    """

    hyper: GLMHyper
    family: str
    features: Sequence[Named]
    classes: Sequence[str]
    arrays: Arrays
    facts: Mapping[str, Any]
    private: bool

    @property
    def _own(self) -> bool:
        return self.hyper.intercept == "client"

    def names(self) -> list[str]:
        """Return the names of the parameters of one linear predictor."""
        names = [one.name for one in self.features]
        return names if self._own else ["intercept", *names]

    def penalty(self) -> Array:
        """Return the diagonal of the penalty's Hessian, (m·q,)."""
        one = self.hyper.ridge / self.arrays["scale"] ** 2
        return np.tile(one if self._own else np.concatenate([[0.0], one]), len(self.classes))

    def transform(self) -> Array:
        """Return the matrix (q, q) that makes coefficients in the columns' own units from θ."""
        c, s = self.arrays["center"], self.arrays["scale"]
        mean = np.array([one.mean for one in self.features]) + np.array([one.std for one in self.features]) * c
        std = np.array([one.std for one in self.features]) * s
        if self._own:
            return np.diag(1 / std)
        matrix = np.diag(np.concatenate([[1.0], 1 / std]))
        matrix[0, 1:] = -mean / std
        return matrix

    def _covariance(self, dispersion: float) -> Array:
        """Return the covariance of the coefficients in the columns' own units, (m·q, m·q).

        It is zero for those without a finite estimate. The others' is what is left with these at infinity, where the
        rows that they decide have no weight any more.
        """
        m, q = self.arrays["theta"].shape
        whole = np.kron(np.eye(m), self.transform())
        if "covariance" in self.arrays:
            return np.asarray(whole @ self.arrays["covariance"] @ whole.T, np.float64)
        hessian, separated = self.arrays["hessian"], self.facts["separated"]
        if not separated:
            inverse = np.linalg.pinv(hessian + np.diag(self.penalty()), rcond=1e-14, hermitian=True)
            return np.asarray(dispersion * whole @ inverse @ hessian @ inverse @ whole.T, np.float64)
        back, finite = np.linalg.inv(whole), np.tile(~np.isin(np.arange(q), separated), m)
        covariance = np.zeros_like(hessian)
        inner = np.ix_(finite, finite)
        covariance[inner] = np.linalg.pinv((back.T @ hessian @ back)[inner], rcond=1e-14, hermitian=True)
        return covariance

    def fitted(self) -> dict[str, Any]:
        """Return the results, and how the fit went; {} if nothing is estimated yet."""
        facts, θ = self.facts, self.arrays.get("theta")
        if θ is None or ("hessian" not in self.arrays and "covariance" not in self.arrays):
            return {}
        m, q = θ.shape
        own = len(facts["members"]) if self._own else 0
        rows, estimated = facts.get("rows", 0), m * (q + own)
        freedom, dispersion = np.inf, facts.get("dispersion", 1.0)
        likelihood = None if self.private else facts.get("likelihood")
        if not self.private and likelihood is None and "loss" in facts:
            likelihood = -facts["loss"] + facts["constant"]
            if FAMILIES[self.family].dispersed:
                freedom = float(rows - estimated)
                dispersion = 2 * facts["loss"] / freedom if freedom > 0 else np.nan
                likelihood = facts["constant"] - rows / 2 * (
                    math.log(2 * math.pi * max(2 * facts["loss"], 1e-300) / rows) + 1
                )
        whole = np.kron(np.eye(m), self.transform())
        covariance = self._covariance(float(dispersion))
        names = [f"{word}: {name}" if word else name for word in self.classes for name in self.names()]
        lines = table(names, whole @ θ.ravel(), covariance, self.hyper.confidence, freedom)
        for place, line in enumerate(lines):
            if place % q in facts["separated"]:
                line.update(dict.fromkeys([*line][1:]))
        converged = facts["stage"] == "done" and not facts["separated"]
        return {
            "family": self.family, "intercept": self.hyper.intercept, "coefficients": lines,
            "confidence": self.hyper.confidence, "clients": len(facts["members"]),
            **({"rows": rows} if rows else {}),
            **({} if self.private else {"dispersion": float(dispersion)}),
            **({"log_likelihood": likelihood} if likelihood is not None else {}),
            **({"aic": 2 * estimated - 2 * likelihood} if likelihood is not None and "ratio" not in facts else {}),
            **({"intercept_variance": facts["ratio"] * dispersion, "at_boundary": facts["boundary"]}
               if "ratio" in facts else {}),
            "without_coefficient": facts["aliased"],
            "separated": [name for i, name in enumerate(self.names()) if i in facts["separated"]],
            **({} if self.private else {"converged": converged}),
        }  # fmt: skip
