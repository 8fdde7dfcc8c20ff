"""FedGTST, client side (Ma et al. 2024, algorithm 1): the norm of the gradient is drawn to a guide norm.

Received: the model and, from round 2 on, the guide norm Ĵ and the names of the clients that also train without it.
Minimised: ℓ(w) + λ(‖∇ℓ(w)‖ − Ĵ)². Answered: the model so trained and a number, the norm of its Jacobian (the gradient
of the mean loss). A client that trains both ways sends the larger of the two norms, its surrogate; where only such
clients make the guide (``fedgtst.guide = "standard"``), also the norm after the training without regulariser.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients.base import Answer, BaseClient, phase
from clients.hyper import FedGTSTHyper
from clients.training import mean_gradient
from clients.wire import BESIDE, Config
from common.errors import RunError
from models.parameters import Arrays, get_arrays, set_arrays
from models.second_derivatives import CheapSecondDerivatives

TINY = 1e-12
"""Under the root, whose slope at 0 is infinite."""


class FedGTSTClient(BaseClient):
    """Trains with a regulariser on the gradient's norm, and reports that norm."""

    hyper: FedGTSTHyper

    @phase
    def train(self, arrays: Arrays, config: Config) -> Answer:
        """Train with the regulariser, and without where asked to; answer the model and the norm."""
        guide = float(config.get("guide", 0.0))
        if not math.isfinite(guide) or guide < 0:
            raise RunError(f"the guide norm is {guide}; it must be a finite number ≥ 0 (0: there is none yet)")
        regularised = bool(guide and self.hyper.coefficient)
        standard = None
        if regularised and self.client_id in config.get("standard", ()):
            set_arrays(self.model, arrays)
            _, standard = self._train(0.0, config)
        set_arrays(self.model, arrays)
        loss, norm = self._train(guide if regularised else 0.0, config)
        if not regularised:
            standard = norm
        numbers = {"loss": loss, "norm": norm if standard is None or math.isnan(standard) else max(norm, standard)}
        if self.hyper.guide == "standard" and standard is not None:
            numbers["standard_norm"] = standard
        return Answer(get_arrays(self.model), len(self.data.train), numbers)

    @phase
    def gradient(self, arrays: Arrays, config: Config) -> Answer:
        """Answer the gradient itself at the received model, and its squared norm: a diagnosis in simulations."""
        if not self.data.simulated:
            raise RunError("a device sends norms alone; fedgtst.diagnose is for simulations")
        set_arrays(self.model, arrays)
        named = dict(self.model.named_parameters())
        gradients = mean_gradient(self.model, self.data.train, [*named.values()])
        answer = {BESIDE + name: g.cpu().numpy() for name, g in zip(named, gradients, strict=True)}
        return Answer(answer, len(self.data.train), {"square": float(_length(gradients)) ** 2})

    def regularised(self, rows: Tensor, guide: float) -> tuple[Tensor, Tensor]:
        """Return ℓ + λ(‖∇ℓ‖ − Ĵ)² of a batch, differentiable, and ‖∇ℓ‖."""
        x, y = self.data.train.x, self.data.train.y
        with CheapSecondDerivatives():
            loss = cross_entropy(self.model(x[rows]), y[rows])
            of = loss if self.hyper.norm_of == "batch" else cross_entropy(self.model(x), y)
        norm = _length(torch.autograd.grad(of, [*self.model.parameters()], create_graph=True))
        away = norm - guide if self.hyper.alignment == "absolute" else norm / guide - 1
        return loss + self.hyper.coefficient * away.square(), norm

    # --------------------------------------------------------------------------------------- details

    def _train(self, guide: float, config: Config) -> tuple[float, float]:
        """Train the network in place, without the regulariser where ``guide`` is 0; return loss and norm."""
        received = self._norm() if self.hyper.measured == "received" else 0.0
        norms: list[Tensor] = []

        def objective(rows: Tensor) -> Tensor:
            result, norm = self.regularised(rows, guide)
            norms.append(norm.detach())
            return result

        def watch(model: nn.Module, rows: Tensor) -> None:
            norms.append(_length([p.grad for p in model.parameters() if p.grad is not None]))

        if guide:
            loss = self.descend(config, objective=objective)
        else:
            loss = self.descend(config, gradient_hook=watch if self.hyper.measured == "epoch" else None)
        match self.hyper.measured:
            case "received":
                return loss, received
            case "trained":
                return loss, self._norm()
            case "epoch":
                return loss, float(torch.stack(norms).mean())

    def _norm(self) -> float:
        """Return the norm of the gradient of the mean loss over all of the client's examples."""
        return float(_length(mean_gradient(self.model, self.data.train, [*self.model.parameters()])))


def _length(gradients: Sequence[Tensor]) -> Tensor:
    return torch.stack([g.square().sum() for g in gradients]).sum().add(TINY).sqrt()
