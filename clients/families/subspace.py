"""Models in a random subspace, θ = θ₀ + Pv, client side: θ₀ and P are drawn from the run's seed and never sent."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.training import EVALUATION_BATCH, evaluate
from florilegium.clients.hyper.subspace import SubspaceHyper
from florilegium.common.errors import RunError
from florilegium.common.memo import remembered
from florilegium.models.batch_norm import has_lone_channels
from florilegium.models.called import Function, as_function
from florilegium.models.parameters import trained
from florilegium.models.subspace import Expansion, expansion


class SubspaceClient(BaseClient):
    """Uses a network with parameters θ₀ + Pv, given by a point v of the subspace."""

    uses_finetuning = "never"
    hyper: SubspaceHyper

    def logits(self, x: Tensor, v: Tensor) -> Tensor:
        """Return f(x; θ₀ + Pv), (n, C), differentiable in v (k,)."""
        return self._function([one[0] for one in self.parameters(v[None])], x)

    def parameters(self, v: Tensor) -> list[Tensor]:
        """Return θ₀ + Pv of n points v (n, k), as its trained parameters, (n, *shape) each; differentiable in v."""
        P, shapes = self._expansion(v), self._shapes
        θ = self._origin + (P(v[0])[None] if len(v) == 1 else torch.vmap(P)(v))
        parts = θ.split([shape.numel() for shape in shapes], dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]

    @torch.no_grad()
    def become(self, v: Tensor, x: Tensor) -> None:
        """Set the network's parameters to θ₀ + Pv, and its batch-norm statistics, if any, to those of inputs ``x``.

        Raises:
            RunError: if batch norm would get the statistics of a single number.
        """
        for parameter, own in zip(trained(self.model).values(), self.parameters(v[None]), strict=True):
            parameter.copy_(own[0])
        norms = [module for module in self.model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        if not norms:
            return
        if len(x) == 1 and has_lone_channels(self.model, x):
            raise RunError("it has a single input, of which batch norm has no statistics")
        for norm in norms:
            norm.reset_running_stats()
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = None  # plain averages over the batches
        self.model.train()
        for part in x.tensor_split(math.ceil(len(x) / EVALUATION_BATCH)):
            self.model(part)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    def judged(self) -> Answer:
        """Return the loss and figures of the present network on the client's test examples."""
        return Answer({}, len(self.data.test), evaluate(self.model, self.data.test, self.task))

    @cached_property
    def _origin(self) -> Tensor:
        """Return θ₀, (d,)."""
        device = self.data.train.y.device
        return torch.cat([torch.from_numpy(self.initial[name]).reshape(-1) for name in trained(self.model)]).to(device)

    @cached_property
    def _shapes(self) -> list[torch.Size]:
        """Return the shapes of the trained parameters."""
        return [parameter.shape for parameter in trained(self.model).values()]

    @cached_property
    def _function(self) -> Function:
        """Return the network as a function of its trained parameters and of inputs."""
        return as_function(self.model, trained(self.model))

    def _expansion(self, like: Tensor) -> Expansion:
        """Return P, which all clients of the process share, on the device of ``like``."""
        d = sum(shape.numel() for shape in self._shapes)
        return _expansion(self.hyper.expansion, d, self.hyper.dimensions, self.settings.seed).to(like)


@remembered(2)
def _expansion(kind: str, d: int, k: int, seed: int) -> Expansion:
    return expansion(kind, d, k, seed)
