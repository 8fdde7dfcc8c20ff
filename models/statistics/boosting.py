"""Gradient-boosted trees from sums over rows, as XGBoost's ``hist`` has them: gradients, histograms, splits, leaves.

The order of candidates, ties and roundings are XGBoost's, so that equal sums give equal trees: gains and leaves are
single-precision numbers of double-precision sums (Chen, Guestrin 2016, *XGBoost: A Scalable Tree Boosting System*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilegium.models.parameters import Arrays
from florilegium.models.statistics.tree_columns import Column
from florilegium.models.trees import MOST

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Codes = NDArray[np.uint16]

LEAST_GAIN = np.float32(1e-6)
"""XGBoost makes no split whose gain is not above this, whatever γ."""
_LEAST_HESSIAN = np.float32(1e-16)
SPLITS = ("feature", "threshold", "lacking", "missing")
"""The arrays of a tree's nodes (:class:`florilegium.models.trees.Trees`)."""


def gradients(family: str, margin: Single, y: Array, weights: Single) -> tuple[Single, Single]:
    """Return first and second derivatives of the rows' losses, (n, K) each.

    Args:
        family: "linear" (half of the squared error), "logistic" or "multinomial" (XGBoost's bound of the Hessian: its
            diagonal times 2).
        margin: (n, K).
        y: targets, (n, K): numbers, or indicators of the classes.
        weights: (n,).
    """
    target, w = y.astype(np.float32), weights[:, None]
    if family == "linear":
        return (margin - target) * w, np.broadcast_to(w, margin.shape).astype(np.float32)
    if family == "logistic":
        p = np.float32(1) / (np.exp(np.minimum(-margin, np.float32(88.7))) + np.float32(1))
        return (p - target) * w, np.maximum(p * (np.float32(1) - p), _LEAST_HESSIAN) * w
    p = np.exp(margin - margin.max(axis=1, keepdims=True))
    p = p / p.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    return (p - target) * w, np.maximum(np.float32(2) * p * (np.float32(1) - p), _LEAST_HESSIAN) * w


def start(family: str, mean: Array) -> Single:
    """Return the margins without trees, (K,), for mean targets (K,): the best constant ones."""
    if family == "linear":
        return mean.astype(np.float32)
    share = np.clip(mean, 1e-6, 1 - 1e-6)
    return (np.log(share / (1 - share)) if family == "logistic" else np.log(share)).astype(np.float32)


@dataclass(frozen=True)
class Rows:
    """Rows that are ready for sums.

    Attributes:
        family: what their losses are (:func:`gradients`).
        columns, cuts: the columns, and the cuts of each.
        codes: the cell of each column that a row is in, (columns, n).
        cells: number of cells of each column.
        y: targets, (n, K).
        weights: (n,).
    """

    family: str
    columns: Sequence[Column]
    cuts: Sequence[Single]
    codes: Codes
    cells: Sequence[int]
    y: Array
    weights: Single

    @staticmethod
    def of(
        family: str, x: Single, y: Array, weights: Single, columns: Sequence[Column], cuts: Sequence[Single]
    ) -> Rows:
        """Return rows with inputs x (n, d), in the cells that columns and their cuts give."""
        both = [*zip(columns, cuts, strict=True)]
        codes = np.reshape([column.codes(x, own) for column, own in both], (len(columns), len(x)))
        return Rows(family, columns, cuts, codes, [column.cells(own) for column, own in both], y, weights)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.codes.nbytes + self.y.nbytes + self.weights.nbytes

    def histogram(self, nodes: NDArray[np.int64], count: int, g: Single, h: Single) -> Array:
        """Return the sums of g and h of the rows in each cell of each node, (count, Σ cells, 2).

        Args:
            nodes: the node of each row, (n,), below ``count``.
            count: number of nodes.
            g, h: derivatives, (n,).
        """
        found, first = np.empty((count, sum(self.cells), 2)), 0
        both = [part.astype(np.float64) for part in (g, h)]  # once, not for each column
        for codes, size in zip(self.codes, self.cells, strict=True):
            where = nodes * size + codes if count > 1 else codes
            for place, values in enumerate(both):
                sums = np.bincount(where, weights=values, minlength=count * size)
                found[:, first : first + size, place] = sums.reshape(count, size)
            first += size
        return found


# ---------------------------------------------------------------------------------------------- splits


@dataclass(frozen=True)
class Penalty:
    """What XGBoost calls λ, γ, min_child_weight and η."""

    l2: float
    gamma: float
    min_child_weight: float
    eta: float

    def gain(self, sums: Array) -> Single:
        """Return G²/(H + λ) of sums (…, 2) in single precision; 0 without rows."""
        G, H = sums[..., 0], sums[..., 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(H > 0, G * G / (H + self.l2), 0.0).astype(np.float32)

    def leaf(self, sums: Array) -> Single:
        """Return the value −ηG/(H + λ) of leaves with sums (…, 2) in single precision."""
        G, H = sums[..., 0], sums[..., 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.where((H > 0) & (self.min_child_weight <= H), -G / (H + self.l2), 0.0).astype(np.float32)
        found: Single = np.float32(self.eta) * weight
        return found


_ROW = ("feature", "threshold", "missing", "low", "high", "joined", "left", "lacking", "gone", "column")


@dataclass(frozen=True)
class Candidates:
    """All splits of a node, in the order in which XGBoost tries them.

    Of equal gains the first is taken, so that without missing values none sends them to the left.

    One side of a split has the cells ``low`` to ``high`` − 1 and, if ``joined``, those of missing values.

    Attributes:
        feature, threshold, lacking, missing: what a node with the split has, (candidates,) each.
        low, high: a range of all cells, (candidates,).
        joined: whether cell ``gone`` is on the same side.
        left: whether this side is the left one.
        gone: the cell of the column's missing values.
        column: which column it is of.
    """

    feature: NDArray[np.int64]
    threshold: Single
    lacking: NDArray[np.int64]
    missing: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    joined: NDArray[np.bool_]
    left: NDArray[np.bool_]
    gone: NDArray[np.int64]
    column: NDArray[np.int64]

    @staticmethod
    def of(columns: Sequence[Column], cuts: Sequence[Single]) -> Candidates:
        """Return the splits of columns with these cuts each, those of categories having none."""
        rows: list[tuple[float, ...]] = []  # as in _ROW
        first = 0
        for number, (column, own) in enumerate(zip(columns, cuts, strict=True)):
            gone = first + column.cells(own) - 1
            present = (column.places[0], MOST, 0, first, gone, 0, 1)  # against missing values
            if column.categories:
                here = [*zip(column.places, range(first, gone), strict=False)]
                each = [((p, 0.5, 0, i, i + 1, 1, 0), (p, 0.5, 1, i, i + 1, 0, 0)) for p, i in here]
                found = [each[0][0], present, each[0][1], *(one for pair in each[1:] for one in pair)]
            else:
                ends = [*zip(own.tolist(), range(first + 1, gone), strict=True)]
                upwards = [(column.places[0], cut, 0, first, end, 0, 1) for cut, end in ends]
                downwards = [(column.places[0], cut, 1, end, gone, 0, 0) for cut, end in reversed(ends)]
                found = [*upwards, present, *downwards]
            rows += [(*one, column.missing, gone, number) for one in found]
            first = gone + 1
        kinds = {"threshold": np.float32, "joined": np.bool_, "left": np.bool_}
        table = zip(_ROW, np.array(rows).T, strict=True)
        return Candidates(**{name: values.astype(kinds.get(name, np.int64)) for name, values in table})

    def sides(self, sums: Array) -> tuple[Array, Array, Array]:
        """Return sums of the left side, of the right side, (nodes, candidates, 2), and of all rows, (nodes, 2).

        Args:
            sums: of the cells, (nodes, cells, 2).
        """
        running = np.concatenate([np.zeros_like(sums[:, :1]), np.cumsum(sums, axis=1)], axis=1)
        total = running[:, self.gone[0] + 1]  # of the first column, whose cells have all rows
        part = running[:, self.high] - running[:, self.low] + np.where(self.joined[:, None], sums[:, self.gone], 0.0)
        rest = total[:, None] - part
        left = self.left[:, None]
        return np.where(left, part, rest), np.where(left, rest, part), total


@dataclass(frozen=True)
class Splits:
    """What becomes of nodes: the split of each, or that it has none.

    Attributes:
        chosen: the candidate, (nodes,); −1: the node is a leaf.
        gain: what it gains, (nodes,).
        value: the node's value as a leaf, (nodes,).
        children: the values of its children as leaves, (nodes, 2).
    """

    chosen: NDArray[np.int64]
    gain: Single
    value: Single
    children: Single


def split(sums: Array, candidates: Candidates, penalty: Penalty) -> Splits:
    """Return the best split of each node whose cells have these sums, (nodes, cells, 2)."""
    left, right, total = candidates.sides(sums)
    gain = penalty.gain(left) + penalty.gain(right) - penalty.gain(total)[:, None]
    few = np.minimum(left[..., 1], right[..., 1]) < penalty.min_child_weight
    gain[few] = 0
    chosen, nodes = gain.argmax(axis=1), np.arange(len(gain))
    best = gain[nodes, chosen]
    sides = penalty.leaf(np.stack([left[nodes, chosen], right[nodes, chosen]], axis=1))
    kept = (best > LEAST_GAIN) & (best >= np.float32(penalty.gamma))
    return Splits(np.where(kept, chosen, -1), np.where(kept, best, 0), penalty.leaf(total), sides)


class Growing:
    """K trees that grow level by level, with arrays as of :class:`florilegium.models.trees.Trees`.

    Args:
        trees: K.
        depth: D.

    Attributes:
        arrays: the trees so far, where a node without a split sends all to its left.
        level: the depth of the nodes that are split next.
        gains: what splits have gained, by column, (columns,).
    """

    def __init__(self, trees: int, depth: int, columns: int) -> None:
        nodes = 2**depth - 1
        self.depth, self.level = depth, 0
        self.arrays: Arrays = {
            "feature": np.zeros((trees, nodes), np.float32), "threshold": np.full((trees, nodes), MOST, np.float32),
            "lacking": np.full((trees, nodes), -1, np.float32), "missing": np.ones((trees, nodes), np.float32),
            "leaf": np.zeros((trees, nodes + 1), np.float32),
        }  # fmt: skip
        self.gains = np.zeros(columns)
        self._alive = np.ones((trees, 1), bool)

    @property
    def grows(self) -> bool:
        """Whether there is a node that may be split."""
        return self.level < self.depth and bool(self._alive.any())

    def add(self, sums: Array, candidates: Candidates, penalty: Penalty) -> None:
        """Split the nodes of the present level, whose cells have these sums, (K, 2^level, cells, 2)."""
        trees, nodes = sums.shape[:2]
        found = split(sums.reshape(trees * nodes, *sums.shape[2:]), candidates, penalty)
        chosen = np.where(self._alive, found.chosen.reshape(trees, nodes), -1)
        at, split_ = slice(nodes - 1, 2 * nodes - 1), chosen >= 0
        for name in SPLITS:
            self.arrays[name][:, at][split_] = getattr(candidates, name)[chosen[split_]]
        np.add.at(self.gains, candidates.column[chosen[split_]], found.gain.reshape(trees, nodes)[split_])
        # A leaf's value stands at the leftmost leaf below it, which is where all that reach it go.
        width = 2 ** (self.depth - self.level)
        values, sides = found.value.reshape(trees, nodes), found.children.reshape(trees, nodes, 2)
        leaf = self.arrays["leaf"].reshape(trees, nodes, width)
        leaf[..., 0] = np.where(self._alive, np.where(split_, sides[..., 0], values), leaf[..., 0])
        leaf[..., width // 2] = np.where(split_, sides[..., 1], leaf[..., width // 2])
        self._alive = np.repeat(split_, 2, axis=1)
        self.level += 1


# ------------------------------------------------------------------------------------- rows in trees


def turns(
    tree: Arrays, columns: Sequence[Column], cuts: Sequence[Single]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which column each node of trees looks at, (K, nodes), and which of its cells go left, (K, nodes, most).

    Args:
        tree: the arrays named in :data:`SPLITS`, (K, nodes) each.
        columns, cuts: the columns, and the cuts of each.

    Raises:
        ValueError: if a node looks at no feature of a column.
    """
    owner = {place: number for number, one in enumerate(columns) for place in one.places}
    most = max(one.cells(own) for one, own in zip(columns, cuts, strict=True))
    number, left = np.zeros(tree["feature"].shape, np.int64), np.ones((*tree["feature"].shape, most), bool)
    for place in np.ndindex(*number.shape):
        feature, threshold = int(tree["feature"][place]), np.float32(tree["threshold"][place])
        if feature not in owner:
            raise ValueError(f"a tree compares feature {feature}, which no column has")
        column = columns[owner[feature]]
        number[place] = owner[feature]
        size = column.cells(cuts[owner[feature]])
        if column.categories:
            left[place][column.places.index(feature)] = threshold > 1
        else:
            left[place][np.searchsorted(cuts[owner[feature]], threshold) + 1 : size - 1] = False
        left[place][size - 1] = tree["missing"][place] > 0.5
    return number, left


def reached(codes: Codes, columns: NDArray[np.int64], left: NDArray[np.bool_], depth: int) -> NDArray[np.int64]:
    """Return the node at ``depth`` that rows reach in a tree, counted from 0 within it, (n,).

    Args:
        codes: the cell of each column that a row is in, (columns, n).
        columns, left: of the tree's nodes (:func:`turns`), (nodes,) and (nodes, most).
        depth: of the nodes, 0 for the root.
    """
    node, rows = np.zeros(codes.shape[1], np.int64), np.arange(codes.shape[1])
    for _ in range(depth):
        node = 2 * node + 2 - left[node, codes[columns[node], rows]]
    return node - (2**depth - 1)
