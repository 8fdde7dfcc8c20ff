"""Boosted trees, client side: histograms of derivatives over public bins (``models/statistics/boosting.py``).

Nothing that a client returns is of fewer rows than a cell of a node has, and all of it is summed over clients.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.trees import BoostingHyper
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays, get_arrays, part, set_arrays
from florilegium.models.statistics import exact
from florilegium.models.statistics.boosting import SPLITS, Penalty, Rows, gradients, reached, turns
from florilegium.models.statistics.tree_columns import Column, cuts_of, edges
from florilegium.models.trees import Trees, margins
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.feature_names import features_of
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.sources.tables import TableSchema
from florilegium.partitions.spec import DatasetSpec
from florilegium.tasks.task import FAMILY

Single = NDArray[np.float32]

BLOCK = "trees."
"""Prefix of the network's arrays."""


def penalty_of(hyper: BoostingHyper) -> Penalty:
    """Return what the method's keys say of gains and leaves."""
    return Penalty(hyper.l2, hyper.gamma, hyper.min_child_weight, hyper.eta)


def tree_columns(spec: DatasetSpec) -> list[Column]:
    """Return the columns of a dataset in the order of their features.

    Raises:
        ValueError: if its inputs are texts, whose codes are no numbers.
    """
    features, table = features_of(spec), spec.table or TableSchema()
    own = len(features) - len(table.indicators)
    missing = {name: own + i for i, name in enumerate(table.indicators)}
    found: list[Column] = []
    for place, one in enumerate(features[:own]):
        gone, categories = missing.get(one.column, -1), one.column in table.categories
        if categories and found and found[-1].name == one.column:
            found.append(Column(one.column, (*found.pop().places, place), True, gone))
        else:
            found.append(Column(one.column if categories else one.name, (place,), categories, gone))
    return found


class TreesClient(BaseClient):
    """Adds up its rows' derivatives in each cell of each node; refits leaves for itself."""

    needs = frozenset({FAMILY})
    training = Training("it uses examples for histograms, to which it adds no noise")
    uses_finetuning = "never"
    augments = False
    hyper: BoostingHyper

    @phase
    def moments(self, arrays: Arrays) -> Answer:
        """Return ``moments`` (3, 1 + K + 2d): exact parts of Σ w, Σ w·y, and of numbers how many are known, and Σ x."""
        w, known = self._weights.astype(np.float64)[:, None], self._known
        values = [w, w * self._targets(self.data.train), known, np.where(known, self._numbers, 0)]
        return self._sent({"moments": exact.parts(np.column_stack(values).astype(np.float64))})

    @phase
    def spread(self, arrays: Arrays) -> Answer:
        """Return ``spread`` (d,), Σ |x − center| of known values."""
        away = np.abs(self._numbers - arrays["center"])
        return self._sent({"spread": np.where(self._known, away, 0).sum(axis=0, dtype=np.float64)})

    @phase
    def count(self, arrays: Arrays) -> Answer:
        """Return ``counts`` (d, edges + 1): how many known values are between the edges that center and scale give."""
        found = []
        for j, own in enumerate(edges(arrays["center"], arrays["scale"])):
            known = self._numbers[self._known[:, j], j]
            found.append(np.bincount(np.searchsorted(own, known, side="right"), minlength=len(own) + 1))
        return self._sent({"counts": np.reshape(found, (len(found), -1)).astype(np.float64)})

    @phase
    def grow(self, arrays: Arrays, *, level: int, grown: int) -> Answer:
        """Return ``histogram`` (K, 2^level, cells, 2): Σ g and Σ h of the rows in each cell of a level's nodes.

        All requests have ``cuts`` (columns, bins − 1), filled up with the largest number. The first of a round, with
        level 0, has the network's arrays, in which ``grown`` boosting rounds have grown trees; the others have the
        trees (K, 2^D − 1) that grow.
        """
        if not 0 <= level < self._depth:
            raise RunError(f"trees of depth {self._depth} have no level {level} to split")
        rows = self._rows(arrays["cuts"])
        margin = self._margins(part(arrays, BLOCK), rows, grown) if not level else self._kept_margins(grown)
        g, h = gradients(rows.family, margin, rows.y, rows.weights)
        k, nodes = margin.shape[1], 2**level
        if level:
            column, left = self._turns({name: arrays[name] for name in SPLITS}, rows, nodes - 1)
            found = [reached(rows.codes, column[i], left[i], level) for i in range(k)]
        else:
            found = [np.zeros(len(rows.y), np.int64)] * k
        sums = [rows.histogram(found[i], nodes, g[:, i], h[:, i]) for i in range(k)]
        return Answer({"histogram": np.stack(sums)}, len(rows.y))

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Raise :class:`RunError`, since trees grow in phase ``grow``."""
        raise RunError("method 'trees' grows trees from histograms: it needs its own strategy")

    def personalise(self) -> bool:
        """Move the leaves towards those that fit the client's own rows; leaves that none of these reach stay."""
        if not self.hyper.refit or not self.data.labeled or not len(self.data.train):
            return False
        net = cast(Trees, cast(nn.Sequential, self.model)[0])
        penalty, share = replace(penalty_of(self.hyper), min_child_weight=0.0), np.float32(self.hyper.refit)
        leaf, bias = (get_arrays(self.model)[f"{BLOCK}{name}"] for name in ("leaf", "bias"))
        places = net.leaves(self.data.train.x).numpy(force=True)
        y, k = self._targets(self.data.train), len(bias)
        margin = np.tile(bias, (len(y), 1))
        for first in range(0, len(leaf), k):
            g, h = gradients(self.task.family, margin, y, self._weights)
            for i in range(k):
                own, before = places[:, first + i], leaf[first + i]
                both = [np.bincount(own, part, len(before)) for part in (g[:, i], h[:, i])]
                sums = np.stack(both, axis=1).astype(np.float64)
                change = share * (penalty.leaf(sums) - before)
                leaf[first + i] = np.where(sums[:, 1] > 0, before + change, before)
                margin[:, i] += leaf[first + i][own]
        set_arrays(self.model, {f"{BLOCK}leaf": leaf})
        return True

    # --------------------------------------------------------------------------------------- details

    @cached_property
    def _columns(self) -> list[Column]:
        return tree_columns(dataset_of(self.settings))

    @cached_property
    def _x(self) -> Single:
        x: Single = self.data.train.x.flatten(1).numpy(force=True)
        return x

    @property
    def _of_numbers(self) -> list[Column]:
        return [one for one in self._columns if not one.categories]

    @cached_property
    def _numbers(self) -> Single:
        """The numbers, (n, d)."""
        return self._x[:, [one.places[0] for one in self._of_numbers]]

    @cached_property
    def _known(self) -> NDArray[np.bool_]:
        """Which numbers are there, (n, d)."""
        lacking = [one.lacks(self._x) for one in self._of_numbers]
        return ~np.stack(lacking, axis=1) if lacking else np.ones((len(self._x), 0), bool)

    @cached_property
    def _weights(self) -> Single:
        own = self.data.train.weights
        return np.ones(len(self.data.train), np.float32) if own is None else own.float().numpy(force=True)

    def _targets(self, examples: Examples) -> NDArray[np.float64]:
        """Return the targets (n, K): numbers, whether the class is the second of two, or indicators of all classes."""
        y = examples.y.numpy(force=True)
        if self.task.family == "linear":
            return y.astype(np.float64).reshape(-1, 1)
        k = margins(self.task.num_strata)
        return (y[:, None] == (np.arange(k) if k > 1 else 1)).astype(np.float64)

    def _rows(self, sent: Single) -> Rows:
        """Return the training rows in the cells of these cuts, which the process keeps between requests."""

        def make(_: Rows | None) -> tuple[Rows, int]:
            columns, examples = self._columns, self.data.train
            cuts = cuts_of(sent, columns)
            found = Rows.of(self.task.family, self._x, self._targets(examples), self._weights, columns, cuts)
            return found, found.nbytes

        return self.kept.get(self.client_id, sent.tobytes(), make)

    def _margins(self, ensemble: Arrays, rows: Rows, grown: int) -> Single:
        """Return the margins after ``grown`` boosting rounds, (n, K); keep them for the next exchanges."""
        k, kept = len(ensemble["bias"]), self.state.load("margins")
        if not 0 <= grown * k <= len(ensemble["leaf"]):
            raise RunError(f"the ensemble has {len(ensemble['leaf'])} trees, fewer than {grown} rounds have grown")
        if kept is None or kept["grown"] > grown or kept["margin"].shape != (len(rows.y), k):
            kept = {"grown": np.zeros((), np.int64), "margin": np.tile(ensemble["bias"], (len(rows.y), 1))}
        margin = kept["margin"].copy()
        for first in range(int(kept["grown"]) * k, grown * k, k):
            column, left = self._turns({name: ensemble[name][first : first + k] for name in SPLITS}, rows)
            for i in range(k):
                margin[:, i] += ensemble["leaf"][first + i][reached(rows.codes, column[i], left[i], self._depth)]
        self.state.save({"grown": np.array(grown), "margin": margin}, "margins")
        return margin

    def _kept_margins(self, grown: int) -> Single:
        """Return the margins that this round's first request has left."""
        kept = self.state.load("margins")
        if kept is None or kept["grown"] != grown:
            raise RunError(f"it has no margins of {grown} boosting rounds: it missed the first request of this round")
        return kept["margin"]

    def _turns(
        self, trees: Arrays, rows: Rows, first: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return :func:`turns` of the ``first`` nodes of trees; None: of all."""
        nodes = 2**self._depth - 1
        if any(trees[name].ndim != 2 or trees[name].shape[1] != nodes for name in SPLITS):
            raise RunError(f"trees of depth {self._depth} have {nodes} nodes")
        try:
            return turns({name: trees[name][:, :first] for name in SPLITS}, rows.columns, rows.cuts)
        except ValueError as error:
            raise RunError(str(error)) from error

    @property
    def _depth(self) -> int:
        return self.settings.trees.depth

    def _sent(self, arrays: Arrays) -> Answer:
        return Answer(arrays, len(self.data.train))
