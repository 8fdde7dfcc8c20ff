"""Generated models, client side: the client's whole model comes from a hypernetwork on the server.

Phase ``adapt`` receives the parameters θ_i made for this client, and returns Δθ_i, their change by local training, from
which the server's networks learn. Phase ``test`` evaluates the received model, which is already the client's own. No
state is kept between rounds.
"""

from __future__ import annotations

import torch

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import GradientHook, pull_towards
from florilegium.clients.hyper.hypernetworks import HyperNetworkHyper
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays, get_arrays, norm, set_arrays


class GeneratedClient(BaseClient):
    """Trains the model that the server made for it, and returns the change."""

    hyper: HyperNetworkHyper

    @phase
    def adapt(self, arrays: Arrays, *, repetition: int = 0) -> Answer:
        """Train the received model on L(θ; S_i) + λ_θ‖θ‖²; return Δθ_i = θ_i^new − θ_i.

        ``repetition`` numbers the exchanges of one round that use this phase; each draws batches of its own.

        Raises:
            RunError: if Δθ_i is longer than ``max-update-norm``.
        """
        if not self.data.labeled:
            raise RunError("this client has no labels to train with")
        set_arrays(self.model, arrays)
        loss = self.descend(str(repetition), gradient_hook=self.gradient_hook())
        trained, longest = get_arrays(self.model), self.settings.max_update_norm
        Δθ = {name: trained[name] - arrays[name] for name in arrays}
        if longest and (length := norm(Δθ)) > longest:
            raise RunError(f"its update has norm {length:.4g}, more than max-update-norm = {longest:g}")
        return Answer(Δθ, len(self.data.train), {"loss": loss})

    def gradient_hook(self) -> GradientHook | None:
        """Return a hook that adds the gradient of λ_θ‖θ‖², or None if λ_θ = 0."""
        if not self.hyper.model_penalty:
            return None
        return pull_towards([torch.zeros_like(w) for w in self.model.parameters()], 2 * self.hyper.model_penalty)
