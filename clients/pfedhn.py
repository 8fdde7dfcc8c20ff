"""pFedHN, client side (Shamsian et al. 2021, Algorithm 1): the client trains the model that the server makes for it.

Receives θ_i = h(v_i), where v_i is the client's descriptor, which the server keeps; returns Δθ_i.
"""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.generated import GeneratedClient


class PFedHNClient(GeneratedClient):
    """Trains its generated model as in the base class; descriptors exist only on the server."""

    training = Training("gradients", stacked=True)
