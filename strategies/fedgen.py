"""FedGen, server side (Zhu, Hong, Zhou 2021, Algorithm 1): FedAvg, and a generator trained on the clients' heads.

The generator G minimises E ℓ(1/K·Σ_k h_k(G(ε, y)), y) with y ~ p̂ (equation 4), plus a diversity loss. A head h_k is one
dense layer, so the mean of the heads' logits are the logits of the mean head: the server needs no client's head, only
FedAvg's sums, and likewise only the mean p̂ of the clients' class frequencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear

from florilegium.clients.core.optimizers import Adam
from florilegium.clients.core.wire import BESIDE
from florilegium.clients.fedgen import FREQUENCIES
from florilegium.clients.hyper.classwise import FedGenHyper
from florilegium.common.errors import RunError
from florilegium.common.seeds import torch_generator
from florilegium.models.blocks import classifier_shape, last_blocks, of_blocks
from florilegium.models.generator import build_generator, diversity_loss
from florilegium.models.parameters import Arrays, get_arrays, part, set_arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg

MOMENTS = "generator-optimizer:"
"""Prefix of the names of the generator's optimizer state in a checkpoint."""


class FedGen(FedAvg):
    """FedAvg, with a generator of features beside the model."""

    messages = Messages("sum", features="whole")
    hyper: FedGenHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; build the generator, and set p̂ to equal frequencies."""
        classes, d = classifier_shape(self.federation.network, "fedgen")
        hyper = self.hyper
        self._generator = build_generator(classes, hyper.noise_size, hyper.generator_width, d, self.settings.seed)
        self._optimizer = Adam([*self._generator.parameters()], hyper.generator_learning_rate, 0.0)
        self._put_beside(np.full(classes, 1 / classes, np.float32))
        return arrays

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Train the generator on the mean of the clients' heads and class frequencies."""
        name = BESIDE + FREQUENCIES
        received = self.beside[name] + outcome.arrays.get(name, 0.0) / outcome.weight
        p̂ = np.clip(received, 0, 1).astype(np.float32)  # noise, or a client, may move them outside
        if not p̂.any():
            p̂ = np.full_like(p̂, 1 / len(p̂))
        last = last_blocks(self.federation.network, 1, "fedgen")
        head = of_blocks(model, last)
        mean = {n: (array + outcome.arrays[n] / outcome.weight).astype(np.float32) for n, array in head.items()}
        fixed = of_blocks(self.federation.start.frozen.arrays, last)
        self._train_generator(round.number, mean | fixed, p̂)
        self._put_beside(p̂)

    def _train_generator(self, server_round: int, head: Arrays, p̂: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Take ``generator-steps`` steps on equation 4 and the diversity loss.

        Raises:
            RunError: if the generator diverges.
        """
        weight, bias = (
            next((torch.from_numpy(array) for array in head.values() if array.ndim == axes), None) for axes in (2, 1)
        )
        assert weight is not None, "classifier_shape has checked the head"
        draws = torch_generator(self.settings.seed, "generated", server_round)
        self._generator.train()
        for _ in range(self.hyper.generator_steps):
            y = torch.multinomial(torch.from_numpy(p̂), self.hyper.generator_batch, replacement=True, generator=draws)
            z, ε = self._generator.draw(y, draws)
            loss = self.task.loss(linear(z, weight, bias), y) + self.hyper.diversity * diversity_loss(ε, z)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        if not all(np.isfinite(array).all() for array in get_arrays(self._generator).values()):
            raise RunError("the generator has NaN or infinity; lower fedgen.generator-learning-rate")

    def _put_beside(self, p̂: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Send the generator and p̂ beside the model from now on."""
        self.beside = {BESIDE + name: array for name, array in get_arrays(self._generator).items()}
        self.beside[BESIDE + FREQUENCIES] = p̂

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return FedAvg's state, which includes the generator, and the generator's optimizer state."""
        own, facts = super().state()
        moments = {f"{MOMENTS}{index}": tensor.numpy() for index, tensor in enumerate(self._optimizer.memory())}
        return own | moments, facts

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore FedAvg's state, the generator and its optimizer's state."""
        moments = part(arrays, MOMENTS)
        super().restore({name: array for name, array in arrays.items() if not name.startswith(MOMENTS)}, facts)
        beside = part(self.beside, BESIDE)
        set_arrays(self._generator, {name: beside[name] for name in get_arrays(self._generator)})
        self._optimizer.recall([torch.from_numpy(moments[str(index)]) for index in range(len(moments))])
