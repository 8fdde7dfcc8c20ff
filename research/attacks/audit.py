"""Audit a run's privacy: guess from its models which canaries took part (Steinke, Nasr, Jagielski 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import nn
from torch.nn.functional import cross_entropy

from florilegium.apps.runs.personal import Reopened, reopened
from florilegium.clients.core.training import features
from florilegium.common.errors import RunError
from florilegium.common.files import write_text
from florilegium.common.pages import table_of
from florilegium.models.parameters import exchanged, set_arrays
from florilegium.partitions.clientdata import Examples, as_seen, to_inputs
from florilegium.partitions.federation import federate
from florilegium.partitions.shares import Federation
from florilegium.partitions.spec import Dataset
from florilegium.strategies.folder.results import read_summary

CONFIDENCE = 0.95
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Canary:
    """The losses of a run's models on its canaries.

    Attributes:
        losses: loss of each canary with its (wrong) class, (c,); for a canary client, the mean over its examples.
        present: whether each canary took part in training, (c,).
    """

    losses: NDArray[np.float64]
    present: NDArray[np.bool_]


@dataclass(frozen=True)
class Audit:
    """Result of a loss-threshold attack, which guesses that canaries with losses below the median took part.

    Attributes:
        guesses: number of canaries guessed, an even number.
        correct: number of right guesses.
        canaries: number of canaries in the run.
        claimed: ε of the run's own privacy account; infinite without one.
        delta: δ of that account.
    """

    guesses: int
    correct: int
    canaries: int
    claimed: float
    delta: float

    @property
    def advantage(self) -> float:
        """Advantage over random guessing, −1 to 1: twice the share of right guesses, minus one."""
        return 2 * self.correct / self.guesses - 1

    @property
    def bound(self) -> float:
        """Lower bound on ε at 95 % confidence."""
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
        return table_of(("", ""), rows)


def chance(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of at least ``correct`` right guesses if the run is (ε, δ)-private.

    A guess is right with probability at most e^ε/(1 + e^ε); δ adds 2δc·max_i P[v > W ≥ v − i]/i, where W is binomial
    (Steinke, Nasr, Jagielski 2023, theorem 5.2).

    Args:
        canaries: c, number of canaries; each took part with probability 1/2.
        guesses: r ≤ c, number of guesses.
        correct: v ≤ r, number of right guesses.
        epsilon, delta: ε ≥ 0, 0 ≤ δ < 1.
    """
    right = 1 / (1 + math.exp(-epsilon))
    beyond = float(binom.sf(correct - 1, guesses, right))
    i = np.arange(1, correct + 1)
    within = binom.cdf(correct - 1, guesses, right) - binom.cdf(correct - 1 - i, guesses, right)
    α = float((within / i).max(initial=0.0))
    return min(1.0, beyond + 2 * delta * canaries * α)


def lower_bound(canaries: int, guesses: int, correct: int, delta: float) -> float:
    """Return the largest ε at which this many right guesses have a probability of at most 5 %; 0 if there is none."""
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
    """Guess that the half of the canaries with the lowest losses took part; compare the guesses with the truth."""
    half = len(found.losses) // 2
    order = np.argsort(found.losses, kind="stable")
    correct = int(found.present[order[:half]].sum() + (~found.present[order[-half:]]).sum())
    return Audit(2 * half, correct, len(found.losses), claimed, delta)


def canaries(run: Path) -> Canary:
    """Compute the losses of a finished run's canaries.

    Canary examples are tested on their client's model, canary clients on the server's model.

    Raises:
        RunError: if the run has fewer than two canaries, has no such model, or its account does not cover the attack.
    """
    with reopened(run) as again:
        _check(again)
        federation, dataset = federate(again.settings)
        c, losses = federation.canaries, np.zeros(len(federation.canaries.rows))
        whole = again.settings.canary_unit == "client"
        units = len(np.unique(c.clients)) if whole else len(c.rows)
        if units < 2:
            raise RunError(f"run '{run.name}' has {units} canaries; set key canaries to a few hundred before a run")
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
    """Raise :class:`RunError` if the run's privacy account does not cover what the audit attacks."""
    s, p = again.settings, again.settings.privacy
    if p.unit == "none":
        return
    if p.unit != s.canary_unit:
        raise RunError(f"the run protects each {p.unit}, but its canaries (key canary-unit) are {s.canary_unit}s")
    if (
        p.unit == "client"
        and p.sampling == "fixed"
        and again.strategy.federation.cohort_size(1) < len(again.strategy.trainable())
    ):
        raise RunError(
            "with cohorts of a fixed size one client's absence changes which others take part; set privacy.sampling to "
            "'poisson'"
        )
    if p.unit == "example" and (s.finetune_epochs or again.strategy.models != "global"):
        raise RunError("its clients' models are made for every test anew, which the run's account does not know of")


def _examples(federation: Federation, dataset: Dataset, client: int, own: NDArray[np.int64]) -> Examples:
    """Return the canaries ``own`` of a client as the client sees them: with wrong classes, rotated if it rotates."""
    rows = federation.canaries.rows[own]
    x = as_seen(federation, dataset.spec, client, np.asarray(dataset.train.x[rows]), rows, test_split=False)
    return Examples(
        to_inputs(dataset.spec, x, dataset.vocabulary), torch.from_numpy(federation.canaries.classes[own].copy())
    )


def _model_of(client: str, again: Reopened) -> nn.Module:
    """Return the model that a client uses after the run."""
    if again.strategy.models == "none":
        raise RunError(f"method '{again.settings.method}' makes no models of clients to look for canaries in")
    again.strategy.measure(again.round, [client], again.checkpoint.arrays)
    if again.settings.standardise == "client":
        raise RunError("canaries are not in a client's own scale; audit a run with standardise = 'federation'")
    return again.host.predictor


def _global_model(again: Reopened) -> nn.Module:
    """Return the server's model; raise :class:`RunError` if it is not a whole network."""
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
    """Attack a finished run, write the result to ``audit.md`` in its folder, and return it."""
    summary = read_summary(run).get("privacy", {})
    epsilon = summary.get("epsilon", summary.get("epsilon_max"))
    result = attack(canaries(run), math.inf if epsilon is None else float(epsilon), float(summary.get("delta", 0.0)))
    write_text(run / "audit.md", result.table())
    return result
