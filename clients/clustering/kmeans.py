"""The client of all clustering methods: it returns sums over its clusters, and measures a clustering.

Phase ``lloyd`` receives centres, and returns for every centre the sum and the number of the client's points nearest to
it. With client-level privacy these are the mean, and 1 if there is any such point, else 0 (Scott, thesis, D.7.4). In a
private run they are clipped, and get noise if devices add it. Where neither noise nor masks protect them, a device
refuses sums from which single points could be computed.

Phase ``test`` measures the received centres on the points that are clustered, the training examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.clustering import KMeansHyper
from florilegium.common.errors import RunError
from florilegium.common.seeds import numpy_generator
from florilegium.models.centers import centers as centers_network
from florilegium.models.clustering import Array, Labels, nearest, sums
from florilegium.models.parameters import Arrays, set_arrays
from florilegium.partitions.loading import dataset_of
from florilegium.privacy.clipping import clip_rows
from florilegium.privacy.guard import Guard
from florilegium.privacy.noise import Kind, secret_generator
from florilegium.privacy.revealing import revealed

NOISE: Mapping[str, Kind] = {"outer": "gaussian", "weights": "laplace", "sums": "gaussian", "counts": "laplace"}
"""The mechanism of every sum that clustering methods release (Scott, thesis, algorithms 11 and 12)."""


OWN_SUMS = Training("it protects its sums itself; set kmeans.epsilon")
"""How clusterings use examples; each states it in its own body."""


class KMeansClient(BaseClient):
    """Takes part in a clustering of all clients' points."""

    training = OWN_SUMS
    uses_finetuning = "never"
    augments = False
    can_be_private: ClassVar[bool] = True
    """Whether the method has what ``kmeans.privacy-unit`` names."""
    hyper: KMeansHyper

    @phase
    def lloyd(
        self, arrays: Arrays, *, radius: float | None = None, bounds: list[float] | None = None,
        scales: list[float] | None = None, shares: int = 1,
    ) -> Answer:  # fmt: skip
        """Return ``sums`` (k, d) and ``counts`` (k,) of the clusters around ``centers`` (k, d).

        ``radius`` is that of :meth:`points`; ``bounds``, ``scales`` and ``shares`` are those of :meth:`guarded`.
        """
        points = self.points(radius)
        labels, _ = nearest(points, arrays["centers"])
        self.check_revealing(labels)
        return self.guarded(self.clusters(points, labels, len(arrays["centers"])), bounds, scales, shares)

    @phase
    def test(self, arrays: Arrays, *, figures: bool = True) -> Answer:
        """Keep ``centers`` (k, d) as the predictor and, with ``figures``, measure them on the training examples.

        Returns ``table`` (k, C), how many points each cluster has of each class. Metric ``loss``: the mean squared
        distance to the nearest centre. Without ``figures`` the table is zero and there are no metrics.
        """
        centers = arrays["centers"]
        self.predictor = centers_network((centers.shape[1],), len(centers))
        set_arrays(self.predictor, {"nearest.centers": centers.astype(np.float32)})
        table = np.zeros((len(centers), dataset_of(self.settings).classes))
        points = self.all_points()
        if not figures:
            return Answer({"table": table}, len(points))
        labels, squares = nearest(points, centers)
        np.add.at(table, (labels, self.data.train.y.numpy(force=True)), 1)
        return Answer({"table": table}, len(points), {"loss": float(squares.mean())})

    # ----------------------------------------------------------------------------------------- tools

    def points(self, radius: float | None) -> Array:
        """Return the client's points (m, d) for a sum that is sent to the server.

        In a private run a point that is NaN or infinite is skipped silently, and there may be none at all: a client
        that failed because of one point would reveal it.

        Args:
            radius: Δ, the norm to which points are clipped, with example-level privacy.

        Raises:
            RunError: with example-level privacy, if the radius is missing; without privacy, as :meth:`all_points`.
        """
        unit = self.hyper.privacy_unit
        if unit == "none":
            return self.all_points()
        if unit == "example" and (radius is None or not 0 < radius < np.inf):
            raise RunError(f"the request has no radius Δ > 0 to clip points to (found: {radius})")
        points = self._flat()
        return clip_rows(points[np.isfinite(points).all(axis=1)], np.inf if radius is None else radius)

    def all_points(self) -> Array:
        """Return the client's points (m, d).

        Raises:
            RunError: if there are none, or one is NaN or infinite.
        """
        points = self._flat()
        finite = np.isfinite(points).all(axis=1)
        if not len(points):
            raise RunError("it has no points to cluster")
        if not finite.all():
            raise RunError(f"point {int(np.argmin(finite))} has a NaN or infinite feature")
        return points

    def _flat(self) -> Array:
        """Return the training inputs as rows of numbers (n, d), unchecked."""
        points: NDArray[np.float64] = self.data.train.x.flatten(1).double().numpy(force=True)
        return points

    def clusters(self, points: Array, labels: Labels, k: int) -> Arrays:
        """Return ``sums`` and ``counts`` of the points with each label: with client-level privacy, means and 0 or 1."""
        totals, counts = sums(points, labels, k)
        if self.hyper.privacy_unit == "client":
            totals, counts = totals / np.maximum(counts, 1)[:, None], np.minimum(counts, 1)
        return {"sums": totals, "counts": counts}

    def check_revealing(self, labels: Labels, what: str = "rows") -> None:
        """On a device: check that sums over the clusters, and all earlier ones, reveal no single point.

        A simulated client has nothing to hide: who simulates it has its points.

        Args:
            labels: cluster of each of the client's points, (n,); −1 for a point that is in no sum.
            what: what is summed; sums of other things do not add to what these reveal.

        Raises:
            RunError: if one could be computed from them.
        """
        h = self.hyper
        noisy = self.can_be_private and h.privacy_unit != "none"
        if self.data.simulated or noisy or self.settings.secure_aggregation or h.reveal_rows:
            return
        part = f"released{what}"
        earlier = (self.state.load(part) or {}).get("labels", np.zeros((0, len(labels)), np.int64))
        sums = np.unique(np.concatenate([earlier, labels[None]]), axis=0)
        if revealed([*sums]).any():
            raise RunError(
                "its sums would reveal single rows: raise the number of rows or lower kmeans.k; or protect them by "
                "secure-aggregation or kmeans.privacy-unit; or set kmeans.reveal-rows to true"
            )
        self.state.save({"labels": sums}, part)

    def guarded(self, arrays: Arrays, bounds: list[float] | None, scales: list[float] | None, shares: int) -> Answer:
        """Return ``arrays`` protected for sending: in a private run clipped, and with the client's share of the noise.

        Sums and counts are scaled by the same factor, that of the one that exceeds its bound more, since their ratio is
        a mean, which must not change.

        Args:
            arrays: sums over the client's points, by name.
            bounds: for each array the bound on the client's contribution, with client-level privacy.
            scales: for each array the scale of the noise on its sum over clients, if devices add the noise.
            shares: number of clients that share the noise.

        Raises:
            RunError: if the run is private and a bound or scale that it needs is missing or not positive.
        """
        h = self.hyper
        if h.privacy_unit == "none":
            return Answer(arrays, len(self.data.train))
        if h.privacy_unit == "client":
            _check_each(arrays, "bound", bounds)
        if shares < 1:
            raise RunError(f"the request divides the noise among {shares} clients; at least 1")
        if h.noise_at == "device":
            _check_each(arrays, "noise scale", scales)
        limits = bounds if bounds is not None else [np.inf] * len(arrays)
        noises = scales if scales is not None else [0.0] * len(arrays)
        guards = {
            name: Guard(NOISE[name], bound, scale) for name, bound, scale in zip(arrays, limits, noises, strict=True)
        }
        factor = min(guards[name].factor(array) for name, array in arrays.items())
        returned = {}
        for name, array in arrays.items():
            returned[name] = factor * array
            if guards[name].scale:
                returned[name] = returned[name] + guards[name].noise(self._noise(name), array.shape, shares)
        return Answer(returned, len(self.data.train))

    def _noise(self, name: str) -> np.random.Generator:
        """Return the random generator for the noise on sum ``name``; on a real device it is secret and unrepeatable."""
        if not self.data.simulated:
            return secret_generator()
        return numpy_generator(self.settings.seed, "client", self.client_id, self.round, self.phase, name)


def _check_each(arrays: Arrays, what: str, values: list[float] | None) -> None:
    """Raise :class:`RunError` unless there is a positive number for each of ``arrays``."""
    if values is None or len(values) != len(arrays) or not all(0 < value < np.inf for value in values):
        raise RunError(f"the request must have a {what} > 0 for each of {', '.join(arrays)} (found: {values})")
