"""Distributions of clients' histograms: by name, from a file, or from a run of ``mdm``.

Names and parameters are those of Scott's thesis, table A.1 and appendix A.1.2.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.common.settings import folder
from florilegium.partitions.dirichlet_multinomial import Counts, Mixture, check_counts
from florilegium.partitions.features import LABEL

_EVEN = {value: (value,) * 10 for value in (0.5, 1.0, 2.5)}
_MEDIUM = (
    (0.1, 0.2, 0.6, 1.0, 2.0, 0.1, 1.0, 2.0, 0.5, 0.5),
    (2.5, 2.6, 2.7, 2.8, 3.0, 2.5, 2.0, 3.0, 1.0, 0.9),
    (5.0, 4.0, 5.0, 1.0, 1.0, 1.0, 5.0, 4.0, 5.0, 1.0),
)
_HIGH = (
    (0.1, 0.2, 0.15, 0.18, 0.1, 0.05, 0.08, 0.4, 0.2, 0.12),
    (2.5, 2.6, 2.0, 3.2, 1.5, 0.9, 0.8, 1.3, 3.1, 2.4),
    (5.0, 5.0, 0.2, 0.2, 3.1, 3.0, 3.2, 0.8, 0.9, 5.0),
)
NAMED: Mapping[str, tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]] = {
    "low-1": ((1.0,), (_EVEN[1.0],)),
    "low-2": ((0.5, 0.5), (_EVEN[0.5], _EVEN[2.5])),
    # The table prints two of the three rows; the third is taken from "low-1".
    "low-3": ((0.333, 0.334, 0.333), (_EVEN[2.5], _EVEN[0.5], _EVEN[1.0])),
    "medium-1": ((1.0,), _MEDIUM[:1]),
    "medium-2": ((0.4, 0.6), _MEDIUM[:2]),
    "medium-3": ((0.5, 0.2, 0.3), (_MEDIUM[2], _MEDIUM[0], _MEDIUM[1])),
    "high-1": ((1.0,), _HIGH[:1]),
    "high-2": ((0.1, 0.9), _HIGH[:2]),
    "high-3": ((0.8, 0.05, 0.15), (_HIGH[2], _HIGH[0], _HIGH[1])),
    "choice": ((0.2, 0.5, 0.3), ((0.1, 0.2, 0.1, 0.3, 0.1), (1.0, 4.0, 1.0, 2.0, 0.5), (10.0, 5.0, 3.0, 2.0, 30.0))),
}
"""Component weights τ and Dirichlet parameters A of the distributions with a name."""


@dataclass(frozen=True)
class Law:
    """Source of clients' histograms: a mixture from which they are drawn, or a list.

    Attributes:
        feature, bins: the feature that is counted, as in keys ``mdm.feature`` and ``mdm.bins``.
        mixture: the mixture; None if histograms are listed.
        histograms: the listed histograms, (n, C); None if they are drawn.
    """

    feature: str
    bins: str
    mixture: Mixture | None
    histograms: Counts | None

    @property
    def categories(self) -> int:
        """Number of categories C of the histograms."""
        if self.mixture is not None:
            return self.mixture.alpha.shape[1]
        assert self.histograms is not None
        return self.histograms.shape[1]

    def draw(self, n: int, rng: np.random.Generator) -> Counts:
        """Return n histograms, (n, C): drawn from the mixture, or the first n of the list.

        Raises:
            ConfigurationError: if the list has fewer.
        """
        if self.mixture is not None:
            return self.mixture.sample(n, rng)
        assert self.histograms is not None
        if n > len(self.histograms):
            raise ConfigurationError(f"num-clients: mdm-params lists {len(self.histograms)} histograms, not {n}")
        return self.histograms[:n]


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    feature: str = LABEL
    bins: str = ""
    tau: list[float] = []
    pi: list[list[float]] = []
    alpha: list[list[float]] = []
    edges: list[int] = []
    histograms: list[list[float]] = []


def read_law(params: str, samples: int) -> Law:
    """Return the distribution of histograms that key ``mdm-params`` names.

    Args:
        params: a name from table A.1 such as "high-2", "choice" (appendix A.1.2), or an absolute path: of the folder of
            a run of method ``mdm``, or of a JSON file with ``tau``, ``pi``, ``alpha``, ``edges``, or ``histograms``.
        samples: size m of every client, used for names only, since the thesis's tables give no sizes.

    Raises:
        ConfigurationError: for an unknown name, or a name without a size.
        DataError: if the file is missing or its contents are invalid.
    """
    if params in NAMED:
        if not samples:
            raise ConfigurationError(
                f"samples-per-client: '{params}' says nothing of clients' sizes; give one (found: 0)"
            )
        τ, α = NAMED[params]
        return Law(
            LABEL, "", Mixture(np.array(τ), np.ones((len(τ), 1)), np.array(α), np.array([samples, samples + 1])), None
        )
    path = folder(params)
    if not path.is_absolute():
        raise ConfigurationError(
            f"mdm-params: '{params}' is neither a name nor an absolute path{nearest(params, NAMED)} "
            f"Names: {', '.join(NAMED)}."
        )
    file = path / "summary.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if path.is_dir() and "mdm" not in content:
            raise DataError(f"mdm-params: {path} is the folder of a run, but not of method 'mdm'")
        found = _File.model_validate(content["mdm"] if path.is_dir() else content)
    except OSError as error:
        raise DataError(f"mdm-params: {file} cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, ValidationError) as error:
        raise DataError(f"mdm-params: {file} is no such file: {error}") from error
    return _checked(found, file)


def fingerprint(params: str) -> str:
    """Return a hash of the distribution that ``mdm-params`` names, regardless of other contents of its file; "" for "".

    Raises:
        ConfigurationError, DataError: as in :func:`read_law`.
    """
    if not params or params in NAMED:
        return hashlib.sha256(params.encode()).hexdigest()[:16] if params else ""
    law = read_law(params, 0)
    facts: list[object] = [law.feature, law.bins]
    if law.mixture is not None:
        m = law.mixture
        facts += [m.tau.tolist(), m.pi.tolist(), m.alpha.tolist(), m.edges.tolist()]
    if law.histograms is not None:
        facts.append(law.histograms.tolist())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _checked(found: _File, file: Path) -> Law:
    try:
        if found.histograms:
            return Law(found.feature, found.bins, None, check_counts(np.array(found.histograms)))
        τ, π, α = (np.array(value, np.float64) for value in (found.tau, found.pi, found.alpha))
        edges = np.array(found.edges, np.int64)
        fits = α.ndim == 2 and τ.shape == (len(α),) and edges.ndim == 1 and π.shape == (len(α), len(edges) - 1)
        if not fits or (α <= 0).any() or (τ < 0).any() or (π < 0).any() or not τ.sum() or not π.sum(axis=1).all():
            raise ValueError("it needs tau (K), alpha (K × C) above 0, pi (K × S), edges (S + 1), or histograms")
        if edges[0] < 1 or (np.diff(edges) < 1).any():
            raise ValueError("its edges are not increasing whole numbers from 1 on")
    except ValueError as error:
        raise DataError(f"mdm-params: {file}: {error}") from error
    return Law(found.feature, found.bins, Mixture(τ / τ.sum(), π / π.sum(axis=1, keepdims=True), α, edges), None)
