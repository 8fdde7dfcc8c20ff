"""Paired differences between the methods of a section: each client is compared with itself, seed by seed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from florilegium.apps.reports.pools import GROUPS, Pool, Section
from florilegium.apps.reports.run_records import RunRecord
from florilegium.apps.reports.statistics import Difference, difference, holm
from florilegium.strategies.folder.main_figure import MainFigure


@dataclass(frozen=True)
class Pair:
    """Two methods, compared client by client.

    Attributes:
        first, second: labels; differences are second − first.
        group: the group of clients.
        figure: the main figure, shares in fractions, or "loss".
        difference: mean, and errors over clients and over seeds.
        seeds: the common seeds.
        p: p-value of no difference over seeds, adjusted for all pairs of the section; NaN with fewer than two seeds.
        main: the main figure of the runs' task.
    """

    first: str
    second: str
    group: str
    figure: str
    difference: Difference
    seeds: tuple[int, ...]
    p: float
    main: MainFigure


def pairs(section: Section, figure: str = "", group: str = "") -> list[Pair]:
    """Return every pair of methods of a section, for each group of clients that both were evaluated on.

    Clients or seeds that only one of the two has do not count, and neither do pairs with fewer than two common clients.

    Args:
        section: the methods.
        figure: the clients' figure; "": the main one, or "loss" where there is none.
        group: the group of clients; "": each.
    """
    found: list[tuple[str, str, str, str, Difference, tuple[int, ...]]] = []
    main = section.pools[0].main if section.pools else MainFigure()
    for first, second in combinations(section.pools, 2):
        for own in [group] if group else GROUPS:
            for name in [figure] if figure else [main.name, "loss"]:
                gains = _gains(first, second, own, name)
                if sum(map(len, gains.values())) > 1:
                    found.append((first.label, second.label, own, name, difference(gains), tuple(gains)))
                    break
    adjusted = holm([each[4].over_seeds.p for each in found])
    return [Pair(*each, p, main) for each, p in zip(found, adjusted, strict=True)]


def not_compared(section: Section) -> list[str]:
    """Return a sentence for each pair of methods without a single common client, which says why."""
    return [
        f"{second.label} and {first.label} were not compared: {why}."
        for first, second in combinations(section.pools, 2)
        if (why := _obstacle(first, second))
    ]


def _obstacle(first: Pool, second: Pool) -> str:
    seeds = [seed for seed in first.seeds if seed in second.seeds]
    if not seeds:
        return "they have no common seed, and so other clients"
    both = list(_common(first, second))
    if not both:
        return "with the same seed, their clients or data are not the same"
    if not any({(line["group"], line["client"]) for line in a.clients} & {(line["group"], line["client"])
               for line in b.clients} for a, b in both):  # fmt: skip
        return "no client was evaluated by both"
    return ""


def _common(first: Pool, second: Pool) -> list[tuple[RunRecord, RunRecord]]:
    """Return the runs of two pools with the same seed, clients and data."""
    after = {run.seed: run for run in second.runs}
    both = [(run, after[run.seed]) for run in first.runs if run.seed in after]
    return [(a, b) for a, b in both if all(a.origins.get(k) == b.origins.get(k) for k in ("dataset", "partition"))]


def _gains(first: Pool, second: Pool, group: str, figure: str) -> dict[int, dict[str, float]]:
    """Return by seed the difference of each client of a group that both have evaluated.

    A client is named so that it has the same name in another seed if, and only if, it is the same there: it has a name
    in the data, or the seeds divide the data in the same way.
    """
    both = _common(first, second)
    divisions = {a.origins.get("partition", a.name) for a, _ in both}
    gains: dict[int, dict[str, float]] = {}
    for a, b in both:
        before, after, names = a.figures(figure), b.figures(figure), a.identities()
        made = "" if len(divisions) == 1 else f"seed {a.seed}, "
        own = {
            names[client] or f"{made}{client}": after[where, client] - value
            for (where, client), value in before.items()
            if where == group and (where, client) in after
        }
        if own:
            gains[a.seed] = own
    return gains
