"""PPFE, client side (Emrani et al., Algorithm 1 and appendix A): an ensemble of increasingly personal models.

Phase ``train`` receives the shared blocks ψ of the present stage t, trains them together with the client's own blocks
φ_k^(t) under its example weights ω_k^(t), and returns them. Phase ``finish`` receives the final ψ^(t); with φ_k^(t)
they are member t of the ensemble, for which the client computes β_k^(t) and its next weights. The client's own blocks,
weights and coefficients are kept in its state; shared blocks of finished stages are stored once per node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilegium.clients.core.base import SUM_MULTIPLIER, Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import NUMBER, POSITIVE, Reports
from florilegium.clients.core.training import GradientHook, Group, evaluate, features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.ppfe import PPFEHyper
from florilegium.clients.ppfe_plan import Plan, plan
from florilegium.common.errors import DataError, RunError
from florilegium.common.settings import parse_counts
from florilegium.models.blocks import of_blocks
from florilegium.models.ensemble import Ensemble, combine
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.models.reduction import fitting
from florilegium.partitions.loading import dataset_of
from florilegium.tasks.task import CLASSES, Task

if TYPE_CHECKING:
    from florilegium.privacy.dp_sgd import Planned

Vector = NDArray[np.float64]


def coefficient(
    losses: Vector, weights: Vector, max_loss: float, min_error: float, release: Callable[[float], float] = float
) -> float:
    """Return β = ½ ln((1 − ε)/ε) ≥ 0 with ε = Σωℓ / (ℓ_max Σω) (Algorithm 1, line 2).

    Args:
        losses: ℓ of the stage's model on each example, (n,), 0..max_loss.
        weights: ω, (n,), ≥ 0.
        max_loss: ℓ_max.
        min_error: ε is kept within [min_error, 1 − min_error], so that β is finite.
        release: function applied to the sum Σωℓ/ℓ_max before it is used, such as one that adds noise.
    """
    ε = release(float((weights * losses).sum() / max_loss)) / float(weights.sum())
    ε = min(max(ε, min_error), 1 - min_error)
    return max(0.0, 0.5 * float(np.log((1 - ε) / ε)))


def reweight(losses: Vector, weights: Vector, β: float) -> Vector:
    """Return ω ← ω·exp(βℓ), normalised to Σω = n (Algorithm 1, lines 3 to 5)."""
    heavier: Vector = weights * np.exp(β * (losses - losses.max(initial=0.0)))  # the shift cancels, and avoids overflow
    return heavier * (len(weights) / heavier.sum())


class PPFEClient(BaseClient):
    """Trains the model of the present stage; predicts with the models of all finished stages."""

    needs = frozenset({CLASSES})

    uses_finetuning = "never"
    hyper: PPFEHyper
    endings = (r"_(stage|ensemble)\d+",)
    reports: ClassVar[Reports] = {"beta": NUMBER, "largest_weight": POSITIVE}
    model: nn.Sequential

    @staticmethod
    def training(hyper: PPFEHyper) -> Training:
        """Return that examples enter by gradients alone only without reweighting, as weights mix examples."""
        mixed = "example weights are made of all examples together; set ppfe.reweighting to false"
        return Training(mixed if hyper.reweighting else "gradients", stacked=True)

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received shared blocks and the client's own ones on the weighted loss (equation 2)."""
        stage = self._plan.stage(self.round)
        contents = self._head(stage) | arrays
        model = self._network(contents)
        shared = [p for name, p in model.named_parameters() if name in arrays]
        personal = [p for name, p in model.named_parameters() if name not in arrays]
        rate = self.settings.learning_rate
        shared_rate = self.hyper.shared_learning_rate if stage >= self.hyper.later_stage else rate
        groups = [Group(shared, shared_rate), Group(personal, rate)]
        ω = torch.from_numpy(self._boosting()["weights"]).float().to(self.data.train.y.device)
        loss = self.descend(
            model=model,
            groups=[group for group in groups if group.parameters],
            weights=ω if stage > 1 else None,  # in stage 1 all weights are 1
            gradient_hook=self._keep_masked(contents, stage),
        )
        trained = get_arrays(model)
        self.state.save({name: array for name, array in trained.items() if name not in arrays}, f"head{stage}")
        return Answer({name: trained[name] for name in arrays}, len(self.data.train), {"loss": loss})

    @phase
    def finish(self, arrays: Arrays) -> Answer:
        """Add the stage's final model to the ensemble; return only the metrics ``beta`` and ``largest_weight`` of ω."""
        stage = self._plan.stage(self.round)
        if self.state.load(f"head{stage}") is None:  # a client that was never in the stage's cohorts
            self.state.save(self._head(stage), f"head{stage}")
        self.state.share(arrays, f"shared{stage}")
        kept = self._boosting()
        ω = kept["weights"]
        member = self._member(stage)
        own = features(member, self.data.train)
        if self.settings.privacy.unit == "example":  # one that overflows must not make the client fail
            own = own.nan_to_num(0.0, 0.0, 0.0)
        losses = self._losses(own, self.data.train.y)
        measured = losses, ω
        if self.hyper.coefficients == "held-out":
            held = self.data.validation
            if not len(held):
                raise RunError("it holds out no example to compute β with; raise validation-fraction")
            measured = self._losses(features(member, held), held.y), np.ones(len(held))
        β = coefficient(*measured, self.hyper.max_loss, self.hyper.min_error, self.released)
        stages, betas = np.append(kept["stages"], stage), np.append(kept["betas"], β)
        outputs = np.concatenate([kept["outputs"], own.cpu().numpy()[None]])
        if self.hyper.reweighting:
            if self.hyper.reweight_by == "ensemble":
                members = [torch.from_numpy(logits).to(own.device) for logits in outputs]
                losses = self._losses(combine(members, betas.tolist(), self.hyper.combination), self.data.train.y)
            ω = reweight(losses, ω, β)
        self.state.save({"stages": stages, "betas": betas, "weights": ω, "outputs": outputs}, "boosting")
        return Answer({}, len(self.data.train), {"beta": β, "largest_weight": float(ω.max())})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the ensemble of all finished stages, and its members.

        Metrics: loss and figures of the ensemble (of the present model, while no stage is finished); the main figure
        with the ending ``_stage<t>`` of member t alone, or of the unfinished model of the present stage t, and with
        ``_ensemble<t>`` of the ensemble of the members up to t.
        """
        present = self._plan.stage(self.round)
        finished, combination = self._betas(), self.hyper.combination
        members = {stage: self._member(stage) for stage in finished}
        outputs = [features(member, self.data.test) for member in members.values()]
        metrics: dict[str, float] = {}
        task, main, y = self.task, self.task.main, self.data.test.y
        for count, stage in enumerate(finished, start=1):
            metrics[f"{main}_stage{stage}"] = task.measure(outputs[count - 1], y)[main]
            metrics |= task.measure(combine(outputs[:count], list(finished.values())[:count], combination), y)
            metrics[f"{main}_ensemble{stage}"] = metrics[main]
        if finished:
            self.predictor = Ensemble(list(members.values()), list(finished.values()), combination)
        if present not in finished:
            model = self._network(self._head(present) | arrays)
            found = evaluate(model, self.data.test, task)
            metrics[f"{main}_stage{present}"] = found[main]
            if not finished:
                self.predictor = model
                metrics |= found
        return Answer({}, len(self.data.test), metrics)

    @classmethod
    def reportable(cls, hyper: PPFEHyper, task: Task) -> list[str]:
        """Return the names of all numbers that a client may report: also those of each stage."""
        stages = range(1, len(parse_counts(hyper.personal_blocks)) + 1)
        names = [f"{task.main}_{of}{stage}" for of in ("stage", "ensemble") for stage in stages]
        return [*super().reportable(hyper, task), *names]

    @classmethod
    def own_start(cls, hyper: PPFEHyper) -> str:
        """Return what starts from the seed even with ``init``: personal blocks of stage 1, if there are any."""
        return "the personal blocks of stage 1" if parse_counts(hyper.personal_blocks)[0] else ""

    def planned(self, trainings: float, tests: float) -> tuple[Planned, Planned]:
        """Return the client's planned releases: those of training, and one sum for each stage's coefficient."""
        planned, fixed = super().planned(trainings, tests)
        return planned, (*fixed, (SUM_MULTIPLIER, 1.0, self._plan.stages))

    # --------------------------------------------------------------------------------------- details

    @property
    def _plan(self) -> Plan:
        spec = dataset_of(self.settings)
        s = self.settings
        return plan(self.hyper, s, spec.shape, spec.classes, s.seed, codes=spec.codes)

    def _network(self, arrays: Arrays) -> nn.Sequential:
        """Return a new network with these arrays, whose dense layers have the same (reduced) form as the arrays."""
        network = fitting(self.model, arrays)
        set_arrays(network, arrays)
        return network

    def _head(self, stage: int) -> Arrays:
        """Return the client's own blocks in a stage; before it has any, their initial values from earlier stages."""
        own = self.state.load(f"head{stage}")
        if own is not None:
            return own
        personal, finished = self._plan.personal(stage), list(self._betas())
        source = of_blocks(self._arrays(finished[-1]) if finished else self.initial, personal)
        if 1 in finished and self.hyper.warm_start == "first":
            reduced = personal & self._plan.reduced(stage)
            source = of_blocks(source, personal - reduced) | of_blocks(self._arrays(1), reduced)
        return self._plan.convert(source, stage)

    def _arrays(self, stage: int) -> Arrays:
        """Return the arrays of a finished stage's model."""
        own, shared = self.state.load(f"head{stage}"), self.state.load_shared(f"shared{stage}")
        if own is None or shared is None:
            lost = "its own" if own is None else "the shared"
            raise DataError(f"{lost} part of stage {stage}'s model is gone from {self.state.own.shared.parent}")
        return own | shared

    def _member(self, stage: int) -> nn.Sequential:
        return self._network(self._arrays(stage))

    def _betas(self) -> dict[int, float]:
        """Return β_k^(t) of the stages this client has finished; a client may have missed one."""
        kept = self._boosting()
        return {int(stage): float(β) for stage, β in zip(kept["stages"], kept["betas"], strict=True)}

    def _boosting(self) -> Arrays:
        """Return the client's boosting state, from the T' stages it has finished.

        ``stages`` (T',), ``betas`` (T',), ``weights`` ω_k (n_k,), and ``outputs``, the members' logits on the training
        examples (T', n_k, C), which save evaluating finished members again for the next weights.
        """
        n, classes = len(self.data.train), dataset_of(self.settings).classes
        kept = self.state.load("boosting") or {
            "stages": np.empty(0), "betas": np.empty(0), "weights": np.ones(n),
            "outputs": np.empty((0, n, classes), np.float32),
        }  # fmt: skip
        if (known := len(kept["weights"])) != n:
            raise DataError(
                f"this client had {known} training examples when stage {int(kept['stages'][-1])} ended, for which it "
                f"has weights, and has {n} now; its data must stay as they are during a run"
            )
        return kept

    def _losses(self, logits: Tensor, y: Tensor) -> Vector:
        """Return ℓ of each example, (n,), 0..ℓ_max, for outputs (n, C) and classes (n,)."""
        if self.hyper.loss == "zero-one":
            losses = (logits.argmax(dim=1) != y).double()
        else:
            losses = self.task.losses(logits, y).double().clamp(max=self.hyper.max_loss)
        result: Vector = losses.cpu().numpy()
        return result

    def _keep_masked(self, arrays: Arrays, stage: int) -> GradientHook | None:
        """Return a hook that zeroes the gradients of masked weights, so that these stay 0; None without masks."""
        device = self.data.train.y.device
        masks = {name: torch.from_numpy(m).to(device) for name, m in self._plan.masks(arrays, stage).items()}
        if not masks:
            return None

        def hook(model: nn.Module, rows: Tensor) -> None:
            for name, parameter in model.named_parameters():
                if name in masks and parameter.grad is not None:
                    parameter.grad.mul_(masks[name])

        return hook
