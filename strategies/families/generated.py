"""Generated models, server side: a hypernetwork h makes a whole model from every client's descriptor.

θ_i = h(v_i; η_h). Clients return Δθ_i, the change of their model by local training; backpropagated through h it gives
Δη_h and Δv_i. The hypernetwork stays on the server, since it is many times larger than the models that it makes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from florilegium.clients.core.network import network_for
from florilegium.clients.core.optimizers import SGD, Adam, Optimizer
from florilegium.clients.hyper.hypernetworks import HyperNetworkHyper
from florilegium.common.errors import ConfigurationError
from florilegium.models.hypernetwork import HyperNetwork
from florilegium.models.parameters import Arrays, exchanged, get_arrays, part, set_arrays, shapes_of, trained
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.server_step import ADAPTIVE
from florilegium.strategies.exchange.exchange import Outcome, joined
from florilegium.strategies.folder.run_folder import Checkpoint

TESTED_AT_ONCE = 100
"""Number of clients whose models are made and sent in one exchange of an evaluation; limits the server's memory."""


HYPERNETWORK = "the server has no network, but a hypernetwork that makes them"
"""Why features cannot be transferred."""


class Generated(CohortStrategy):
    """Base strategy of methods with a hypernetwork: making models, training with Δθ, evaluation, checkpoints."""

    models: ClassVar[Literal["global", "own", "none"]] = "own"
    hyper: HyperNetworkHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        s = self.settings
        if s.server_optimizer in ADAPTIVE:
            raise ConfigurationError(
                f"server-optimizer: '{s.server_optimizer}' averages models; '{s.method}' trains networks on the "
                "server, for which there are 'sgd' and 'adam'"
            )
        self.spec = dataset_of(s)
        network = network_for(self.spec, s, s.seed)
        shapes = {name: tuple(tensor.shape) for name, tensor in exchanged(network).items()}
        if not shapes:
            raise ConfigurationError(
                f"model: '{s.model}' has no parameters, and there is nothing for a hypernetwork to make"
            )
        if shapes.keys() != trained(network).keys():
            raise ConfigurationError(
                f"model: '{s.model}' has running statistics (batch normalisation) or other buffers of numbers, which a "
                "hypernetwork does not make"
            )
        if not self.hyper.descriptor_size and not s.num_clients:
            raise ConfigurationError(
                f"{s.method}.descriptor-size: 0 is a quarter of num-clients, which is 0 itself; give one of them"
            )
        self.size = self.hyper.descriptor_size or max(1, s.num_clients // 4)  # l
        self.hypernetwork = HyperNetwork(
            self.size, shapes, self.hyper.hidden_layers, self.hyper.hidden_width, self.settings.seed
        )

    # ------------------------------------------------------------------------- what a method provides

    @abstractmethod
    def describe(self, round: Round, clients: Sequence[str], model: Arrays) -> tuple[list[str], Tensor, dict[str, str]]:
        """Return for an evaluation the clients that have a descriptor, their descriptors (c, l), and others' errors."""

    # ---------------------------------------------------------------------------------------- learning

    def adapt(
        self,
        round: Round,
        cohort: Sequence[str],
        v: Tensor,
        *,
        repetition: int = 0,
        evaluation: bool = False,
        out_of: int | None = None,
    ) -> tuple[Outcome, dict[str, Tensor], dict[str, Tensor]]:
        """Send every client its generated model, and have it train the model.

        Args:
            round: the round.
            cohort: the clients.
            v: their descriptors (c, l), in the order of ``cohort``.
            repetition: number of this exchange, if the round has several.
            evaluation, out_of: those of :meth:`Round.ask`.

        Returns:
            The outcome; and for the clients in it θ, with its autograd graph, and Δθ, with a leading client axis.
        """
        θ = self.hypernetwork(v)
        scatter = {name: tensor.detach().numpy() for name, tensor in θ.items()}
        none = {
            name: np.zeros(array.shape[1:], array.dtype) for name, array in scatter.items()
        }  # Δθ is returned itself
        outcome = round.ask(
            "adapt", cohort, reduce="stack", scatter=scatter, evaluation=evaluation, out_of=out_of,
            shapes={name: array.shape[1:] for name, array in scatter.items()}, base=lambda client: none,
            repetition=repetition,
        )  # fmt: skip
        if not outcome.clients:
            return outcome, {}, {}
        rows = [cohort.index(client) for client in outcome.clients]
        made = {name: tensor[rows] for name, tensor in θ.items()}
        return outcome, made, {n: torch.from_numpy(outcome.arrays[n]).to(w.dtype) for n, w in θ.items()}

    def descent(self, made: Mapping[str, Tensor], Δθ: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        """Backpropagate Δθ to ``inputs``: return the product of Δθ with the derivative of θ for each of them."""
        return list(torch.autograd.grad(list(made.values()), inputs, [Δθ[name] for name in made]))

    def make_optimizer(self, parameters: Sequence[Tensor], rate: float = 0.0) -> Optimizer:
        """Return the configured server optimizer; ``rate`` 0: with the configured server learning rate."""
        rate = rate or self.settings.server_learning_rate
        if self.settings.server_optimizer == "adam":
            return Adam(parameters, rate, 0.0)
        return SGD(parameters, rate, self.settings.server_momentum, 0.0)

    def step(self, optimizer: Optimizer, updates: Sequence[tuple[Tensor, Tensor, float]], server_round: int) -> None:
        """Take an optimizer step along the updates minus the gradients 2βλη of penalties (Algorithm 8, lines 17, 18).

        Args:
            optimizer: the optimizer of these parameters.
            updates: parameters η; their mean updates Δη, which are overwritten to save memory; and the weights λ of
                their penalties.
            server_round: the round, on which the clients' learning rate β depends.
        """
        β = self.settings.learning_rate * self.settings.decay(server_round)
        for parameter, Δ, λ in updates:
            parameter.grad = Δ.neg_().add_(parameter.detach(), alpha=2 * β * λ)
        if self.hyper.server_max_grad_norm:
            nn.utils.clip_grad_norm_([parameter for parameter, _, _ in updates], self.hyper.server_max_grad_norm)
        optimizer.step()

    # -------------------------------------------------------------------------------------- evaluation

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Make each client's model and have the client test it, ``TESTED_AT_ONCE`` clients per exchange."""
        outcomes = []
        for first in range(0, len(clients), TESTED_AT_ONCE):
            chunk = clients[first : first + TESTED_AT_ONCE]
            described, v, failures = self.describe(round, chunk, model)
            if not described:
                outcomes.append(Outcome([], {}, {}, failures))
                continue
            with torch.no_grad():
                scatter = {name: tensor.numpy() for name, tensor in self.hypernetwork(v).items()}
            outcome = round.ask("test", described, reduce="sum", scatter=scatter, evaluation=True, out_of=0)
            outcome.failures |= failures
            outcomes.append(outcome)
        return round.require(joined(outcomes), len(clients))

    # ---------------------------------------------------------------------------------- start and state

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return no arrays, since no part of the model is the same for all clients."""
        return {}

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Start from another run's networks, without its optimizers' state and its knowledge of clients."""
        own = self.server_part(network)
        hypernetwork, theirs = get_arrays(self.hypernetwork), part(trained.state, "hypernetwork/")
        if shapes_of(trained.arrays) != shapes_of(own) or shapes_of(theirs) != shapes_of(hypernetwork):
            raise ConfigurationError(
                f"init: run '{self.settings.init}' has other networks on its server than this run would have; method, "
                f"model, descriptor size and {self.settings.method}.* must agree"
            )
        self.restore({f"hypernetwork/{name}": array for name, array in theirs.items()}, trained.facts["own"])
        return trained.arrays

    def optimizers(self) -> Mapping[str, Optimizer]:
        """Return the server's optimizers by name, for checkpoints."""
        return {}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the hypernetwork and the optimizers' state, for checkpoints."""
        own = {f"hypernetwork/{name}": array for name, array in get_arrays(self.hypernetwork).items()}
        for name, optimizer in self.optimizers().items():
            own |= {f"optimizer/{name}/{i}": tensor.numpy() for i, tensor in enumerate(optimizer.memory())}
        return own, {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the hypernetwork and the optimizers' state."""
        set_arrays(self.hypernetwork, part(arrays, "hypernetwork/"))
        for name, optimizer in self.optimizers().items():
            memory = part(arrays, f"optimizer/{name}/")
            if memory:
                optimizer.recall([torch.from_numpy(memory[str(i)]) for i in range(len(memory))])

    def report(self) -> dict[str, Any]:
        """Return the numbers of the hypernetwork's parameters and of a descriptor's entries, for ``summary.json``."""
        count = sum(parameter.numel() for parameter in self.hypernetwork.parameters())
        return {"hypernetwork": {"parameters": count, "descriptor_size": self.size}}
