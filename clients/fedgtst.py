"""FedGTST, client side (Ma et al. 2024, algorithm 1): the gradient norm is regularised towards a guide norm.

Receives the model and, from round 2 on, the guide norm Ĵ and the ids of the clients that also train without the
regulariser. Minimises ℓ(w) + λ(‖∇ℓ(w)‖ − Ĵ)². Returns the trained model and the norm of its Jacobian (the gradient of
the mean loss). A client that trains both ways sends the larger of the two norms, its surrogate. If only such clients
determine Ĵ (``fedgtst.guide = "standard"``), it also sends the norm after training without the regulariser.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import Range, Reports
from florilegium.clients.core.training import gradients, mean_gradient
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.federated import FedGTSTHyper
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays, get_arrays, set_arrays, trained
from florilegium.models.second_derivatives import CheapSecondDerivatives

TINY = 1e-12
"""Added under the square root, whose slope at 0 is infinite."""


class FedGTSTClient(BaseClient):
    """Trains with a regulariser on the gradient's norm, and reports that norm."""

    training = Training()
    hyper: FedGTSTHyper
    reports: ClassVar[Reports] = dict.fromkeys(("norm", "standard_norm", "square"), Range(0.0, math.inf))

    @phase
    def train(self, arrays: Arrays, *, guide: float = 0.0, standard: list[str] | None = None) -> Answer:
        """Train with the regulariser, and for some clients also without; return the model and its gradient norm.

        Args:
            arrays: the model.
            guide: the guide norm Ĵ; 0: there is none yet.
            standard: ids of the clients that also train without the regulariser.
        """
        if not math.isfinite(guide) or guide < 0:
            raise RunError(f"the guide norm is {guide}; it must be a finite number ≥ 0 (0: there is none yet)")
        regularised = bool(guide and self.hyper.coefficient)
        plain = None  # the norm after training without the regulariser
        if regularised and self.client_id in (standard or ()):
            set_arrays(self.model, arrays)
            _, plain = self._train(0.0)
        set_arrays(self.model, arrays)
        loss, norm = self._train(guide if regularised else 0.0)
        if not regularised:
            plain = norm
        numbers = {"loss": loss, "norm": norm if plain is None or math.isnan(plain) else max(norm, plain)}
        if self.hyper.guide == "standard" and plain is not None:
            numbers["standard_norm"] = plain
        return Answer(get_arrays(self.model), len(self.data.train), numbers)

    @phase
    def gradient(self, arrays: Arrays) -> Answer:
        """Return the gradient at the received model and its squared norm, as a diagnosis in simulations.

        The gradient is 0 for what is frozen, and for running statistics.
        """
        if not self.data.simulated:
            raise RunError("a device sends norms alone; fedgtst.diagnose is for simulations")
        set_arrays(self.model, arrays)
        named = trained(self.model)
        slopes = mean_gradient(self.model, self.data.train, [*named.values()], self.task)
        gradient = {name: np.zeros_like(array) for name, array in arrays.items()}
        gradient |= {name: g.cpu().numpy() for name, g in zip(named, slopes, strict=True)}
        return Answer(gradient, len(self.data.train), {"square": float(_length(slopes)) ** 2})

    def regularised(self, rows: Tensor, guide: float, θ: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return ℓ + λ(‖∇ℓ‖ − Ĵ)² of a batch, differentiable, and ‖∇ℓ‖ in the parameters θ; Ĵ is ``guide``."""
        x = self.data.train.x
        with CheapSecondDerivatives():
            loss = self.loss(self.model(x[rows]), rows)
            of = loss if self.hyper.norm_of == "batch" else self.loss(self.model(x))
        norm = _length(gradients(of, θ, differentiable=True))
        away = norm - guide if self.hyper.alignment == "absolute" else norm / guide - 1
        return loss + self.hyper.coefficient * away.square(), norm

    # --------------------------------------------------------------------------------------- details

    def _train(self, guide: float) -> tuple[float, float]:
        """Train the network in place, without the regulariser if ``guide`` is 0; return mean loss and gradient norm."""
        received = self._norm() if self.hyper.measured == "received" else 0.0
        norms: list[Tensor] = []
        θ = [*trained(self.model).values()]

        def objective(rows: Tensor) -> Tensor:
            result, norm = self.regularised(rows, guide, θ)
            norms.append(norm.detach())
            return result

        def watch(model: nn.Module, rows: Tensor) -> None:
            norms.append(_length([p.grad for p in model.parameters() if p.grad is not None]))

        if guide:
            loss = self.descend(objective=objective)
        else:
            loss = self.descend(gradient_hook=watch if self.hyper.measured == "epoch" else None)
        match self.hyper.measured:
            case "received":
                return loss, received
            case "trained":
                return loss, self._norm()
            case "epoch":
                return loss, float(torch.stack(norms).mean())

    def _norm(self) -> float:
        """Return the norm of the gradient of the mean loss over all of the client's examples."""
        return float(_length(mean_gradient(self.model, self.data.train, [*trained(self.model).values()], self.task)))


def _length(slopes: Sequence[Tensor]) -> Tensor:
    return torch.stack([g.square().sum() for g in slopes]).sum().add(TINY).sqrt()
