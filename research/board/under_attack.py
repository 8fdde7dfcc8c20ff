"""A board of attacks against defences: every pair as a run, for several shares of attackers and seeds, as heat maps.

The recipe lists the variants in its sweeps ``attacks`` and ``defences``, and the shares in ``shares``. A run without
attackers stands beside the others: what a defence costs when nobody attacks. With a table ``[tune.board]`` the defences
are tuned alike first, while nobody attacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import tomli_w

from florilegium.apps.engines.base import Means
from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.reports.verdicts import HEAD as CLAIM_HEAD
from florilegium.apps.reports.verdicts import MEANING as CLAIMED
from florilegium.apps.reports.writing import Report
from florilegium.apps.runs.experiment import read_layers, recipe_name, resolve
from florilegium.apps.settings.configuration import Settings, complete, parse
from florilegium.apps.sweeps.named_runs import Completion, NamedRun, carry_out, check_seeds, comparison, folder_of
from florilegium.apps.tuning.results import shown
from florilegium.apps.tuning.trials import tune
from florilegium.clients.attacks.registry import attack_of
from florilegium.common.errors import ConfigurationError
from florilegium.common.files import write_text
from florilegium.common.layout import page_html, table_html
from florilegium.common.pages import Table, write_page
from florilegium.common.settings import Section, Value
from florilegium.research.board.carry_out import TABLE
from florilegium.research.board.claims import Point, verdicts
from florilegium.research.board.made import made, options_of
from florilegium.strategies.folder.results import read_summary
from florilegium.strategies.layers.robust import MEAN, least

SWEEPS = ("attacks", "defences", "shares")
NOBODY = "nobody attacks"
WORST = ("defence", "worst attack", "accuracy", NOBODY)
"""Columns of the table of worst attacks."""
FIGURES = {"accuracy": "mean accuracy of honest clients", "worst_decile": "worst tenth of the honest clients",
           "accuracy_global": "mean accuracy of the model that clients receive",
           "attack_success": "success of attackers with a goal",
           "attack_success_global": "success of attackers with the model that clients receive"}  # fmt: skip
MEANING = (
    "Means over seeds ± their standard deviation. The attack that leaves the least accuracy, as a mean over the "
    "defences, comes first. *lost*: runs that failed, such as those whose model diverged; reasons are below. In "
    "the order of lines, a pair with lost runs counts as accuracy 0; the order is that of means, whatever their "
    "deviations. –: the defence's precondition fails, the method allows no such attack or rule, or there is no such "
    "figure."
)


@dataclass(frozen=True)
class Pair:
    """A cell of the board: an attack, "" for none, against a defence, with a share of attackers."""

    attack: str
    defence: str
    share: float

    def __str__(self) -> str:
        return f"{self.share:.0%} attackers, {self.defence}, {self.attack or NOBODY}"


@dataclass(frozen=True)
class Cell:
    """What the runs of a pair have shown.

    Attributes:
        finals: last figures of the completed runs, by seed.
        lost: why the others failed.
    """

    finals: Mapping[int, Mapping[str, float]]
    lost: Sequence[str]

    def values(self, figure: str) -> list[float]:
        """Return a figure of each completed run that has it."""
        return [final[figure] for final in self.finals.values() if figure in final]

    def shown(self, figure: str) -> str:
        """Return mean and deviation of a figure, and how many runs are lost."""
        values, runs = self.values(figure), len(self.finals) + len(self.lost)
        if not values:
            return "–" if self.finals or not self.lost else "lost"  # completed runs have no such figure
        deviation = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
        return f"{np.mean(values):.3f}{deviation}" + (f", {len(self.lost)} of {runs} lost" if self.lost else "")

    def left(self, figure: str = "accuracy") -> float | None:
        """Return what an attack leaves of a figure, 0 where runs are lost; None if nothing is known of it."""
        values = self.values(figure)
        return 0.0 if self.lost else float(np.mean(values)) if values else None


NOTHING = Cell({}, [])


def is_under_attack(recipe: str) -> bool:
    """Return whether a recipe is one of attacks and defences."""
    return {*SWEEPS} <= read_layers(recipe).sweeps.keys()


def pairs(recipe: str, overrides: Mapping[str, Value]) -> dict[Pair, dict[str, Value]]:
    """Return the keys of each pair whose defence is possible.

    Args:
        recipe: the recipe.
        overrides: keys that apply to all runs.

    Raises:
        ConfigurationError: if a configuration is wrong, the recipe lists a variant that it has not, or tunes some
            defences only.
    """
    layers, found = read_layers(recipe), dict[Pair, dict[str, Value]]()
    attacks, defences = (list(layers.sweeps[name].get("variants", [])) for name in SWEEPS[:2])
    if unknown := {*attacks, *defences} - layers.variants.keys():
        raise ConfigurationError(f"{recipe}: there is no variant '{min(unknown)}'")
    if TABLE in layers.tune and (untuned := {*defences} - {*layers.tune[TABLE].get("methods", [])}):
        raise ConfigurationError(
            f"{recipe}, [tune.{TABLE}]: add '{min(untuned)}' to methods; all defences are tuned alike"
        )
    for share in layers.sweeps["shares"].get("values", []):
        for attack in ("", *attacks):
            for defence in defences:
                keys = {
                    **(layers.variants[attack] if attack else {}), **layers.variants[defence], **overrides,
                    "attackers": float(share),
                }  # fmt: skip
                if _possible(*parse(complete(resolve(recipe, [], keys)))):
                    found[Pair(attack, defence, float(share))] = keys
    return found


def _possible(settings: Settings, hyper: Section) -> bool:
    """Return whether a cohort is large enough for the rule, and the method allows the rule and forged updates."""
    cohort = settings.cohort_size or round(settings.participation * settings.num_clients)
    single = settings.aggregation != MEAN or attack_of(settings.attack, settings.attack_keys).forges
    refused = single and why_not(METHODS[settings.method], "robust aggregation", hyper)
    return not refused and least(settings, cohort) <= cohort


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
        RunError: if no trial of a defence completed.
    """
    check_seeds(seeds, overrides)
    wanted_pairs = pairs(recipe, overrides)  # what is wrong in them is said before the trials
    tuned = _tuned(recipe, overrides, means)
    named = {
        pair: comparison([], seeds, recipe, [], {**keys, **tuned.get(pair.defence, {})})
        for pair, keys in wanted_pairs.items()
    }
    wanted = [*{one.name: one for own in named.values() for one in own}.values()]
    runs_dir = folder_of(wanted)
    outcome = carry_out(wanted, runs_dir, means)
    cells = {pair: _cell(own, runs_dir, outcome) for pair, own in named.items()}
    judged = [*_claims(cells)]
    tables = [*_tables(cells), *judged, *_choices(tuned)]
    lost = [*_lost(cells)]
    failed = [f"{name} failed: {why}" for name, why in outcome.failed.items()]
    name = recipe_name(recipe)
    about = made(outcome.completed, recipe, options_of(seeds, overrides)) if outcome.completed else ""
    reasons = "\n".join(f"- {line}" for line in lost)
    write_page(
        target / f"{name}.md", f"# Board: {name}", about, *tables, MEANING, CLAIMED, *([reasons] if lost else [])
    )
    write_text(target / f"{name}.html", _html(name, about, tables, lost))
    if judged:
        told = [[table.title.partition(":")[0], *row] for table in judged for row in table.rows]
        write_text(target / f"{name}-claims.toml", tomli_w.dumps({"seeds": [*seeds], "verdicts": told}))
    return Report(tables, failed)


def _tuned(recipe: str, overrides: Mapping[str, Value], means: Means) -> dict[str, dict[str, Value]]:
    """Return the values that a tuning has chosen for each defence; {} without a table ``[tune.board]``."""
    if TABLE not in read_layers(recipe).tune:
        return {}
    tuning = tune(recipe, TABLE, overrides, means)
    tuning.require_choices()
    return {result.subject.name: result.best.values for result in tuning.results if result.best}


def _choices(tuned: Mapping[str, Mapping[str, Value]]) -> list[Table]:
    """Return a table of the values that were chosen for each defence, if any were."""
    keys = [*next(iter(tuned.values()), {})]
    rows = [[key, *(shown(values[key]) for values in tuned.values())] for key in keys]
    return [Table("Chosen while nobody attacks", ("key", *tuned), rows)] if rows else []


def _cell(own: Sequence[NamedRun], runs_dir: Path, outcome: Completion) -> Cell:
    """Return what the runs of a pair have shown."""
    completed = {path.name for path in outcome.completed}
    summaries = [read_summary(runs_dir / one.name) for one in own if one.name in completed]
    finals = {summary["seed"]: summary["final"].get("seen", {}) for summary in summaries}
    return Cell(finals, [outcome.failed[one.name] for one in own if one.name in outcome.failed])


def _lost(cells: Mapping[Pair, Cell]) -> Iterator[str]:
    """Yield a line for each pair with lost runs, with the first reason of the first of them."""
    for pair, cell in cells.items():
        if cell.lost:
            runs = len(cell.finals) + len(cell.lost)
            yield f"{pair}: {len(cell.lost)} of {runs} runs lost: {cell.lost[0].partition(';')[0]}"


def _claims(cells: Mapping[Pair, Cell]) -> Iterator[Table]:
    """Yield a table of verdicts on published claims for each share."""
    for share in dict.fromkeys(pair.share for pair in cells):

        def values(point: Point, share: float = share) -> dict[int, float] | None:
            own = cells.get(Pair(point.attack, point.defence, share))
            if own is None:
                return None
            return {seed: final[point.figure] for seed, final in own.finals.items() if point.figure in final}

        if rows := verdicts(values):
            yield Table(f"{share:.0%} attackers: do published claims hold?", CLAIM_HEAD, rows)


def _tables(cells: Mapping[Pair, Cell]) -> Iterator[Table]:
    """Yield a table for each share and figure: attacks, the worst first, against defences."""
    defences = list(dict.fromkeys(pair.defence for pair in cells))
    for share in dict.fromkeys(pair.share for pair in cells):
        own = {(pair.attack, pair.defence): found for pair, found in cells.items() if pair.share == share}
        yield Table(f"{share:.0%} attackers: the worst attack on each defence", WORST, _worst(own, defences))
        attacks = sorted({attack for attack, _ in own} - {""}, key=lambda attack: _mean(own, attack))
        for figure, title in FIGURES.items():
            rows = [
                [attack or NOBODY, *(own.get((attack, d), NOTHING).shown(figure) for d in defences)]
                for attack in ("", *attacks)
            ]
            rows = [row for row in rows if any(cell not in ("–", "lost") for cell in row[1:])]
            if rows:
                yield Table(f"{share:.0%} attackers: {title}", ("attack", *defences), rows)


def _worst(own: Mapping[tuple[str, str], Cell], defences: Sequence[str]) -> list[list[str]]:
    """Return a row for each defence, as in ``WORST``, the one that keeps most accuracy first."""
    rows = []
    for defence in defences:
        left = {a: value for (a, d), cell in own.items() if a and d == defence and (value := cell.left()) is not None}
        if left:
            worst = min(left, key=left.__getitem__)
            shown = [own.get((attack, defence), NOTHING).shown("accuracy") for attack in (worst, "")]
            rows.append((left[worst], [defence, worst, *shown]))
    return [row for _, row in sorted(rows, key=lambda row: -row[0])]


def _mean(own: Mapping[tuple[str, str], Cell], attack: str) -> float:
    left = [value for (one, _), cell in own.items() if one == attack and (value := cell.left()) is not None]
    return float(np.mean(left)) if left else 1.0


def _html(name: str, about: str, tables: Sequence[Table], lost: Sequence[str]) -> str:
    """Return the tables on one page, those of attacks as heat maps."""
    parts = []
    for table in tables:
        colour = _colour if table.head[0] == "attack" else None
        parts += [f"<h2>{escape(table.title)}</h2>", table_html(table, table.title, colour=colour)]
    return page_html(
        f"Board: {name}", "Attacks against defences", *parts, *map(_said, (about, MEANING, CLAIMED, *lost))
    )


def _said(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>'


def _colour(cell: str) -> str:
    """Return a colour from orange, 0, over white, 0.5, to blue, 1, which all eyes tell apart."""
    if cell == "–":
        return ""
    value = 0.0 if "lost" in cell else float(cell.split()[0])
    return f"hsl({210 if value > 0.5 else 30} 70% {97 - 44 * abs(value - 0.5):.0f}%)"
