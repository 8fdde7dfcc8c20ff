"""pFedHN, client side (Shamsian et al. 2021, Algorithm 1): the client trains the model that the server makes for it.

Receives θ_i = h(v_i), where v_i is the client's descriptor, which the server keeps; returns Δθ_i.
"""

from __future__ import annotations

from florilegium.clients.core.base import only_gradients, stackable
from florilegium.clients.families.generated import GeneratedClient


class PFedHNClient(GeneratedClient):
    """Trains its generated model as in the base class; descriptors exist only on the server."""

    example_gap = staticmethod(only_gradients)
    vectorise_gap = staticmethod(stackable)
