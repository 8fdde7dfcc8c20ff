"""A bank of models, client side: the client returns its own model in each round, and keeps it to predict with.

The server keeps the models of all clients (``strategies/families/bank.py``). Before a test a client replaces the
received mean of these models by its own; one that has none fine-tunes the mean for ``finetune-epochs`` epochs.
"""

from __future__ import annotations

from florilegium.clients.core.base import BaseClient
from florilegium.models.parameters import set_arrays


class BankedClient(BaseClient):
    """Predicts with its own model, once it has trained one."""

    def personalise(self) -> bool:
        """Replace the received mean by the client's own model, or fine-tune the mean if there is none."""
        own = self.state.load()
        if own is None:
            return super().personalise()
        set_arrays(self.model, own)
        return True
