"""k-FED, client side: its own centres (Dennis et al. 2021, algorithm 1). Not private."""

from __future__ import annotations

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
        """Answer ``centers`` (k', d) of the client's points."""
        points, k = self.points(), self.hyper.local_k or self.hyper.k
        if len(points) < k:
            raise RunError(f"its {len(points)} points make no {k} clusters of their own; lower kmeans.local-k")
        rng = numpy_generator(self.settings.seed, "client", self.client_id, int(config["round"]), "cluster")
        return Answer({"centers": local_centers(points, k, self.hyper.restarts, rng)}, len(points))
