"""Which runs of a report belong together: runs that differ in the seed alone are pooled, others compared or separated.

A *pool* holds the runs of one setting, one for each seed. A *section* holds the pools whose clients and data are the
same; only they can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from florilegium.apps.methods.registry import table_of
from florilegium.apps.reports.run_records import RunRecord
from florilegium.apps.reports.statistics import Estimate, estimate
from florilegium.apps.settings.configuration import TARGET, defaults
from florilegium.strategies.folder.main_figure import MainFigure, read_main

GROUPS = ("seen", "unlabeled", "unseen")
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
    runs: tuple[RunRecord, ...]

    @property
    def main(self) -> MainFigure:
        """The main figure of the runs' task."""
        return read_main(self.runs[0].summary)

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return [run.seed for run in self.runs]

    def groups(self) -> list[str]:
        """Return the groups of clients of which some run has final figures, and "target"."""
        return [group for group in (*GROUPS, TARGET) if any(group in run.summary["final"] for run in self.runs)]

    def figure(self, group: str, name: str) -> Estimate | None:
        """Return the mean of a final figure over seeds with its standard error; None if no run has the figure."""
        values = [*self.by_seed(group, name).values()]
        return estimate(values) if values else None

    def by_seed(self, group: str, name: str) -> dict[int, float]:
        """Return a final figure of the runs that have it, by seed."""
        finals = {run.seed: run.summary["final"].get(group, {}) for run in self.runs}
        return {seed: float(final[name]) for seed, final in finals.items() if final.get(name) is not None}


@dataclass(frozen=True)
class Section:
    """Pools that can be compared: their runs have the same clients and data wherever their seeds are equal.

    Attributes:
        pools: in the order in which their first runs were given.
        repeated: a sentence for each run that does not count, because another has its settings and seed.
    """

    pools: tuple[Pool, ...]
    repeated: tuple[str, ...] = ()

    @property
    def runs(self) -> list[RunRecord]:
        """All runs, pool by pool."""
        return [run for pool in self.pools for run in pool.runs]

    def title(self, without: str = "") -> str:
        """Return dataset, partition, model, numbers of clients and of seeds, in words.

        Args:
            without: a key that is left out, because it differs.
        """
        first, shown = self.runs[0], ("dataset", "partitioner", "num-clients", "data", without)
        keys = [
            f"{key} = {value}" for key, value in sorted(first.federation.items())
            if key not in shown and value != defaults().get(key)
        ]  # fmt: skip
        models = [str(model) for model in dict.fromkeys(run.config["model"] for run in self.runs)]
        words = [f"{first.config['dataset']}, partitioner {first.config['partitioner']}", *keys]
        words += [f"{span(run.summary['clients'] for run in self.runs)} clients", f"model {', '.join(models)}"]
        words += [f"seeds {ranges({run.seed for run in self.runs})}"]
        return ", ".join(words)


def span(numbers: Iterable[int]) -> str:
    """Return a number, or the smallest and the largest one."""
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers in words, three and more in a row as a range: "1-5, 8, 9"."""
    rows: list[list[int]] = []
    for number in sorted(set(numbers)):
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows)


def sections(runs: Sequence[RunRecord]) -> list[Section]:
    """Return the runs, pooled over seeds and separated where they are not comparable.

    Of several runs with the same settings and seed, the last one given counts; a sentence names the others.
    """
    together: dict[str, dict[str, dict[int, list[RunRecord]]]] = {}
    for run in runs:
        pools = together.setdefault(text_of(run.federation), {})
        pools.setdefault(text_of(run.setting), {}).setdefault(run.seed, []).append(run)
    return [_section(list(pools.values())) for pools in together.values()]


def text_of(value: object) -> str:
    """Return a text that is equal for equal settings, or for equal values of one."""
    return json.dumps(value, sort_keys=True)


def _section(found: Sequence[Mapping[int, Sequence[RunRecord]]]) -> Section:
    chosen = [[runs[-1] for _, runs in sorted(by_seed.items())] for by_seed in found]
    repeated = tuple(
        f"{run.name} has the settings and the seed of {runs[-1].name} and is not counted."
        for by_seed in found
        for runs in by_seed.values()
        for run in runs[:-1]
    )
    labels = _labels([runs[0] for runs in chosen])
    return Section(tuple(Pool(label, tuple(runs)) for label, runs in zip(labels, chosen, strict=True)), repeated)


def _labels(firsts: Sequence[RunRecord]) -> list[str]:
    """Return a label for each pool, given its first run: its method and, where a method has several, what differs."""
    full = {first.method: {other.config["method"] for other in firsts if other.method == first.method}
            for first in firsts}  # fmt: skip
    labels = []
    for first in firsts:
        method = str(first.config["method"])
        same = [other for other in firsts if other.config["method"] == method and other.method == first.method]
        keys = [key for key in first.setting if any(other.setting.get(key) != first.setting[key] for other in same)]
        told = [key for key in keys if first.setting[key] != defaults().get(key)]  # the defaults go without saying
        words = [f"{key.removeprefix(f'{table_of(method)}.')} {first.setting[key]}" for key in told]
        words[SHOWN_KEYS:] = ["…"] if len(words) > SHOWN_KEYS else []
        name = first.method if len(full[first.method]) == 1 else method  # methods of two packages with one short name
        labels.append(name + (f" ({', '.join(words)})" if words else ""))
    return [
        f"{label}, {first.name}" if labels.count(label) > 1 else label
        for label, first in zip(labels, firsts, strict=True)
    ]
