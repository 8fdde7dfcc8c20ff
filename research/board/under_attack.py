"""A board of attacks against defences: every pair as a run, for several shares of attackers and seeds, as heat maps.

The recipe lists the variants in its sweeps ``attacks`` and ``defences``, and the shares in ``shares``. A run without
attackers stands beside the others: what a defence costs when nobody attacks.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from florilegium.apps.engines.base import Means
from florilegium.apps.reports.writing import Report
from florilegium.apps.runs.experiment import read_layers, recipe_name, resolve
from florilegium.apps.settings.configuration import complete, parse
from florilegium.apps.sweeps.named_runs import NamedRun, carry_out, comparison, folder_of
from florilegium.common.errors import ConfigurationError
from florilegium.common.files import write_text
from florilegium.common.pages import Table, write_page
from florilegium.common.settings import Value
from florilegium.strategies.folder.results import read_summary
from florilegium.strategies.layers.robust import least

SWEEPS = ("attacks", "defences", "shares")
NOBODY = "nobody attacks"
FIGURES = {"accuracy": "mean accuracy of honest clients", "worst_decile": "worst tenth of the honest clients",
           "attack_success": "success of attackers with a goal"}  # fmt: skip
MEANING = (
    "Means over seeds. The attack that leaves the least accuracy, as a mean over the defences, comes first. –: the "
    "defence's precondition fails, or the attack has no goal."
)


@dataclass(frozen=True)
class Pair:
    """A cell of the board: an attack, "" for none, against a defence, with a share of attackers."""

    attack: str
    defence: str
    share: float


def is_under_attack(recipe: str) -> bool:
    """Return whether a recipe is one of attacks and defences."""
    return {*SWEEPS} <= read_layers(recipe).sweeps.keys()


def pairs(recipe: str, overrides: Mapping[str, Value]) -> dict[Pair, dict[str, Value]]:
    """Return the keys of each pair whose defence is possible.

    Args:
        recipe: the recipe.
        overrides: keys that apply to all runs.

    Raises:
        ConfigurationError: if a configuration is wrong, or the recipe lists a variant that it has not.
    """
    layers, found = read_layers(recipe), dict[Pair, dict[str, Value]]()
    attacks, defences = (list(layers.sweeps[name].get("variants", [])) for name in SWEEPS[:2])
    if unknown := {*attacks, *defences} - layers.variants.keys():
        raise ConfigurationError(f"{recipe}: there is no variant '{min(unknown)}'")
    for share in layers.sweeps["shares"].get("values", []):
        for attack in ("", *attacks):
            for defence in defences:
                keys = {
                    **(layers.variants[attack] if attack else {}), **layers.variants[defence], **overrides,
                    "attackers": float(share),
                }  # fmt: skip
                settings, _ = parse(complete(resolve(recipe, [], keys)))
                cohort = settings.cohort_size or round(settings.participation * settings.num_clients)
                if least(settings, cohort) <= cohort:
                    found[Pair(attack, defence, float(share))] = keys
    return found


def write_board(
    recipe: str, seeds: Sequence[int], overrides: Mapping[str, Value], means: Means, target: Path
) -> Report:
    """Carry out a board, or the rest of it, and write ``<recipe>.md`` and ``.html`` to folder ``target``.

    Args:
        recipe: a recipe with the sweeps ``SWEEPS``.
        seeds: the seeds of each pair's runs.
        overrides: keys that apply to all runs.
        means: how to carry them out.
        target: the folder.

    Raises:
        ConfigurationError: before the first run, if the recipe or a configuration is wrong.
    """
    named = {pair: comparison([], seeds, recipe, [], keys) for pair, keys in pairs(recipe, overrides).items()}
    wanted = [*{one.name: one for own in named.values() for one in own}.values()]
    runs_dir = folder_of(wanted)
    outcome = carry_out(wanted, runs_dir, means)
    cells = {pair: _figures(own, runs_dir, {path.name for path in outcome.completed}) for pair, own in named.items()}
    tables = [*_tables(cells)]
    failed = [f"{name} failed: {why}" for name, why in outcome.failed.items()]
    name = recipe_name(recipe)
    write_page(target / f"{name}.md", f"# Board: {name}", *tables, MEANING, *(f"- {line}" for line in failed))
    write_text(target / f"{name}.html", _html(name, tables))
    return Report(tables, failed)


def _figures(own: Sequence[NamedRun], runs_dir: Path, done: set[str]) -> dict[str, float]:
    """Return the means over the completed runs of what they have."""
    finals = [read_summary(runs_dir / one.name)["final"].get("seen", {}) for one in own if one.name in done]
    told = {name: [final[name] for final in finals if name in final] for name in FIGURES}
    return {name: float(np.mean(values)) for name, values in told.items() if values}


def _tables(cells: Mapping[Pair, Mapping[str, float]]) -> Iterator[Table]:
    """Yield a table for each share and figure: attacks, the worst first, against defences."""
    defences = list(dict.fromkeys(pair.defence for pair in cells))
    for share in dict.fromkeys(pair.share for pair in cells):
        own = {(pair.attack, pair.defence): found for pair, found in cells.items() if pair.share == share}
        attacks = sorted({attack for attack, _ in own} - {""}, key=lambda attack: _mean(own, attack, "accuracy"))
        for figure, title in FIGURES.items():
            rows = [
                [attack or NOBODY, *(_shown(own.get((attack, d), {}).get(figure)) for d in defences)]
                for attack in ("", *attacks)
            ]
            rows = [row for row in rows if any(cell != "–" for cell in row[1:])]
            if rows:
                yield Table(f"{share:.0%} attackers: {title}", ("attack", *defences), rows)


def _mean(own: Mapping[tuple[str, str], Mapping[str, float]], attack: str, figure: str) -> float:
    values = [found[figure] for (one, _), found in own.items() if one == attack and figure in found]
    return float(np.mean(values)) if values else 1.0


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _html(name: str, tables: Sequence[Table]) -> str:
    """Return the tables as heat maps on one page: from red, 0, to green, 1."""
    parts = [f"<!doctype html><meta charset=utf-8><title>{html.escape(name)}</title><h1>{html.escape(name)}</h1>"]
    for table in tables:
        parts.append(f"<h2>{html.escape(table.title)}</h2><table cellpadding=4><tr>")
        parts += [f"<th>{html.escape(head)}</th>" for head in table.head]
        for first, *rest in table.rows:
            parts.append(f"</tr><tr><th align=left>{html.escape(first)}</th>")
            parts += [f'<td style="background:{_colour(cell)}">{cell}</td>' for cell in rest]
        parts.append("</tr></table>")
    return "".join(parts) + f"<p>{html.escape(MEANING)}</p>\n"


def _colour(cell: str) -> str:
    return "none" if cell == "–" else f"hsl({120 * float(cell):.0f} 60% 80%)"
