"""FedL2P, client side (Lee et al. 2023, algorithms 1 and 2): learn to fine-tune, from statistics of the client's data.

Receives λ, the parameters of two meta-nets, and beside it the model θ_g, which is not changed. The meta-nets map
statistics of the client's data, from one pass over it, to the client's mixing β of batch-norm statistics and its
learning rates η. The client fine-tunes θ_g with β and η, computes the gradient of its validation loss with respect to λ
by implicit differentiation, and takes a step on λ. Returns λ. Before a test it fine-tunes with the received λ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import NUMBER, POSITIVE, SHARE, Reports
from florilegium.clients.core.training import EVALUATION_BATCH, Group, batches, evaluate, train
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import BESIDE, of_network
from florilegium.clients.hyper.fedl2p import FedL2PHyper
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.memo import remembered
from florilegium.models.batch_norm import (
    DifferentiableStatistics,
    Moments,
    distance,
    give,
    layers_of,
    measure,
    mix,
    norms_of,
)
from florilegium.models.built import build_network
from florilegium.models.called import as_function
from florilegium.models.implicit import implicit_derivative
from florilegium.models.meta_nets import MetaNets, build_meta_nets
from florilegium.models.parameters import Arrays, exchanged, get_arrays, part, set_arrays, trained
from florilegium.models.second_derivatives import CheapSecondDerivatives
from florilegium.models.settings import NetworkSettings
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import dataset_of

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Profile:
    """Statistics of a client's data from one pass through the network.

    Attributes:
        pretrained, own: statistics of every batch-norm layer's inputs: those kept by the model, and those of the
            client's data.
        distances: ξ (B,), the distance between the two for every layer.
        moments: mean and standard deviation of every layer's inputs, (2M,).
    """

    pretrained: Mapping[str, Moments]
    own: Mapping[str, Moments]
    distances: Tensor
    moments: Tensor


@dataclass(frozen=True)
class Step:
    """The last step of fine-tuning for one parameter tensor: the value after the step, and the gradient g."""

    reached: Tensor
    gradient: Tensor


class FedL2PClient(BaseClient):
    """Fine-tunes the model with learned personal hyper-parameters, and trains the meta-nets that give these."""

    training = Training()
    uses_finetuning = "always"
    augments = False
    hyper: FedL2PHyper
    reports: ClassVar[Reports] = {"skipped": POSITIVE, "rate": POSITIVE, "sparsity": SHARE, "mixing": NUMBER}

    @phase
    def pretrain(self, arrays: Arrays) -> Answer:
        """Train the model itself, as in FedAvg."""
        return super().train(arrays)

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Take K steps on λ; return λ, and the validation loss after fine-tuning with the received λ."""
        nets, model = self.nets(arrays), self._model(arrays)
        if not len(self.data.validation):
            raise RunError("it has no example to validate with; raise validation-fraction")
        profile, losses, skipped = self.profile(), [], 0
        for k in range(self.hyper.iterations):
            set_arrays(self.model, model)
            tuned = math.isfinite(self.finetune(nets, profile, f"iteration {k}"))
            rows = next(batches(self.data.train, self.settings.batch_size, self.generator(f"batch {k}")))
            last = last_step(self.model)
            loss, gradients = self.hypergradient(nets, profile, last, self.data.train.rows(rows), self.data.validation)
            if not tuned or not all(torch.isfinite(g).all() for g in [loss, *gradients]):
                skipped += 1
                continue
            losses.append(loss.item())
            self._step(nets, gradients)
        metrics = {"skipped": float(skipped)} | ({"loss": losses[0]} if losses else {})
        return Answer(get_arrays(nets), len(self.data.train), metrics)

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Fine-tune with the hyper-parameters that λ gives; evaluate the model before and after."""
        nets = self.nets(arrays)
        set_arrays(self.model, self._model(arrays))
        before = evaluate(self.model, self.data.test, self.task)
        if not self.data.labeled:
            return Answer({}, len(self.data.test), self.compared(before, before))
        profile = self.profile()
        self.finetune(nets, profile, "test")
        after = evaluate(self.model, self.data.test, self.task)
        with torch.no_grad():
            β, η = self.hyperparameters(nets, profile)
        sizes = torch.tensor([p.numel() for p in trained(self.model).values()], dtype=torch.float32, device=η.device)
        figures = {"rate": float(η.abs().mean()), "sparsity": float(sizes[η == 0].sum() / sizes.sum())}
        figures |= {"mixing": float(β.mean())} if len(β) else {}
        return Answer({}, len(self.data.test), self.compared(after, before) | figures)

    @phase
    def describe(self, arrays: Arrays) -> Answer:
        """Return the meta-nets' inputs, ξ and the layers' moments, and their outputs, β and η."""
        nets = self.nets(arrays)
        set_arrays(self.model, self._model(arrays))
        profile = self.profile()
        with torch.no_grad():
            β, η = self.hyperparameters(nets, profile)
        found = {"distances": profile.distances, "moments": profile.moments, "mixing": β, "rates": η}
        return Answer({name: values.cpu().numpy() for name, values in found.items()}, len(self.data.train), {})

    # ------------------------------------------------------------------------------------- the method

    def nets(self, arrays: Arrays) -> MetaNets:
        """Return the meta-nets with the received parameters λ."""
        s, spec = self.settings, dataset_of(self.settings)
        rate, hidden = self.hyper.initial_rate, self.hyper.hidden_biases
        nets = _meta_nets(spec.shape, self.task.outputs[0], s, rate, s.seed, hidden).to(self.data.train.y.device)
        λ = of_network(arrays)
        if λ.keys() != exchanged(nets).keys() or len(λ) == len(arrays):
            raise RunError(f"method '{s.method}' needs its own strategy, which sends λ and the model")
        set_arrays(nets, λ)
        return nets

    def profile(self) -> Profile:
        """Return the statistics of the client's data, from one pass through the network in its present state."""
        norms, layers = norms_of(self.model), layers_of(self.model)
        found = measure(self.model, layers | norms, self.data.train.x, EVALUATION_BATCH)
        pretrained = {name: (_copy(norm.running_mean), _copy(norm.running_var)) for name, norm in norms.items()}
        own = {name: found[name] for name in norms}
        distances = [distance(own[name], pretrained[name], norm.eps) for name, norm in norms.items()]
        device = self.data.train.y.device
        # Mean and variance of all entries together, from those of each channel.
        given = [found[name] for name in layers]
        whole = [(mean.mean(), (variance.mean() + mean.var(correction=0)).sqrt()) for mean, variance in given]
        return Profile(
            pretrained,
            own,
            torch.stack(distances) if distances else torch.zeros(0, device=device),
            torch.stack([moment for pair in whole for moment in pair]),
        )

    def hyperparameters(self, nets: MetaNets, profile: Profile) -> tuple[Tensor, Tensor]:
        """Return β (B,) and η, one for every parameter tensor, differentiable in λ where they are learned."""
        if self.hyper.learn == "lr":
            β = torch.full_like(profile.distances, self.hyper.mixing)
        else:
            β = nets.mixing(profile.distances)
        η = nets.rates(profile.moments)
        return β, torch.full_like(η, self.hyper.initial_rate) if self.hyper.learn == "bn" else η

    def finetune(self, nets: MetaNets, profile: Profile, *purpose: str) -> float:
        """Fine-tune the network for ``finetune-epochs`` by plain SGD with rates η; return the mean loss."""
        with torch.no_grad():
            β, η = self.hyperparameters(nets, profile)
            give(self.model, self._mixed(profile, β))
        groups = [
            Group([p], float(rate), decays=False) for p, rate in zip(trained(self.model).values(), η, strict=True)
        ]
        plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "max_grad_norm": 0.0}
        return train(
            self.model,
            self.data.train,
            self.settings.model_copy(update=plain),  # the hypergradient assumes plain SGD; pretraining need not use it
            self.generator(*purpose),
            task=self.task,
            epochs=self.settings.finetune_epochs,
            groups=groups,
            fixed_norms=True,
        ).loss

    def hypergradient(
        self, nets: MetaNets, profile: Profile, last: Mapping[str, Step], train: Examples, validation: Examples
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the validation loss after fine-tuning and its derivatives with respect to λ (algorithm 2).

        The fine-tuned θ depends on η through its last step, θ = θ' − η·g, in which g is treated as a constant. So does
        the training loss at θ (equations 9, 10), and the derivative is ∂_λ L_V − ∂_θ L_V (∂²_θ L_T)⁻¹ ∂_λ∂_θ L_T, with
        the inverse from a Neumann series. FOMAML+ is the derivative of L_V through that step alone.

        Args:
            nets, profile: meta-nets and their inputs, which give β and η.
            last: the last step of fine-tuning by parameter name, with θ and g.
            train, validation: examples for the training loss L_T and the validation loss L_V.
        """
        λ, h = list(nets.parameters()), self.hyper
        θ = {name: step.reached.requires_grad_() for name, step in last.items()}
        with DifferentiableStatistics():
            β, η = self.hyperparameters(nets, profile)
            statistics = self._mixed(profile, β)
            rates = zip(last.items(), η, strict=True)
            stepped = {n: step.reached - (rate - rate.detach()) * step.gradient for (n, step), rate in rates}
            if h.hypergradient == "fomaml+":
                loss = self._loss(stepped, statistics, validation)
                return loss.detach(), _gradients(loss, λ)
            loss = self._loss(θ, statistics, validation)
            *v_and_direct, value = *_gradients(loss, [*θ.values(), *λ]), loss.detach()
            del loss  # frees the graph that its gradient needed
        slopes = []
        for chosen in self._parts(len(train)):
            # Batch norm is first folded into convolutions, which are then differentiated twice.
            with CheapSecondDerivatives(), DifferentiableStatistics():
                loss = self._loss(stepped, statistics, train.rows(chosen)) * (len(chosen) / len(train))
                slopes.append(torch.autograd.grad(loss, [*stepped.values()], create_graph=True))
        v, direct = v_and_direct[: len(θ)], v_and_direct[len(θ) :]
        implicit = implicit_derivative(
            v, slopes, [*θ.values()], λ, steps=h.neumann_steps, rate=h.neumann_rate, scale=h.neumann_scale
        )
        return value, [a + b for a, b in zip(direct, implicit, strict=True)]

    # --------------------------------------------------------------------------------------- details

    def _model(self, arrays: Arrays) -> Arrays:
        model = part(arrays, BESIDE)
        set_arrays(self.model, model)
        return model

    def _parts(self, count: int) -> Sequence[Tensor]:
        """Return for each term of the Neumann series the rows, out of ``count``, on which its Hessian is computed."""
        parts = self.hyper.neumann_steps if self.hyper.neumann_split else 1
        return torch.arange(count).tensor_split(max(1, min(parts, count)))

    def _mixed(self, profile: Profile, β: Tensor) -> dict[str, Moments]:
        return {
            name: mix(profile.pretrained[name], profile.own[name], share)
            for name, share in zip(profile.own, β, strict=True)
        }

    def _loss(self, θ: Parameters, statistics: Mapping[str, Moments], examples: Examples) -> Tensor:
        """Return the mean loss with these parameters and batch-norm statistics, differentiable in both."""
        self.model.eval()
        buffers = {
            f"{name}.{kind}": moment
            for name, moments in statistics.items()
            for kind, moment in zip(("running_mean", "running_var"), moments, strict=True)
        }
        outputs = as_function(self.model, [*θ, *buffers])([*θ.values(), *buffers.values()], examples.x)
        return self.loss(outputs, examples=examples)

    def _step(self, nets: MetaNets, gradients: Sequence[Tensor]) -> None:
        """Take a step on λ with the clipped hypergradient."""
        c = self.hyper.clip
        with torch.no_grad():
            for (name, parameter), gradient in zip(nets.named_parameters(), gradients, strict=True):
                own = self.hyper.multiplier_learning_rate if name == "multipliers" else self.hyper.meta_learning_rate
                parameter.sub_(gradient.clamp(-c, c), alpha=own)


def last_step(model: nn.Module) -> dict[str, Step]:
    """Return the last training step of a network by parameter name, from its present values and gradients."""
    return {
        name: Step(p.detach().clone(), torch.zeros_like(p) if p.grad is None else p.grad.clone())
        for name, p in trained(model).items()
    }


def _gradients(loss: Tensor, where: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a loss with respect to tensors, zeros if it does not depend on one; keep the graph."""
    return list(torch.autograd.grad(loss, list(where), retain_graph=True, allow_unused=True, materialize_grads=True))


def _copy(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "the layer keeps statistics"
    return tensor.clone()


@remembered(2)
def _meta_nets(
    shape: tuple[int, ...], classes: int, model: NetworkSettings, rate: float, seed: int, hidden: bool
) -> MetaNets:
    """Return the pair of meta-nets that all clients of the process share; every client overwrites its contents."""
    return make_meta_nets(shape, classes, model, rate, seed, hidden)


def make_meta_nets(
    shape: tuple[int, ...], classes: int, model: NetworkSettings, rate: float, seed: int, hidden: bool = False
) -> MetaNets:
    """Return meta-nets with the initial λ; for ``hidden`` see :class:`florilegium.models.meta_nets.MetaNets`."""
    network: nn.Module = build_network(model, shape, classes, seed)
    if any(isinstance(module, nn.MultiheadAttention) for module in network.modules()):
        raise ConfigurationError(
            f"model: '{model.model}' has attention layers, whose parts cannot be measured one by one as FedL2P does"
        )
    if uncalled := [name for name, layer in layers_of(network).items() if isinstance(layer, nn.ParameterDict)]:
        raise ConfigurationError(
            f"model: '{model.model}' has parameters outside of layers ('{uncalled[0]}'), as IA³ has, so that they have "
            "no inputs to measure as FedL2P does"
        )
    return build_meta_nets(network, rate, seed, hidden=hidden)
