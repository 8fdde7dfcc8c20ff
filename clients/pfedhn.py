"""pFedHN, client side (Shamsian et al. 2021, Algorithm 1): the client trains the model it is given.

Received: θ_i = h(v_i), where the server keeps a descriptor v_i of each client. Answered: Δθ_i.
"""

from __future__ import annotations

from florilegium.clients.core.base import only_gradients
from florilegium.clients.families.generated import GeneratedClient


class PFedHNClient(GeneratedClient):
    """Nothing of its own: the descriptors are the server's."""

    example_gap = staticmethod(only_gradients)
