"""FedProto, server side (Tan et al. 2022, Algorithm 1): global prototypes are means of the clients' prototypes.

C̄^(j) = Σ_i a_ij·C_i^(j) / Σ_i a_ij over the clients of the cohort that have class j (equation 6), with a_ij = |D_ij|
(``weighting = "examples"``) or 1 (``"uniform"``, as in the authors' code). The server sends and receives only the sums.
"""

from __future__ import annotations

from florilegium.common.errors import ConfigurationError
from florilegium.models.blocks import classifier_shape, last_blocks, of_blocks
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.classwise import OWN_NETWORKS, UNBOUNDED, Classwise


class FedProto(Classwise):
    """Sums the clients' prototypes, which are mean features."""

    messages = Messages("statistics", features=OWN_NETWORKS, beside=UNBOUNDED)

    def size(self, network: Arrays) -> tuple[int, int]:
        """Return the numbers of classes and features; the last block must be able to compare distances."""
        if len(of_blocks(network, last_blocks(network, 1, "fedproto"))) == 1:
            raise ConfigurationError(
                "fedproto: the network's last block has no bias, which the distance to a prototype needs; use a dense "
                "layer with a bias"
            )
        return classifier_shape(network, "fedproto")
