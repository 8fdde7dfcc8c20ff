"""Model decoupling, client side: some blocks of the network are shared, the others are the client's own.

The server sends the shared blocks; whatever of the network is not among them is personal, starts from the common θ₀, or
from what arrives beside them, and lies in the client's durable state. Only the shared blocks are answered.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from clients.base import Answer, BaseClient, phase
from clients.training import features
from clients.wire import BESIDE, Config
from common.errors import RunError
from models.blocks import block_names, cut
from models.parameters import Arrays, exchanged
from partitions.clientdata import Examples


class DecoupledClient(BaseClient):
    """Trains all blocks, answers the shared ones and keeps the others."""

    @staticmethod
    def example_gap(hyper: Any) -> str:
        """Nothing does."""
        return ""

    model: nn.Sequential
    keeps_personal: ClassVar[bool] = True
    """Whether the personal blocks are trained in a round and kept."""

    @phase
    def train(self, arrays: Arrays, config: Config) -> Answer:
        """Train the received blocks together with the client's own."""
        shared, own = self._blocks(arrays)
        answer = super().train(own | shared, config)
        if self.keeps_personal:
            self.state.save({name: array for name, array in answer.arrays.items() if name not in shared})
        return Answer({name: answer.arrays[name] for name in shared}, answer.num_examples, answer.metrics)

    @phase
    def test(self, arrays: Arrays, config: Config) -> Answer:
        """Evaluate the received blocks together with the client's own."""
        shared, own = self._blocks(arrays)
        return super().test(own | shared, config)

    def _blocks(self, received: Arrays) -> tuple[Arrays, Arrays]:
        """Return the shared blocks and the client's own: those it has kept, sent beside the shared ones, or of θ₀."""
        shared = {name: array for name, array in received.items() if not name.startswith(BESIDE)}
        first = {name: received.get(BESIDE + name, array) for name, array in self.initial.items()}
        self._personal = frozenset(exchanged(self.model)) - shared.keys()
        if not self._personal:
            raise RunError(
                f"method '{self.settings.method}' keeps blocks that are each client's own, but the server sent all "
                "of them; its strategy must send the shared blocks alone"
            )
        return shared, self.state.load() or {name: first[name] for name in self._personal}

    # ---------------------------------------------------------------- tools, while a phase is carried out

    def parts(self) -> tuple[nn.Sequential, nn.Sequential]:
        """Return body and head of the network; the head is the personal part."""
        return cut(self.model, block_names(self._personal))

    def train_head(self, config: Config, *purpose: str, epochs: int) -> float:
        """Train the head for ``epochs`` with the body frozen, whose features are therefore computed only once."""
        body, head = self.parts()
        examples = Examples(features(body, self.data.train), self.data.train.y)
        return self.descend(config, *purpose, model=head, examples=examples, epochs=epochs)
