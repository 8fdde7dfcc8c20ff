"""What the clients of all clustering methods do: answer sums over their clusters, and measure a clustering.

``lloyd``: received are centres; answered are, for every centre, the sum and the number of the client's points nearest
to it. With client-level privacy these are the mean, and whether there is any point (Scott, thesis, D.7.4). What leaves
a client is clipped, and where devices add the noise, noisy.

``test`` measures received centres on the very points that are clustered: the training examples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clients.base import Answer, BaseClient, phase
from clients.hyper import KMeansHyper
from clients.wire import Config
from common.errors import RunError
from common.seeds import numpy_generator
from models.centers import centers as centers_network
from models.clustering import Array, Labels, nearest, sums
from models.parameters import Arrays, set_arrays
from partitions.datasets import find_spec
from privacy.clipping import clip_rows
from privacy.guard import Guard
from privacy.noise import secret_generator


class KMeansClient(BaseClient):
    """Takes part in a clustering of all clients' points."""

    uses_finetuning = "never"
    hyper: KMeansHyper

    @phase
    def lloyd(self, arrays: Arrays, config: Config) -> Answer:
        """Answer ``sums`` (k, d) and ``counts`` (k,) of the clusters around ``centers`` (k, d)."""
        points = self.points(config)
        labels, _ = nearest(points, arrays["centers"])
        return self.guarded(self.clusters(points, labels, len(arrays["centers"])), config)

    @phase
    def test(self, arrays: Arrays, config: Config) -> Answer:
        """Measure ``centers`` (k, d) on the training examples, unless ``config["figures"]`` says not to.

        Answers ``table`` (k, C), how many points each cluster has of each class. Metric ``loss``: the mean squared
        distance to the nearest centre.
        """
        centers = arrays["centers"]
        self.predictor = centers_network((centers.shape[1],), len(centers))
        set_arrays(self.predictor, {"nearest.centers": centers.astype(np.float32)})
        table = np.zeros((len(centers), find_spec(self.settings.dataset).classes))
        points = self.points()
        if not config.get("figures", True):
            return Answer({"table": table}, len(points))
        labels, squares = nearest(points, centers)
        np.add.at(table, (labels, self.data.train.y.numpy(force=True)), 1)
        return Answer({"table": table}, len(points), {"loss": float(squares.mean())})

    # ----------------------------------------------------------------------------------------- tools

    def points(self, config: Config | None = None) -> Array:
        """Return the client's points (m, d); in private sums, where ``config`` has a ``radius``, clipped to norm Δ.

        There a point that is NaN or infinite is left out without a word, and there may be none at all: a client that
        failed because of one point would make a difference of all its points.

        Raises:
            RunError: elsewhere, if there are none, or one is NaN or infinite.
        """
        points: NDArray[np.float64] = self.data.train.x.flatten(1).double().numpy(force=True)
        finite = np.isfinite(points).all(axis=1)
        if config is not None and self.hyper.privacy_unit != "none":
            return clip_rows(points[finite], config["radius"])
        if not len(points):
            raise RunError("it has no points to cluster")
        if not finite.all():
            raise RunError(f"point {int(np.argmin(finite))} has a NaN or infinite feature")
        return points

    def clusters(self, points: Array, labels: Labels, k: int) -> Arrays:
        """Return ``sums`` and ``counts`` of the points with each label: with client-level privacy, means and 0 or 1."""
        totals, counts = sums(points, labels, k)
        if self.hyper.privacy_unit == "client":
            totals, counts = totals / np.maximum(counts, 1)[:, None], np.minimum(counts, 1)
        return {"sums": totals, "counts": counts}

    def guarded(self, arrays: Arrays, config: Config) -> Answer:
        """Answer ``arrays``, clipped and given their shares of the noise, as ``config`` says.

        Sums and counts are scaled down together, as far as the one needs it that exceeds its bound more: their ratio is
        a mean, which must not move.
        """
        if self.hyper.privacy_unit == "none":
            return Answer(arrays, len(self.data.train))
        answered = {}
        guards = {name: Guard(*(config[f"{name}-{what}"] for what in ("kind", "bound", "scale"))) for name in arrays}
        factor = min(guards[name].factor(array) for name, array in arrays.items())
        for name, array in arrays.items():
            answered[name] = factor * array
            if guards[name].scale:
                noise = guards[name].noise(self._noise(config, name), array.shape, config["shares"])
                answered[name] = answered[name] + noise
        return Answer(answered, len(self.data.train))

    def _noise(self, config: Config, name: str) -> np.random.Generator:
        """Return the generator of the noise on the sum ``name``: on a real device one that nobody can repeat."""
        if not self.data.simulated:
            return secret_generator()
        path = (self.client_id, int(config["round"]), str(config["phase"]), name)
        return numpy_generator(self.settings.seed, "client", *path)
