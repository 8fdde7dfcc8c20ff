"""SCAFFOLD, client side (Karimireddy et al. 2020, Algorithm 1): SGD whose steps are corrected by control variates.

Received: the global model x and, after ``beside.control.``, the server's control variate c. The client takes K steps
y ← y − η(g(y) + c − c_i) and renews its own variate, which it keeps: c_i⁺ = ∇f_i(x) (option I), or
c_i⁺ = c_i − c + (x − y)/(Kη) (option II). Answered: y and c + c_i⁺ − c_i, so that the sums of changes are those of the
paper.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clients.base import Answer, BaseClient, phase
from clients.hyper import ScaffoldHyper
from clients.training import mean_gradient
from clients.wire import BESIDE, Config
from models.parameters import Arrays, get_arrays, set_arrays

CONTROL = f"{BESIDE}control."


class ScaffoldClient(BaseClient):
    """Local SGD that follows the mean of all clients' gradients."""

    hyper: ScaffoldHyper

    @phase
    def train(self, arrays: Arrays, config: Config) -> Answer:
        """Train along corrected gradients; answer the model and the control variate's change."""
        x = {name: array for name, array in arrays.items() if not name.startswith(CONTROL)}
        set_arrays(self.model, x)
        parameters = dict(self.model.named_parameters())
        c = {name: self._tensor(arrays[CONTROL + name]) for name in parameters}
        kept = self.state.load() or {}
        own = {name: self._tensor(kept[name]) if kept else torch.zeros_like(c[name]) for name in parameters}
        new = {}
        if self.hyper.option == 1:
            new = dict(zip(parameters, mean_gradient(self.model, self.data.train, [*parameters.values()]), strict=True))
        steps = 0

        def correct(model: nn.Module, rows: Tensor) -> None:
            nonlocal steps
            steps += 1
            for name, parameter in parameters.items():
                assert parameter.grad is not None
                parameter.grad += c[name] - own[name]

        before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        loss = self.descend(config, gradient_hook=correct)
        if self.hyper.option == 2:
            length = steps * self.settings.learning_rate * self.decay(config)  # Kη
            new = {
                name: own[name] - c[name] + (before[name] - parameter.detach()) / length
                for name, parameter in parameters.items()
            }
        self.state.save({name: tensor.cpu().numpy() for name, tensor in new.items()})
        control = {CONTROL + name: (c[name] + new[name] - own[name]).cpu().numpy() for name in parameters}
        return Answer(get_arrays(self.model) | control, len(self.data.train), {"loss": loss})

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.data.train.y.device)
