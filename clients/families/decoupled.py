"""Model decoupling, client side: some blocks of the network are shared, the others are the client's own.

The server sends the shared blocks. The other blocks are personal: they start from the common θ₀, or from arrays sent
beside the shared blocks, and are kept in the client's durable state. Clients return only the shared blocks.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import Group, mapped
from florilegium.clients.core.wire import BESIDE, of_network
from florilegium.common.errors import RunError
from florilegium.models.blocks import block_names, block_of, cut, last_from
from florilegium.models.parameters import Arrays, exchanged, trained, whole


class DecoupledClient(BaseClient):
    """Trains all blocks, returns the shared ones and keeps the others."""

    needs_blocks = True
    model: nn.Sequential
    trains_shared_alone: ClassVar[bool] = False
    """Whether the shared blocks are also trained without the personal ones, so that some of them must be trained."""
    keeps_personal: ClassVar[bool] = True
    """Whether the personal blocks are trained in a round and kept."""

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received blocks together with the client's own."""
        shared, own = self._blocks(arrays)
        answer = super().train(own | shared)
        if self.keeps_personal:
            self.state.save({name: array for name, array in answer.arrays.items() if name not in shared})
        return Answer({name: answer.arrays[name] for name in shared}, answer.num_examples, answer.metrics)

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the received blocks together with the client's own."""
        shared, own = self._blocks(arrays)
        return super().test(own | shared)

    def _blocks(self, received: Arrays) -> tuple[Arrays, Arrays]:
        """Return the shared blocks and the client's own: saved ones, else those sent beside the model, else θ₀'s."""
        shared = of_network(received)
        first = {name: received.get(BESIDE + name, array) for name, array in self.initial.items()}
        self._personal = frozenset(exchanged(self.model)) - shared.keys()
        if not self._personal and {*block_names(shared)} == {*block_names(whole(self.model))}:
            raise RunError(
                f"method '{self.settings.method}' keeps blocks that are each client's own, but the server sent all "
                "of them; its strategy must send the shared blocks alone"
            )
        return shared, self.state.load() or {name: first[name] for name in self._personal}

    # ------------------------------------------------------------ tools, for use while a phase is carried out

    def group(self, *, personal: bool) -> Group:
        """Return the client's own trained parameters, or the shared ones, at ``learning-rate``."""
        chosen = [p for name, p in trained(self.model).items() if (name in self._personal) == personal]
        return Group(chosen, self.settings.learning_rate)

    def train_head(self, *purpose: str, epochs: int) -> float:
        """Train the client's own blocks for ``epochs`` with the shared ones as they are.

        If they are the last ones, the outputs of the others are computed once, or once an epoch.
        """
        last = last_from(self.model, self._personal)
        if {*last} != {*map(block_of, self._personal)}:
            return self.descend(*purpose, epochs=epochs, groups=[self.group(personal=True)])
        body, head = cut(self.model, last)
        return self.descend(*purpose, model=head, examples=mapped(body, self.data.train), epochs=epochs)
