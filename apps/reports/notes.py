"""Remarks on the runs of a section that a reader must know: what is not equal, not a number, or not compared."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from florilegium.apps.origins.provenance import differences
from florilegium.apps.reports.pairs import not_compared
from florilegium.apps.reports.pools import Pool, Section, ranges, text_of
from florilegium.apps.settings.configuration import defaults

FEW = 3
"""Most methods with a common setting that are all named."""
_NUMBER = re.compile(r"\d[\d.,]*")


def notes(section: Section, varied: Collection[str] = ()) -> list[str]:
    """Return all remarks on a section, as sentences.

    Args:
        section: the section.
        varied: keys that differ on purpose.
    """
    return [
        *section.repeated, *_unknown(section), *_averaged(section), *_warnings(section), *_not_numbers(section),
        *_unmeasured(section), *_seeds(section), *not_compared(section), *_unequal(section.pools, varied),
        *(f"Not equal: {line}." for line in _provenance(section)),
    ]  # fmt: skip


def _unknown(section: Section) -> list[str]:
    if section.runs[0].federation["data"] != "unknown":
        return []
    return ["The data of these runs are unknown: real devices keep theirs, and earlier versions noted no hash."]


def _averaged(section: Section) -> list[str]:
    names = section.pools[0].main.averaged
    return (
        [f"{', '.join(names)}: means over clients; none of all examples together follows from them."] if names else []
    )


def _warnings(section: Section) -> list[str]:
    """Return the warnings of the runs' summaries; those of several seeds that differ in numbers alone are one."""
    found = []
    for pool in section.pools:
        alike: dict[str, dict[int, str]] = {}
        for run in pool.runs:
            for warning in run.summary.get("warnings", ()):
                alike.setdefault(_NUMBER.sub("", warning), {}).setdefault(run.seed, warning)
        for warnings in alike.values():
            (first, said), several = next(iter(warnings.items())), len(warnings) > 1
            whose = f" (numbers of seed {first})" if several else ""
            found.append(f"{pool.label}, seed{'s' * several} {ranges(warnings)}: {said}{whose}.")
    return found


def _not_numbers(section: Section) -> list[str]:
    return [
        f"{pool.label}, seed {run.seed}: {', '.join(wrong)} of {group} clients is not a number."
        for pool in section.pools
        for run in pool.runs
        for group, final in run.summary["final"].items()
        if (wrong := [name for name, value in final.items() if value is not None and math.isnan(value)])
    ]


def _unmeasured(section: Section) -> list[str]:
    """Return a sentence for each run without clients that another run with its seed has; its means lack the failed."""
    measured = [
        (pool, run, {(line["group"], line["client"]) for line in run.clients})
        for pool in section.pools
        for run in pool.runs
        if run.clients
    ]
    everyone: dict[int, set[tuple[str, str]]] = {}
    for _, run, own in measured:
        everyone.setdefault(run.seed, set()).update(own)
    return [
        f"{pool.label}, seed {run.seed}: {lost} of {len(own) + lost} clients were not measured, and do not count."
        for pool, run, own in measured
        if (lost := len(everyone[run.seed] - own))
    ]


def _seeds(section: Section) -> list[str]:
    """Return a sentence if pools have different seeds, since their means are then of other clients."""
    seeds = {pool.label: ranges(pool.seeds) for pool in section.pools}
    if len({*seeds.values()}) < 2:
        return []
    return [f"Seeds are not the same: {_by_value(seeds, str)}. Paired differences count common seeds alone."]


def _unequal(pools: Sequence[Pool], varied: Collection[str]) -> list[str]:
    """Return a sentence for each common setting, not a method's own, in which pools of different methods differ."""
    settings = {pool.label: pool.runs[0].setting for pool in pools}
    if len({pool.runs[0].method for pool in pools}) < 2:
        return []
    common = [
        key for key in defaults() if key not in {"method", *varied} and ("." not in key or key.startswith("privacy."))
    ]
    found = []
    for key in common:
        values = {label: setting[key] for label, setting in settings.items() if key in setting}
        told = any(f"{key} " in label for label in settings)  # the labels say it
        if not told and len({*map(text_of, values.values())}) > 1:
            found.append(f"Not equal: {key} is {_by_value(values)}.")
    return found


def _by_value(values: Mapping[str, object], say: Callable[[object], str] = repr) -> str:
    """Return the values of several pools in words, each with the pools that have it; the most common of many last."""
    labels: dict[str, list[str]] = {}
    for label, value in values.items():
        labels.setdefault(say(value), []).append(label)
    common = max(labels, key=lambda value: len(labels[value]))
    several = len(labels[common]) > FEW
    words = [f"{value} ({', '.join(own)})" for value, own in labels.items() if not several or value != common]
    return ", ".join([*words, f"{common} (the others)"] if several else words)


def _provenance(section: Section) -> list[str]:
    return differences(*(run.path for run in section.runs))
