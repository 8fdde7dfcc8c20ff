"""Recover rows from the steps of a clustering without noise.

A cluster of one row is that row. When one row moves from cluster a to cluster b between two steps, b's sum grows by the
row, and a's shrinks by it: who sees sums and counts reads it off. Who sees the centres alone, as every client does, can
compute it, too: it is n_a·ν_a − (n_a − 1)·ν'_a and also (n_b + 1)·ν'_b − n_b·ν_b, as many equations as the row has
entries, for two unknown counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilegium.apps.runs.personal import reopened
from florilegium.common.errors import RunError
from florilegium.common.files import write_text
from florilegium.common.pages import table_of
from florilegium.models.parameters import Arrays
from florilegium.strategies.clustering.kmeans import KMeans

TOLERANCE = 1e-6
"""Largest relative difference of what counts as equal; sums are in double precision."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """What a step of Lloyd's algorithm releases: ``sums`` (k, d) and ``counts`` (k,) of the clusters."""

    sums: Array
    counts: Array


def from_sums(steps: Sequence[Step]) -> list[Array]:
    """Return the rows, (d,) each, that sums and counts give away: clusters of one row, and single rows that moved."""
    found = [row for step in steps for row in step.sums[np.isclose(step.counts, 1.0, rtol=0, atol=TOLERANCE)]]
    for before, after in pairwise(steps):
        changes, grown = after.sums - before.sums, (after.counts - before.counts).round(6)
        for a, b in zip(*np.where((grown[:, None] == -1) & (grown == 1)), strict=True):
            if _equal(changes[b], -changes[a]):
                found.append(changes[b])
    return found


def from_centers(trajectory: Sequence[Array]) -> list[Array]:
    """Return the rows, (d,) each, that successive centres (k, d) alone give away."""
    return [row for before, after in pairwise(trajectory) for row in _moved(before, after)]


def _moved(before: Array, after: Array) -> Iterator[Array]:
    changed = np.flatnonzero(~np.isclose(before, after, rtol=TOLERANCE, atol=0).all(axis=1))
    for a in changed:
        for b in changed:
            if a == b:
                continue
            left, right = before[a] - after[a], after[b] - before[b]
            counts, *_ = np.linalg.lstsq(np.stack([left, -right], axis=1), after[b] - after[a], rcond=None)
            whole = counts.round()
            row = whole[0] * left + after[a]
            if whole[0] > 1 and whole[1] >= 1 and _equal(row, whole[1] * right + after[b]):
                yield row


def _equal(one: Array, other: Array) -> bool:
    return bool(np.linalg.norm(one - other) <= TOLERANCE * max(float(np.linalg.norm(one)), 1e-12))


@dataclass(frozen=True)
class Trajectory:
    """What the attack finds.

    Attributes:
        steps: number of steps.
        rows: the clients' rows, (n, d).
        found: the recovered rows, (m, d) each, by who could compute them.
    """

    steps: int
    rows: Array
    found: dict[str, Array]

    def right(self, who: str) -> int:
        """Return how many different rows of the clients are among those recovered."""
        hits = set()
        for row in self.found[who]:
            distances = np.linalg.norm(self.rows - row, axis=1)
            nearest = int(distances.argmin())
            if distances[nearest] <= 100 * TOLERANCE * max(float(np.linalg.norm(row)), 1e-12):
                hits.add(nearest)
        return len(hits)

    def table(self) -> str:
        """Return the attack's result as a Markdown table."""
        rows = [[f"{self.steps} steps, {len(self.rows)} rows of all clients", "candidates", "rows recovered"]]
        rows += [[who, f"{len(found)}", f"{self.right(who)}"] for who, found in self.found.items()]
        return table_of(rows[0], rows[1:])


def attack(run: Path) -> Trajectory:
    """Repeat the steps of a finished clustering, which gives the same messages, and recover rows from them.

    Raises:
        RunError: if the run has no steps of Lloyd's algorithm.
    """
    with reopened(run) as again:
        strategy = again.strategy
        if not isinstance(strategy, KMeans) or again.settings.rounds < 2:
            raise RunError("only clusterings with steps of Lloyd's algorithm have a trajectory: set rounds above 1")
        clients, private = strategy.trainable(), strategy.budget is not None
        centers = strategy.initialise(again.round.numbered(1))
        trajectory, whole = [], []
        single: dict[str, list[Step]] = {client: [] for client in clients}
        for number in range(2, again.settings.rounds + 1):
            this, sent = again.round.numbered(number), {"centers": centers}
            whole.append(_step(strategy.ask(this, "lloyd", sent)))
            shapes = strategy.shapes("lloyd", sent)
            for client in () if private else this.sample():
                own = this.ask("lloyd", [client], send=sent, reduce="sum", shapes=shapes)
                single[client].append(_step(own.arrays))
            centers = strategy.divide({"sums": whole[-1].sums, "counts": whole[-1].counts}, "lloyd", centers)
            trajectory.append(centers)
        points = [again.host.data(client).train.x.flatten(1).double().numpy(force=True) for client in clients]
    rows = np.concatenate(points)
    views = {
        "server, sums of each device": [row for steps in single.values() for row in from_sums(steps)],
        "server, sums over the cohort": from_sums(whole),
        "everybody, centres alone": from_centers(trajectory),
    }
    found = {who: _distinct(view, rows.shape[1]) for who, view in views.items()}
    result = Trajectory(len(whole), rows, found)
    write_text(run / "audit-trajectory.md", result.table())
    return result


def _distinct(rows: Sequence[Array], size: int) -> Array:
    """Return ``rows`` without those that are equal up to rounding, (m, size)."""
    kept: list[Array] = []
    for row in rows:
        if not any(_equal(row, other) for other in kept):
            kept.append(row)
    return np.stack(kept) if kept else np.zeros((0, size))


def _step(arrays: Arrays) -> Step:
    return Step(arrays["sums"], arrays["counts"])
