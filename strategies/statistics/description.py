"""What a description says of a column, how clients differ in it, and which problems come first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.models.statistics.suppression import HIDDEN, shown
from florilegium.partitions.described_columns import Described
from florilegium.strategies.statistics.units import other_unit

Array = NDArray[np.float64]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
DIFFERS, LACKS, SHARED = 0.1, 0.2, 0.01
"""Divergence of Jensen and Shannon (0..1, base 2), share of missing values, and of equal rows, that are a problem."""


def column_facts(
    column: Described, table: Array, sums: Array | None, bins: tuple[float, float], least: int, noise: float
) -> dict[str, Any]:
    """Return what is known of a column over all clients; None stands for what is hidden.

    Args:
        column: the column.
        table: counts of its cells, (K, cells), of clients or their sum; ``HIDDEN`` where a client hides one.
        sums: for numbers: known values, Σx and Σ(x − center)² of each, (K, 3).
        bins: center and scale of the bins.
        least: the smallest count that may be shown.
        noise: standard deviation of the noise on each count; 0: none.
    """
    gone = (table == HIDDEN).any(axis=0)
    counts = table.sum(axis=0) if noise else shown(np.where(gone, 0.0, table.sum(axis=0)), least)
    cells = [None if lost or count == HIDDEN else _rounded(count) for lost, count in zip(gone, counts, strict=True)]
    facts: dict[str, Any] = {"kind": "categories" if column.words else "numbers", "missing": cells[-1]}
    facts["few"] = bool(column.words) or int((np.where(table == HIDDEN, 0, table).sum(axis=0)[:-1] > 0).sum()) <= 3
    if noise:
        facts["count_error"] = 1.96 * noise
    if column.words:
        return facts | {"counts": dict(zip(column.words, cells[:-1], strict=True))}
    edges = column.edges(*bins)
    facts |= {"edges": [float(edge) for edge in edges], "counts": cells[:-1], "mean": None, "deviation": None}
    whole = np.maximum(np.where(gone | (counts == HIDDEN), 0.0, counts), 0.0)[:-1]
    hiding = bool(gone.any() or (counts == HIDDEN).any())
    if sums is not None:
        if keeping := int(hiding_sums(table, sums).sum()):
            facts["clients_hiding"] = keeping
        known, first, second = sums.sum(axis=0)
        told = table.shape[0] > 1 or not (hiding and facts["few"])  # sums of few values give their counts away
        if known >= max(least, 1) and told:
            mean = first / known
            variance = max(second / known - (mean - bins[0]) ** 2, 0.0) * known / max(known - 1, 1)
            facts |= {"known": None if cells[-1] is None and table.shape[0] == 1 else int(known),
                      "mean": column.mean + column.std * mean,
                      "deviation": abs(column.std) * math.sqrt(variance)}  # fmt: skip
    elif whole.sum() > 0:
        middles = np.concatenate([[edges[0]], (edges[1:] + edges[:-1]) / 2, [edges[-1]]])
        mean = float(whole @ middles / whole.sum())
        spread = noise * math.sqrt(float(((middles - mean) ** 2).sum())) / whole.sum()
        facts |= {"mean": mean, "mean_error": 1.96 * spread,
                  "deviation": math.sqrt(float(whole @ (middles - mean) ** 2) / whole.sum())}  # fmt: skip
    facts["quantiles"] = None if hiding else quantiles(whole, edges)
    facts["quantile_error"] = float(edges[1] - edges[0])
    return facts


def hiding_sums(table: Array, sums: Array) -> NDArray[np.bool_]:
    """Return which clients have values of a column of numbers, but keep their sums, since a small count follows, (K,).

    Arguments are those of :func:`column_facts`.
    """
    found: NDArray[np.bool_] = (sums[:, 0] == 0) & (table[:, :-1] != 0).any(axis=1)
    return found


def _rounded(count: float) -> float | int:
    return int(count) if count == int(count) else round(float(count), 2)


def quantiles(counts: Array, edges: Array) -> dict[str, float | None]:
    """Return quantiles from counts of bins (B + 2,), off by one width of a bin at most; None beyond the outer edges."""
    total = counts.sum()
    found: dict[str, float | None] = {}
    for q in QUANTILES if total > 0 else ():
        cumulated = np.cumsum(counts)
        i = int(np.searchsorted(cumulated, q * total))
        if 0 < i < len(counts) - 1:
            share = (q * total - cumulated[i - 1]) / counts[i]
            found[f"{q:g}"] = float(edges[i - 1] + share * (edges[i] - edges[i - 1]))
        else:
            found[f"{q:g}"] = None
    return found


def jensen_shannon(p: Array, q: Array) -> float:
    """Return the divergence of Jensen and Shannon of two tables of counts, 0 (alike) to 1 (disjoint), in base 2."""
    p, q = p / max(p.sum(), 1e-300), q / max(q.sum(), 1e-300)
    m = (p + q) / 2

    def to_middle(r: Array) -> float:
        some = r > 0
        return float(r[some] @ np.log2(r[some] / m[some]))

    return (to_middle(p) + to_middle(q)) / 2


def wasserstein(p: Array, q: Array, width: float) -> float:
    """Return the distance of Wasserstein of two tables of bins of one width, in the column's unit."""
    return float(np.abs(np.cumsum(p / max(p.sum(), 1e-300) - q / max(q.sum(), 1e-300))).sum()) * width


def compared(
    columns: Sequence[Described],
    tables: Sequence[Array],
    names: Sequence[str],
    facts: Mapping[str, Any],
    sums: Mapping[str, Array],
    rows: Array,
) -> dict[str, Any]:
    """Return for each client and column its counts, and how far it is from the others; None if too much is hidden.

    Args:
        columns, tables: the columns, and each one's counts, (K, cells).
        names: of the clients.
        facts: of all clients, by column.
        sums: of columns of numbers, by name: as in :func:`column_facts`.
        rows: numbers of rows, (K,).
    """
    found: dict[str, Any] = {}
    for k, name in enumerate(names):
        own: dict[str, Any] = {}
        for column, table in zip(columns, tables, strict=True):
            cells = [None if count == HIDDEN else int(count) for count in table[k]]
            one: dict[str, Any] = {"missing": cells[-1], "counts": cells[:-1], "divergence": None}
            if column.words:
                others = np.delete(table, k, axis=0)
                alone = (table[k] > 0) & (others == 0).all(axis=0)
                one["only_here"] = [word for word, lone in zip(column.words, alone[:-1], strict=True) if lone]
            else:
                if hiding_sums(table, sums[column.name])[k]:
                    one["hidden"] = True
                own_sums, whole = sums[column.name][k], sums[column.name].sum(axis=0)
                if own_sums[0] and whole[0] > own_sums[0]:
                    center = whole[1] / whole[0]
                    one["mean"], one["deviation"] = _moments(column, own_sums, center)
                    one["others"], one["others_deviation"] = _moments(column, whole - own_sums, center)
            if (pair := _beside(table, rows, k)) is not None:
                one["divergence"] = jensen_shannon(*pair)
                if not column.words and len(pair[0]) == table.shape[1] - 1:
                    edges = facts[column.name]["edges"]
                    one["distance"] = wasserstein(*pair, edges[1] - edges[0])
            own[column.name] = one
        found[name] = own
    return found


def _beside(table: Array, rows: Array, k: int) -> tuple[Array, Array] | None:
    """Return counts of known values of client k, and of the others; None if there are none, or all are hidden.

    Cells that one of them hides are one cell together, whose count follows from the number of rows: as zeros they
    would look like a difference.
    """
    away = table == HIDDEN
    usable = ~away[:, :-1].all(axis=1) & (table[:, :-1] != 0).any(axis=1)
    others = usable & (np.arange(len(table)) != k)
    if not usable[k] or not others.any():
        return None
    merged = away[others | (np.arange(len(table)) == k)].any(axis=0)
    kept = table[:, ~merged]
    if merged.any():
        totals = np.where(away.any(axis=1), rows, table.sum(axis=1))
        kept = np.column_stack([totals - kept.sum(axis=1), kept])
    if not merged[-1]:
        kept = kept[:, :-1]
    if kept.shape[1] < 2 or not kept[k].sum() or not kept[others].sum():
        return None
    return kept[k], kept[others].sum(axis=0)


def _moments(column: Described, sums: Array, center: float) -> tuple[float, float]:
    """Return mean and deviation, in the column's unit, of known values, Σx and Σ(x − center)², (3,)."""
    known, first, second = sums
    mean = first / known
    variance = max(second / known - (mean - center) ** 2, 0.0)
    return column.mean + column.std * float(mean), abs(column.std) * math.sqrt(variance)


def problems(found: Mapping[str, Any]) -> list[str]:
    """Return what a reader should look at, in sentences, the worst first."""
    said: list[tuple[float, str]] = []
    for name, facts in found["columns"].items():
        counts = facts["counts"].values() if isinstance(facts["counts"], dict) else facts["counts"]
        shown_counts = [count for count in counts if count is not None]
        rows = sum(shown_counts) + (facts["missing"] or 0)
        if rows > 0 and (facts["missing"] or 0) / rows > LACKS:
            share = facts["missing"] / rows
            said.append((1 + share, f"column '{name}' is missing in {share:.0%} of the rows"))
        if facts.get("clients_without") and "by_client" not in found:
            said.append(
                (
                    3.0,
                    f"column '{name}' is not there, is withheld, or does not fit in {facts['clients_without']} clients",
                )
            )
        if facts.get("deviation") == 0:
            said.append((1.0, f"column '{name}' has one value, {facts['mean']:g}, in all rows"))
    shared = found.get("shared_rows", {"pairs": None, "error": 0.0})
    if shared["pairs"] and shared["pairs"] > max(shared["error"], SHARED * found["rows"]):
        said.append((1.5, f"{shared['pairs']} rows of a client equal rows of another client"))
    for client, own in found.get("by_client", {}).items():
        for name, one in own.items():
            known = [count for count in one["counts"] if count is not None]
            if one.get("lacking"):
                said.append(
                    (3.0, f"client {client}: column '{name}' is not there, is withheld, or does not fit the schema")
                )
                continue
            if one["missing"] and len(known) == len(one["counts"]) and not any(known):
                said.append((4.0, f"client {client}: column '{name}' is missing in all rows"))
                continue
            hint, far = "", one["divergence"]
            what = "categories" if found["columns"][name]["kind"] == "categories" else "distribution"
            if "mean" in one and (far is None or far > DIFFERS):
                unit = other_unit((one["mean"], one["deviation"]), (one["others"], one["others_deviation"]))
                hint = f"; perhaps another unit: {unit}" if unit else ""
                what = f"mean {one['mean']:.4g} there, {one['others']:.4g} elsewhere"
            elif one.get("only_here"):
                hint = f"; it alone has {', '.join(map(repr, one['only_here'][:5]))}"
            if far is None and "mean" in one and hint:
                said.append((2.0, f"client {client}: column '{name}' differs from the others' ({what}{hint})"))
            elif far is not None and far > DIFFERS:
                line = f"client {client}: column '{name}' differs from the others' ({what}{hint}; divergence {far:.2f})"
                said.append((2 * far + bool(hint), line))
            elif one.get("only_here"):
                words = ", ".join(map(repr, one["only_here"][:5]))
                said.append((0.5, f"client {client}: column '{name}' has categories that no other client has: {words}"))
    return [line for _, line in sorted(said, key=lambda one: -one[0])]
