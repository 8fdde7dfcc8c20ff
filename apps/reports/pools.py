"""Which runs of a report belong together: runs that differ in the seed alone are pooled, others compared or separated.

A *pool* holds the runs of one setting, one for each seed. A *section* holds the pools whose clients and data are the
same; only they can be compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from florilegium.apps.methods import table_of
from florilegium.apps.provenance import differences
from florilegium.apps.reports.records import FEDERATION, Run
from florilegium.apps.reports.statistics import Difference, Estimate, difference, estimate, holm
from florilegium.apps.settings import defaults
from florilegium.common.settings import Value

GROUPS = ("seen", "unlabeled", "unseen")
TARGET = "target"
"""Key of the final figures after a transfer to another dataset; it stands beside the groups of clients."""
SHOWN_KEYS = 3
"""Most keys that tell pools of one method apart in their labels."""


@dataclass(frozen=True)
class Pool:
    """The runs of one setting.

    Attributes:
        label: its name in tables and legends, unique in its section.
        runs: a completed run for each seed, in the order of seeds.
    """

    label: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return [run.seed for run in self.runs]

    def groups(self) -> list[str]:
        """Return the groups of clients of which some run has final figures, and "target"."""
        return [group for group in (*GROUPS, TARGET) if any(group in run.summary["final"] for run in self.runs)]

    def figure(self, group: str, name: str) -> Estimate | None:
        """Return the mean of a final figure over seeds with its standard error; None if no run has the figure."""
        finals = [run.summary["final"].get(group, {}) for run in self.runs]
        values = [float(final[name]) for final in finals if final.get(name) is not None]
        return estimate(values) if values else None


@dataclass(frozen=True)
class Section:
    """Pools that can be compared: their runs have the same clients and data wherever their seeds are equal.

    Attributes:
        pools: in the order in which their first runs were given.
        notes: remarks on these runs, such as settings in which methods differ, as sentences.
    """

    pools: tuple[Pool, ...]
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """Dataset, partition, model, numbers of clients and of seeds, in words."""
        first, runs = self.pools[0].runs[0].config, [run for pool in self.pools for run in pool.runs]
        chosen = [key for key in sorted(FEDERATION) if first[key] != defaults()[key]]
        keys = [f"{key} = {first[key]}" for key in chosen if key not in ("dataset", "partitioner", "num-clients")]
        models = [str(model) for model in dict.fromkeys(run.config["model"] for run in runs)]
        clients = _span(run.summary["clients"] for run in runs)
        words = [f"{first['dataset']}, partitioner {first['partitioner']}", *keys, f"{clients} clients"]
        words += [f"model {', '.join(models)}", f"seeds {', '.join(map(str, sorted({run.seed for run in runs})))}"]
        return ", ".join(words)


def _span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return the runs, pooled over seeds and separated where they are not comparable.

    Of several runs with the same settings and seed, the last one given counts; a note names the others.
    """
    together: dict[str, dict[str, dict[int, list[Run]]]] = {}
    for run in runs:
        pools = together.setdefault(_text(run.federation), {})
        pools.setdefault(_text(run.setting), {}).setdefault(run.seed, []).append(run)
    return [_section(list(pools.values())) for pools in together.values()]


def _text(keys: Mapping[str, Value]) -> str:
    return json.dumps(keys, sort_keys=True)


def _section(found: Sequence[Mapping[int, Sequence[Run]]]) -> Section:
    chosen = [[runs[-1] for _, runs in sorted(by_seed.items())] for by_seed in found]
    notes = [
        f"{run.name} has the settings and the seed of {runs[-1].name} and is not counted."
        for by_seed in found
        for runs in by_seed.values()
        for run in runs[:-1]
    ]
    pools = tuple(Pool(label, tuple(runs)) for label, runs in zip(_labels(chosen), chosen, strict=True))
    return Section(pools, (*notes, *_not_numbers(pools), *_unequal(pools), *_provenance(pools)))


def _not_numbers(pools: Sequence[Pool]) -> list[str]:
    """Return a sentence for each run of which a final figure is NaN."""
    return [
        f"{pool.label}, seed {run.seed}: {', '.join(wrong)} of {group} clients is not a number."
        for pool in pools
        for run in pool.runs
        for group, final in run.summary["final"].items()
        if (wrong := [name for name, value in final.items() if value is not None and math.isnan(value)])
    ]


def _provenance(pools: Sequence[Pool]) -> list[str]:
    """Return a sentence for each difference in what carried the runs out: versions, engine, machine."""
    return [f"Not equal: {line}." for line in differences(*(run.path for pool in pools for run in pool.runs))]


def _labels(chosen: Sequence[Sequence[Run]]) -> list[str]:
    """Return a label for each pool: its method and, where a method has several, the settings that differ."""
    full = {runs[0].method: set[Value]() for runs in chosen}
    for runs in chosen:
        full[runs[0].method].add(runs[0].config["method"])
    labels = []
    for runs in chosen:
        first = runs[0]
        method = str(first.config["method"])
        same = [other[0] for other in chosen if other[0].config["method"] == method and other[0].method == first.method]
        keys = [key for key in first.setting if any(other.setting.get(key) != first.setting[key] for other in same)]
        words = [f"{key.removeprefix(f'{table_of(method)}.')} {first.setting[key]}" for key in keys]
        words[SHOWN_KEYS:] = ["…"] if len(words) > SHOWN_KEYS else []
        name = first.method if len(full[first.method]) == 1 else method  # methods of two packages with one short name
        labels.append(name + (f" ({', '.join(words)})" if words else ""))
    return [
        f"{label}, {runs[0].name}" if labels.count(label) > 1 else label
        for label, runs in zip(labels, chosen, strict=True)
    ]


def _unequal(pools: Sequence[Pool]) -> list[str]:
    """Return a sentence for each common setting, not a method's own, in which pools of different methods differ."""
    settings = {pool.label: pool.runs[0].setting for pool in pools}
    if len({pool.runs[0].method for pool in pools}) < 2:
        return []
    common = [key for key in defaults() if key != "method" and ("." not in key or key.startswith("privacy."))]
    notes = []
    for key in common:
        values = {label: setting[key] for label, setting in settings.items() if key in setting}
        told = any(f"{key} " in label for label in settings)  # the labels say it
        if not told and len({_text({"": value}) for value in values.values()}) > 1:
            notes.append(f"Not equal: {key} is {', '.join(f'{value!r} ({label})' for label, value in values.items())}.")
    return notes


@dataclass(frozen=True)
class Pair:
    """Two methods, compared client by client.

    Attributes:
        first, second: labels; differences are second − first.
        group: the group of clients.
        figure: "accuracy", in fractions, or "loss".
        difference: mean, and errors over clients and over seeds.
        seeds: the common seeds.
        p: p-value of no difference over seeds, adjusted for all pairs of the section; NaN with fewer than two seeds.
    """

    first: str
    second: str
    group: str
    figure: str
    difference: Difference
    seeds: tuple[int, ...]
    p: float


def pairs(section: Section, figure: str = "", group: str = "") -> list[Pair]:
    """Return every pair of methods of a section, for each group of clients that both were evaluated on.

    Clients are compared with themselves, seed by seed; clients or seeds that only one of the two has do not count, and
    neither do pairs with fewer than two common clients.

    Args:
        section: the methods.
        figure: the clients' figure; "": "accuracy", or "loss" where there is none.
        group: the group of clients; "": each.
    """
    found: list[tuple[str, str, str, str, Difference, tuple[int, ...]]] = []
    for first, second in combinations(section.pools, 2):
        before, after = ({run.seed: run for run in pool.runs} for pool in (first, second))
        for own in [group] if group else GROUPS:
            for name in [figure] if figure else ["accuracy", "loss"]:
                common = [seed for seed in before if seed in after]
                gains = {seed: _gains(before[seed], after[seed], own, name) for seed in common}
                gains = {seed: each for seed, each in gains.items() if len(each)}
                if sum(map(len, gains.values())) > 1:
                    found.append((first.label, second.label, own, name, difference(gains), tuple(gains)))
                    break
    adjusted = holm([each[4].over_seeds.p for each in found])
    return [Pair(*each, p) for each, p in zip(found, adjusted, strict=True)]


def _gains(before: Run, after: Run, group: str, figure: str) -> NDArray[np.float64]:
    """Return the differences of the clients of a group that both runs have evaluated; none if they are not the same."""
    if before.origins.get("partition") != after.origins.get("partition"):
        return np.empty(0)
    a, b = before.figures(figure), after.figures(figure)
    return np.array([b[key] - a[key] for key in a if key[0] == group and key in b], dtype=float)
