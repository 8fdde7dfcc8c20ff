"""pFedFDA, server side (McLaughlin and Su 2024, Algorithm 1).

Sends and receives the extractor (all blocks but the last) and the Gaussians (μ, Σ) of its features; both are averaged
as in FedAvg. μ is initialised by a standard normal draw from the run's seed, Σ by the identity.
"""

from __future__ import annotations

import numpy as np

from florilegium.clients.core.network import check_trained
from florilegium.clients.pfedfda import COVARIANCE, MEANS
from florilegium.common.seeds import numpy_generator
from florilegium.models.blocks import classifier_shape, last_blocks, of_blocks
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class PFedFDA(FedAvg):
    """FedAvg of a shared extractor and of a Gaussian for each class."""

    messages = Messages("sum", features="whole")

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the extractor and the initial Gaussians."""
        head = last_blocks(self.federation.network, 1, "pfedfda")
        classes, d = classifier_shape(self.federation.network, "pfedfda")
        rng = numpy_generator(self.settings.seed, "gaussians")
        body = {name: array for name, array in arrays.items() if name not in of_blocks(arrays, head)}
        check_trained(body, self.settings)
        return body | {
            MEANS: rng.normal(size=(classes, d)).astype(np.float32),
            COVARIANCE: np.eye(d, dtype=np.float32),
        }
