"""FedTTA, client side: a model that adapts to unlabeled inputs by a step along a learned loss (Ye et al. 2024; ARM-LL).

Receives and returns the network's arrays and, with the prefix ``adaptation.``, those of a small network φ on its
logits. A client adapts the network by θ' = θ − α ∇_θ L_φ(X; θ), where L_φ is the root mean square of φ(f(x; θ)) over X,
which needs no labels. Clients with labels train θ and φ so that θ' predicts well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import EVALUATION_BATCH, evaluate, gradients
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.subspace import FedTTAHyper
from florilegium.common.errors import RunError
from florilegium.common.memo import remembered
from florilegium.models.called import Function, as_function
from florilegium.models.mlp import adaptation_network
from florilegium.models.parameters import Arrays, get_arrays, set_arrays, trained
from florilegium.models.second_derivatives import CheapSecondDerivatives
from florilegium.tasks.task import VECTOR

PREFIX = "adaptation."


class FedTTAClient(BaseClient):
    """Trains the network and the loss that it adapts with; adapts the network before a test."""

    training = Training("it has losses and steps of its own")
    needs = frozenset({VECTOR})

    uses_finetuning = "never"
    hyper: FedTTAHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train θ and φ to minimise the loss of the adapted network; return both."""
        if not self.data.labeled:
            raise RunError("this client has no labels to train with")
        φ, examples = self._receive(arrays), self.data.train
        both, θ, network = nn.ModuleList([self.model, φ]), [*trained(self.model).values()], self._function()

        def objective(rows: Tensor) -> Tensor:
            x = examples.x[rows]
            with CheapSecondDerivatives():
                adapted = self.adapted(φ, x, θ, network, differentiable=True)
            return self.loss(network(adapted, x), rows)

        loss = self.descend(model=both, objective=objective)
        answer = get_arrays(self.model) | {PREFIX + name: array for name, array in get_arrays(φ).items()}
        return Answer(answer, len(examples), {"loss": loss})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Adapt the network to the client's training inputs, without labels; evaluate it before and after."""
        φ = self._receive(arrays)
        before = evaluate(self.model, self.data.test, self.task)
        self.model.eval()
        x = self.data.train.x
        if not len(x):
            raise RunError("it has no inputs to adapt to")
        θ, network = [*trained(self.model).values()], self._function()
        for part in x.tensor_split(math.ceil(len(x) / EVALUATION_BATCH)):  # equal sizes, since each part is one step
            adapted = self.adapted(φ, part, θ, network, differentiable=False)
            with torch.no_grad():
                for parameter, new in zip(θ, adapted, strict=True):
                    parameter.copy_(new)
        after = evaluate(self.model, self.data.test, self.task)
        return Answer({}, len(self.data.test), self.compared(after, before))

    def adapted(
        self, φ: nn.Module, x: Tensor, θ: Sequence[Tensor], network: Function, *, differentiable: bool
    ) -> list[Tensor]:
        """Return the adapted parameters θ' for inputs ``x`` (n, …), differentiable in θ and φ if asked for.

        Args:
            φ, x: see above.
            θ: the parameters.
            network: the network as a function of θ.
            differentiable: whether derivatives of θ' are needed.
        """
        loss = φ(network(θ, x)).square().mean().add(TINY).sqrt()
        slopes = gradients(loss, θ, differentiable=differentiable)
        return [p - self.hyper.adaptation_rate * g for p, g in zip(θ, slopes, strict=True)]

    def _function(self) -> Function:
        """Return the network as a function of its trained parameters and of inputs."""
        return as_function(self.model, trained(self.model))

    def _receive(self, arrays: Arrays) -> nn.Module:
        """Load the received arrays into the network and into φ; return φ."""
        set_arrays(self.model, {name: array for name, array in arrays.items() if not name.startswith(PREFIX)})
        φ = _adaptation(self.task.outputs[0], self.hyper.width, self.settings.seed).to(self.data.train.y.device)
        own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        self.expect_own_strategy(bool(own))
        set_arrays(φ, own)
        return φ


TINY = 1e-12
"""Added under the square root, whose slope at 0 is infinite."""


@remembered(2)
def _adaptation(outputs: int, width: int, seed: int) -> nn.Module:
    """Return the network φ that all clients of the process share; every client overwrites its contents."""
    return adaptation_network(outputs, width, seed)
