"""Audit of a run's privacy: does what it has made tell which canaries took part? (Steinke, Nasr, Jagielski 2023)"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import nn
from torch.nn.functional import cross_entropy

from florilegium.apps.personal import Reopened, reopened
from florilegium.clients.core.training import features
from florilegium.common.errors import RunError
from florilegium.common.files import write_text
from florilegium.models.parameters import exchanged, set_arrays
from florilegium.partitions.clientdata import Examples, to_inputs
from florilegium.partitions.federation import federate
from florilegium.partitions.partitioners.rotation import rotate_images
from florilegium.partitions.shares import Federation
from florilegium.partitions.spec import Dataset

CONFIDENCE = 0.95
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Canary:
    """What a run's models say of its canaries.

    Attributes:
        losses: of each canary, with its wrong class, (c,): of a client that is one, the mean.
        present: whether it took part, (c,).
    """

    losses: NDArray[np.float64]
    present: NDArray[np.bool_]


@dataclass(frozen=True)
class Audit:
    """What a loss-threshold attack learns: those with losses below the median are guessed to have taken part.

    Attributes:
        guesses: how many canaries it guessed, an even number.
        correct: how many guesses are right.
        canaries: how many there are.
        claimed: ε of the run's own account; infinite without one.
        delta: δ.
    """

    guesses: int
    correct: int
    canaries: int
    claimed: float
    delta: float

    @property
    def advantage(self) -> float:
        """How much better than tossing a coin, −1..1: twice the share of right guesses, less one."""
        return 2 * self.correct / self.guesses - 1

    @property
    def bound(self) -> float:
        """What ε is at least, at 95 % confidence."""
        return lower_bound(self.canaries, self.guesses, self.correct, self.delta)

    def table(self) -> str:
        """Return the audit as a Markdown table."""
        claimed = f"{self.claimed:.3g}" if math.isfinite(self.claimed) else "none"
        rows = [
            ("canaries, guesses, right ones", f"{self.canaries}, {self.guesses}, {self.correct}"),
            ("advantage of the attack", f"{self.advantage:.3f}"),
            (f"ε is at least, at {CONFIDENCE:.0%} confidence", f"{self.bound:.3g}"),
            (f"ε by the run's account, δ = {self.delta:g}", claimed),
        ]
        return "\n".join(["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]) + "\n"


def chance(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of as many right guesses, were the run (ε, δ)-private.

    A guess is right with probability e^ε/(1 + e^ε) at most; δ adds 2δc·max_i P[v > W ≥ v − i]/i, W being binomial
    (Steinke, Nasr, Jagielski 2023, theorem 5.2).

    Args:
        canaries: c, each of which took part by the toss of a fair coin.
        guesses: r ≤ c.
        correct: v ≤ r.
        epsilon, delta: ε ≥ 0, 0 ≤ δ < 1.
    """
    right = 1 / (1 + math.exp(-epsilon))
    beyond = float(binom.sf(correct - 1, guesses, right))
    i = np.arange(1, correct + 1)
    within = binom.cdf(correct - 1, guesses, right) - binom.cdf(correct - 1 - i, guesses, right)
    α = float((within / i).max(initial=0.0))
    return min(1.0, beyond + 2 * delta * canaries * α)


def lower_bound(canaries: int, guesses: int, correct: int, delta: float) -> float:
    """Return the largest ε at which so many right guesses have a chance of 5 % at most; 0 where there is none."""
    low, high = 0.0, 1.0
    if chance(canaries, guesses, correct, low, delta) > 1 - CONFIDENCE:
        return 0.0
    while chance(canaries, guesses, correct, high, delta) <= 1 - CONFIDENCE:
        low, high = high, 2 * high
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        likely = chance(canaries, guesses, correct, middle, delta) > 1 - CONFIDENCE
        low, high = (low, middle) if likely else (middle, high)
    return low


def attack(found: Canary, claimed: float, delta: float) -> Audit:
    """Guess that the half with the lowest losses took part, and the other half did not."""
    half = len(found.losses) // 2
    order = np.argsort(found.losses, kind="stable")
    correct = int(found.present[order[:half]].sum() + (~found.present[order[-half:]]).sum())
    return Audit(2 * half, correct, len(found.losses), claimed, delta)


def canaries(run: Path) -> Canary:
    """Return the losses of a finished run's canaries.

    Of examples, those of the model that their client uses; of clients, those of the model that the server has.

    Raises:
        RunError: if the run has fewer than two canaries, or no model to look for them in.
    """
    with reopened(run) as again:
        _check(again)
        federation, dataset = federate(again.settings)
        c, losses = federation.canaries, np.zeros(len(federation.canaries.rows))
        whole = again.settings.canary_unit == "client"
        units = len(np.unique(c.clients)) if whole else len(c.rows)
        if units < 2:
            raise RunError(f"run '{run.name}' has {units} canaries; set key canaries to some hundred before a run")
        model = _global_model(again) if whole else None
        for client in np.unique(c.clients):
            own = np.flatnonzero(c.clients == client)
            used = _model_of(str(client), again) if model is None else model
            losses[own] = _losses(used, _examples(federation, dataset, int(client), own))
        if not whole:
            return Canary(losses, c.present)
        clients, which = np.unique(c.clients, return_inverse=True)
        means = np.bincount(which, losses) / np.bincount(which)
        return Canary(means, np.array([bool(c.present[c.clients == client][0]) for client in clients]))


def _check(again: Reopened) -> None:
    """Refuse runs whose account does not speak of what would be attacked."""
    s, p = again.settings, again.settings.privacy
    if p.unit == "none":
        return
    if p.unit != s.canary_unit:
        raise RunError(f"the run protects each {p.unit}, but its canaries (key canary-unit) are {s.canary_unit}s")
    if p.unit == "client" and p.sampling == "fixed" and again.strategy.cohort_size(1) < len(again.strategy.trainable()):
        raise RunError(
            "with cohorts of a fixed size it matters to others who is absent; set privacy.sampling to 'poisson'"
        )
    if p.unit == "example" and (s.finetune_epochs or not again.strategy.broadcasts_model):
        raise RunError("its clients' models are made for every test anew, which the run's account does not know of")


def _examples(federation: Federation, dataset: Dataset, client: int, own: NDArray[np.int64]) -> Examples:
    """Return canaries as the client sees them."""
    x = np.asarray(dataset.train.x[federation.canaries.rows[own]])
    if federation.angles[client]:
        x = rotate_images(x, float(federation.angles[client]))
    return Examples(
        to_inputs(dataset.spec, x, dataset.vocabulary), torch.from_numpy(federation.canaries.classes[own].copy())
    )


def _model_of(client: str, again: Reopened) -> nn.Module:
    """Return the model that a client uses after the run."""
    if not again.strategy.makes_models:
        raise RunError(f"method '{again.settings.method}' makes no models of clients to look for canaries in")
    again.strategy.measure(again.round, [client], again.checkpoint.arrays)
    return again.host.predictor


def _global_model(again: Reopened) -> nn.Module:
    """Return the model that the server has."""
    model = again.host.predictor
    if again.checkpoint.arrays.keys() != exchanged(model).keys():
        raise RunError(
            f"the server of method '{again.settings.method}' has no whole model, so that clients' presence cannot be "
            "looked for in it"
        )
    set_arrays(model, again.checkpoint.arrays)
    return model


def _losses(model: nn.Module, examples: Examples) -> NDArray[np.float64]:
    device = next((p.device for p in model.parameters()), examples.x.device)
    outputs = features(model, Examples(examples.x.to(device), examples.y))
    result: NDArray[np.float64] = cross_entropy(outputs.cpu(), examples.y.long(), reduction="none").double().numpy()
    return result


def audit(run: Path) -> Audit:
    """Attack a finished run, and write what came out to ``audit.md`` in its folder."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8")).get("privacy", {})
    epsilon = summary.get("epsilon", summary.get("epsilon_max"))
    result = attack(canaries(run), math.inf if epsilon is None else float(epsilon), float(summary.get("delta", 0.0)))
    write_text(run / "audit.md", result.table())
    return result
