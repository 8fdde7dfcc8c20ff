"""k-FED, client side: each client finds centres of its own points (Dennis et al. 2021, algorithm 1). Not private."""

from __future__ import annotations

import numpy as np

from florilegium.clients.clustering.kmeans import OWN_SUMS, KMeansClient
from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.common.seeds import numpy_generator
from florilegium.models.clustering import nearest
from florilegium.models.kfed import local_centers
from florilegium.models.parameters import Arrays


class KFedClient(KMeansClient):
    """Finds cluster centres of the client's own points."""

    training = OWN_SUMS
    can_be_private = False

    @phase
    def cluster(self, arrays: Arrays) -> Answer:
        """Return ``centers`` (k', d) of the client's points, and ``found`` (k',): 1 for a centre, 0 for an empty row.

        A client with fewer than k' points finds as many centres as it has points.

        Raises:
            RunError: if the client has no points, or as :meth:`check_revealing`.
        """
        points = self.all_points()
        rows = self.hyper.local_k or self.hyper.k
        k = min(rows, len(points))
        rng = numpy_generator(self.settings.seed, "client", self.client_id, self.round, "cluster")
        centers = np.zeros((rows, points.shape[1]))
        centers[:k] = local_centers(points, k, self.hyper.restarts, rng)
        self.check_revealing(nearest(points, centers[:k])[0])
        return Answer({"centers": centers, "found": (np.arange(rows) < k).astype(np.float64)}, len(points))
