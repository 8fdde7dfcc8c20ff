"""APFL, client side (Deng, Kamani and Mahdavi 2020, Algorithm 1): a personal model is mixed with the global model.

Receives the global model w and returns it after local training, as in FedAvg. The client keeps a personal model v_i,
which starts at θ₀, and a weight α_i. With the mixture v̄_i = α_i·v_i + (1 − α_i)·w, where w is the local version of the
global model, each step on a batch ξ is w ← w − η∇f(w; ξ) and v_i ← v_i − η∇_v f(v̄_i; ξ), where ∇_v f = α_i∇f(v̄_i; ξ).
The weight is adapted by α_i ← α_i − η⟨v_i − w, ∇f(v̄_i; ξ)⟩, clipped to [0, 1].
``apfl.rule = "pfllib"`` takes PFLlib's steps.

Strategy: FedAvg (``strategies/fedavg.py``). v_i never leaves its client; α_i is one of its training metrics.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import SHARE, Reports
from florilegium.clients.core.training import GradientHook, Group, gradients, make_optimizer
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.mixing import APFLHyper
from florilegium.models.parameters import Arrays, exchanged, get_arrays, set_arrays, trained

ALPHA = "alpha"
"""Part of the client's state that holds α_i, and its name there."""


class APFLClient(BaseClient):
    """Trains a global and a personal model at once, and learns how to mix them."""

    training = Training("it has losses and steps of its own")
    hyper: APFLHyper
    reports: ClassVar[Reports] = {ALPHA: SHARE}

    @classmethod
    def own_start(cls, hyper: APFLHyper) -> str:
        """Return what starts from the seed even with ``init``."""
        return "the clients' own models v_i"

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train w and, with the same batches, v_i and α_i; keep the latter two."""
        self._mixed = copy.deepcopy(self.model).train()  # v̄_i
        set_arrays(self._mixed, self.state.load() or self.initial)
        self._v = [parameter.detach().clone() for parameter in trained(self._mixed).values()]
        self._α = self._weight()
        self._slopes: tuple[list[Tensor], list[Tensor]] | None = None
        answer = super().train(arrays)
        if self._of_pfllib:
            self._weigh(self.model)
            w = [parameter.detach() for parameter in trained(self.model).values()]
            self._v = [*torch._foreach_lerp(w, self._v, self._α)]
        with torch.no_grad():
            torch._foreach_copy_([*trained(self._mixed).values()], self._v)
        self.state.save(get_arrays(self._mixed))
        self.state.save({ALPHA: np.array([self._α], np.float32)}, ALPHA)
        return Answer(answer.arrays, answer.num_examples, answer.metrics | {ALPHA: self._α})

    def gradient_hook(self) -> GradientHook:
        """Return a hook that takes the step of v_i, and of α_i, and leaves the gradients of w as they are.

        The gradients follow from that of the mixture, which is linear in v_i and in α_i.
        """
        if self._of_pfllib:
            return self._step_of_pfllib()
        s, η = self.settings, self.settings.learning_rate * self.decay()
        mixed, v = [*trained(self._mixed).values()], self._v
        optimizer = make_optimizer(s, Group(v, s.learning_rate), self.decay())
        adapting = self.hyper.adapt != "never"

        def hook(model: nn.Module, rows: Tensor) -> None:
            nonlocal adapting
            w = [parameter.detach() for parameter in trained(model).values()]
            with torch.no_grad():
                torch._foreach_copy_([*mixed], torch._foreach_lerp(w, v, self._α))
            loss = self.loss(self._mixed(self.data.train.x[rows]), rows)
            slopes = gradients(loss, mixed)  # ∇f(v̄_i)
            if adapting:
                along = torch.stack([(g * (o - other)).sum() for g, o, other in zip(slopes, v, w, strict=True)]).sum()
            for own, slope in zip(v, torch._foreach_mul(slopes, self._α), strict=True):
                own.grad = slope
            if s.max_grad_norm:
                nn.utils.clip_grad_norm_(v, s.max_grad_norm)
            optimizer.step()
            if adapting:
                self._α = min(max(self._α - η * float(along), 0.0), 1.0)
                adapting = self.hyper.adapt == "step"

        return hook

    @property
    def _of_pfllib(self) -> bool:
        return self.hyper.rule == "pfllib"

    def _step_of_pfllib(self) -> GradientHook:
        """Return a hook that takes v_i's own step, v_i ← v_i − η∇f(v_i), and adapts α_i after the step before."""
        s, v = self.settings, self._v
        own = [*trained(self._mixed).values()]
        optimizer = make_optimizer(s, Group(v, s.learning_rate), self.decay())

        def hook(model: nn.Module, rows: Tensor) -> None:
            self._weigh(model)
            with torch.no_grad():
                torch._foreach_copy_([*own], v)
            slopes = gradients(self.loss(self._mixed(self.data.train.x[rows]), rows), own)
            common = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trained(model).values()]
            for parameter, slope in zip(v, slopes, strict=True):
                parameter.grad = slope
            if s.max_grad_norm:
                nn.utils.clip_grad_norm_(v, s.max_grad_norm)
            optimizer.step()
            self._slopes = common, [*slopes]

        return hook

    def _weigh(self, model: nn.Module) -> None:
        """Adapt α_i after a step of both models, by the gradients from before it and that of 0.01·α_i²."""
        if self._slopes is None or self.hyper.adapt == "never":
            return
        α, w = self._α, [parameter.detach() for parameter in trained(model).values()]
        along = sum(
            float(((own - other) * (α * g + (1 - α) * f)).sum())
            for own, other, f, g in zip(self._v, w, *self._slopes, strict=True)
        )
        self._α = min(max(α - self.settings.learning_rate * self.decay() * (along + 0.02 * α), 0.0), 1.0)
        self._slopes = None

    def personalise(self) -> bool:
        """Mix the received model with v_i; a client without v_i may fine-tune the received model instead."""
        own = self.state.load()
        if own is None:
            return super().personalise()
        α, w = 1.0 if self._of_pfllib else self._weight(), exchanged(self.model)
        with torch.no_grad():
            for name, array in own.items():
                w[name].lerp_(torch.from_numpy(array).to(w[name]), α)
        return True

    def _weight(self) -> float:
        """Return α_i, the kept one or the initial one."""
        kept = self.state.load(ALPHA)
        return self.hyper.alpha if kept is None else float(kept[ALPHA][0])
