"""k-FED, client side: its own centres (Dennis et al. 2021, algorithm 1). Not private."""

from __future__ import annotations

import numpy as np

from clients.base import Answer, phase
from clients.kmeans import KMeansClient
from clients.wire import Config
from common.errors import RunError
from common.seeds import numpy_generator
from models.kfed import local_centers
from models.parameters import Arrays


class KFedClient(KMeansClient):
    """Clusters its own points."""

    @phase
    def cluster(self, arrays: Arrays, config: Config) -> Answer:
        """Answer ``centers`` (k', d) of the client's points, and ``found`` (k',): 1 for a centre, 0 for an empty row.

        A client of fewer than k' points has as many centres as points.

        Raises:
            RunError: if there is no point.
        """
        points = self.points()
        if len(points) == 0:
            raise RunError("it has no points to cluster")
        rows = self.hyper.local_k or self.hyper.k
        k = min(rows, len(points))
        rng = numpy_generator(self.settings.seed, "client", self.client_id, int(config["round"]), "cluster")
        centers = np.zeros((rows, points.shape[1]))
        centers[:k] = local_centers(points, k, self.hyper.restarts, rng)
        return Answer({"centers": centers, "found": (np.arange(rows) < k).astype(np.float64)}, len(points))
