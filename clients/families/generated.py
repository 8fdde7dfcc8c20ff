"""Generated models, client side: the client's whole model comes from a hypernetwork on the server.

``adapt``: received are the parameters θ_i made for this client; answered is what local training makes of them, Δθ_i, by
which the server's networks learn. ``test``: the received model is the client's own. Nothing is kept between rounds.
"""

from __future__ import annotations

import torch

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import GradientHook, pull_towards
from florilegium.clients.hyper.hypernetworks import HyperNetworkHyper
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays, get_arrays, set_arrays


class GeneratedClient(BaseClient):
    """Trains the model it is given, and says how it changed."""

    hyper: HyperNetworkHyper

    @phase
    def adapt(self, arrays: Arrays, *, repetition: int = 0) -> Answer:
        """Train the received model on L(θ; S_i) + λ_θ‖θ‖²; return Δθ_i = θ_i^new − θ_i.

        ``repetition`` numbers the exchanges of one round that ask for this: each draws batches of its own.
        """
        if not self.data.labeled:
            raise RunError("this client has no labels to train with")
        set_arrays(self.model, arrays)
        loss = self.descend(str(repetition), gradient_hook=self.gradient_hook())
        trained = get_arrays(self.model)
        return Answer({name: trained[name] - arrays[name] for name in arrays}, len(self.data.train), {"loss": loss})

    def gradient_hook(self) -> GradientHook | None:
        """Return the gradient of λ_θ‖θ‖²."""
        if not self.hyper.model_penalty:
            return None
        return pull_towards([torch.zeros_like(w) for w in self.model.parameters()], 2 * self.hyper.model_penalty)
