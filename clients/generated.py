"""Generated models, client side: the client's whole model comes from a hypernetwork on the server.

``adapt``: received are the parameters θ_i made for this client; answered is what local training makes of them, Δθ_i, by
which the server's networks learn. ``test``: the received model is the client's own. Nothing is kept between rounds.
"""

from __future__ import annotations

from typing import Any

import torch

from clients.base import Answer, BaseClient, phase
from clients.hyper import HyperNetworkHyper
from clients.training import GradientHook, pull_towards
from clients.wire import Config
from common.errors import RunError
from models.parameters import Arrays, get_arrays, set_arrays


class GeneratedClient(BaseClient):
    """Trains the model it is given, and says how it changed."""

    hyper: HyperNetworkHyper

    @staticmethod
    def example_gap(hyper: Any) -> str:
        """Nothing does: Δθ_i is all that is made of examples."""
        return ""

    @phase
    def adapt(self, arrays: Arrays, config: Config) -> Answer:
        """Train the received model on L(θ; S_i) + λ_θ‖θ‖²; answer Δθ_i = θ_i^new − θ_i.

        ``config["repetition"]`` tells apart what is asked more than once in a round: each has batches of its own.
        """
        if not self.data.labeled:
            raise RunError("this client has no labels to train with")
        set_arrays(self.model, arrays)
        loss = self.descend(config, str(config["repetition"]), gradient_hook=self.gradient_hook(config))
        trained = get_arrays(self.model)
        return Answer({name: trained[name] - arrays[name] for name in arrays}, len(self.data.train), {"loss": loss})

    def gradient_hook(self, config: Config) -> GradientHook | None:
        """Return the gradient of λ_θ‖θ‖²."""
        if not self.hyper.model_penalty:
            return None
        return pull_towards([torch.zeros_like(w) for w in self.model.parameters()], 2 * self.hyper.model_penalty)
