"""Infer from clients' models whether an example was used to train them: training rows against test rows.

No shadow models are trained. *Loss*: an example with a small loss on its client's model is guessed to be a member
(Yeom, Giacomelli, Fredrikson, Jha 2018). *Calibrated*: offline LiRA with one variance for all examples (Carlini, Chien,
Nasr, Song, Terzis, Tramèr 2022), where the models "without the example" are those of other clients: the example's
confidence ln p/(1 − p) on its client's model, minus the mean of its confidences on theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import nn

from florilegium.apps.runs.personal import model_of, reopened
from florilegium.clients.core.training import features
from florilegium.common.errors import RunError
from florilegium.common.files import write_text
from florilegium.common.pages import table_of
from florilegium.common.seeds import numpy_generator
from florilegium.models.scaled import Scaled
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import task_of

OUTSIDE = 16
"""Number of other clients whose models calibrate a client's scores."""
FALSE = 0.01
"""False-positive rate at which true-positive rates are reported."""
RESAMPLES = 200

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """The scores of one client's examples; members should have higher ones.

    Attributes:
        client: its id.
        member: whether each example is a training row, (n,).
        loss: minus the loss on the client's model, (n,).
        calibrated: confidence on the client's model minus the mean confidence on others', (n,).
    """

    client: str
    member: NDArray[np.bool_]
    loss: Array
    calibrated: Array


KINDS = ("loss", "calibrated")
Measure = Callable[[NDArray[np.bool_], Array], float]


def auc(member: NDArray[np.bool_], score: Array) -> float:
    """Return the probability that a member has a higher score than another row, plus half that of a tie."""
    ranks, count = rankdata(score), int(member.sum())
    return float((ranks[member].mean() - (count + 1) / 2) / (len(member) - count))


def hits(member: NDArray[np.bool_], score: Array) -> float:
    """Return the largest true-positive rate of a threshold whose false-positive rate is at most 1 %."""
    others = np.sort(score[~member])[::-1]
    return float((score[member] > others[int(FALSE * len(others))]).mean())


@dataclass(frozen=True)
class Membership:
    """What the attack finds.

    Attributes:
        clients: the scores of each client.
        seed: of the bootstrap.
    """

    clients: Sequence[Scores]
    seed: int

    def table(self) -> str:
        """Return AUC and true positives of both scores: mean over clients and pooled, ± the bootstrap's error."""
        rows = sum(len(one.member) for one in self.clients)
        head = [f"{len(self.clients)} clients, {rows} rows", "loss", "calibrated"]
        lines = [head]
        for name, measure in (("AUC", auc), (f"true positives at {FALSE:.0%} false", hits)):
            each = [[measure(one.member, getattr(one, kind)) for one in self.clients] for kind in KINDS]
            means = [_shown(float(np.mean(values)), self._error_of_mean(values)) for values in each]
            lines.append([f"{name}, mean of clients", *means])
            lines.append([f"{name}, pooled", *(_shown(*self._pooled(measure, kind)) for kind in KINDS)])
        return table_of(lines[0], lines[1:])

    def csv(self) -> str:
        """Return a line for each client: number of members and others, AUC and TPR of both scores."""
        lines = ["client,members,others,auc_loss,auc_calibrated,tpr_loss,tpr_calibrated"]
        for one in self.clients:
            counts = int(one.member.sum()), int((~one.member).sum())
            figures = [measure(one.member, getattr(one, kind)) for measure in (auc, hits) for kind in KINDS]
            lines.append(",".join([one.client, *map(str, counts), *(f"{value:.6g}" for value in figures)]))
        return "\n".join(lines) + "\n"

    def _resamples(self) -> Sequence[NDArray[np.int64]]:
        rng = numpy_generator(self.seed, "membership", "bootstrap")
        return [rng.integers(len(self.clients), size=len(self.clients)) for _ in range(RESAMPLES)]

    def _error_of_mean(self, values: Sequence[float]) -> float:
        return float(np.std([np.take(values, drawn).mean() for drawn in self._resamples()]))

    def _pooled(self, measure: Measure, kind: str) -> tuple[float, float]:
        """Return the measure over all clients' rows together, and its standard error over resampled clients."""

        def of(chosen: Sequence[Scores]) -> float:
            return measure(
                np.concatenate([one.member for one in chosen]), np.concatenate([getattr(one, kind) for one in chosen])
            )

        return of(self.clients), float(np.std([of([self.clients[i] for i in drawn]) for drawn in self._resamples()]))


def _shown(value: float, error: float) -> str:
    return f"{value:.3f} ± {error:.3f}"


def confidences(model: nn.Module, examples: Examples) -> tuple[Array, Array]:
    """Return ln p and ln p/(1 − p) of the examples' classes by a model, (n,) each."""
    logs = features(model, examples).double().log_softmax(dim=1).cpu()
    y = examples.y.long().cpu()[:, None]
    own = logs.gather(1, y)
    others = logs.scatter(1, y, -torch.inf).logsumexp(dim=1, keepdim=True)
    return own.squeeze(1).numpy(), (own - others).squeeze(1).numpy()


def attack(run: Path) -> Membership:
    """Attack the models that the seen clients of a finished run use; write ``audit-membership.csv`` to its folder.

    Raises:
        RunError: if fewer than two seen clients have rows of both kinds, or nothing is classified.
    """
    with reopened(run) as again:
        if task_of(again.settings).num_strata < 2:
            raise RunError("membership is inferred from the confidence in classes; this run predicts a number")
        rows: dict[str, tuple[Examples, NDArray[np.bool_]]] = {}
        for client in again.strategy.clients.ids("seen"):
            data = again.host.data(client)
            if len(data.train) and len(data.test):
                both = Examples(torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y]))
                rows[client] = both, np.arange(len(both)) < len(data.train)
        if len(rows) < 2:
            raise RunError(f"{len(rows)} seen clients have training and test rows; at least 2 are needed")
        names = [*rows]
        own: dict[str, tuple[Array, Array]] = {}
        others: dict[str, list[Array]] = {client: [] for client in names}
        for place, client in enumerate(names):
            model = model_of(again, client)
            model = model.network if isinstance(model, Scaled) else model  # the host's examples are scaled already
            own[client] = confidences(model, rows[client][0])
            for step in range(1, min(OUTSIDE, len(names) - 1) + 1):
                other = names[place - step]
                others[other].append(confidences(model, rows[other][0])[1])
    found = [
        Scores(client, rows[client][1], own[client][0], own[client][1] - np.mean(others[client], axis=0))
        for client in names
    ]
    result = Membership(found, again.settings.seed)
    write_text(run / "audit-membership.csv", result.csv())
    write_text(run / "audit-membership.md", result.table())
    return result
