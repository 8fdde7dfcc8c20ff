"""The report of a sweep: one figure of each variant over the values of a key, in a table and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import tomli_w
from matplotlib.ticker import MaxNLocator

from florilegium.apps.engines.base import Means
from florilegium.apps.reports.notes import notes
from florilegium.apps.reports.pairs import pairs
from florilegium.apps.reports.pictures import MARKERS, colour, plain
from florilegium.apps.reports.pools import Pool, Section, sections
from florilegium.apps.reports.run_records import load_run
from florilegium.apps.reports.statistics import Estimate
from florilegium.apps.reports.tables import PAIRS_MEANING, pairs_table, scale, shown
from florilegium.apps.reports.verdicts import HEAD, verdict
from florilegium.apps.reports.verdicts import MEANING as CLAIMED
from florilegium.apps.reports.writing import Report, remove_report
from florilegium.apps.runs.experiment import offered, recipe_name
from florilegium.apps.settings.configuration import TARGET, complete, defaults
from florilegium.apps.settings.idle import warn_of_idle_keys
from florilegium.apps.sweeps.named_runs import NamedRun, carry_out
from florilegium.apps.sweeps.sweep import Sweep, read_sweep, runs_of
from florilegium.common.errors import ConfigurationError
from florilegium.common.figures import ShownFigure
from florilegium.common.files import write_text
from florilegium.common.pages import Table, write_page, write_picture
from florilegium.common.settings import Value, folder
from florilegium.tasks.task import LOSS

Place = tuple[str, Value | None]
"""A variant's label and a value of the swept key; None without one."""


@dataclass(frozen=True)
class FinishedSweep:
    """A sweep whose runs have completed: the runs and their folders, its report, and the report's folder."""

    runs: Sequence[NamedRun]
    paths: Sequence[Path]
    report: Report
    folder: Path


def carry_out_sweep(
    recipe: str,
    name: str,
    overrides: Mapping[str, Value],
    means: Means,
    target: Path | None = None,
    *,
    html: bool = False,
) -> FinishedSweep:
    """Carry out those runs of a recipe's sweep that have not completed yet, and write the report on all.

    Args:
        recipe, name: a recipe and its sweep.
        overrides: keys that apply to all runs.
        means: how to carry them out.
        target: the report's folder; by default it lies beside the runs.
        html: whether to write ``report.html``, too.

    Raises:
        ConfigurationError: before the first run, if the configuration of one is wrong.
        RunError: after the last run, if one failed; finished runs are kept.
    """
    wanted, runs_dir = runs_of(recipe, name, overrides), folder(str(complete(overrides)["runs-dir"]))
    warn_of_idle_keys(overrides, [one.keys for one in wanted], offered(recipe))
    paths = carry_out(wanted, runs_dir, means).all()
    target = target or runs_dir / f"{recipe_name(recipe)}-{name}"
    title = f"{recipe_name(recipe)}: {name}"
    report = write_sweep(title, read_sweep(recipe, name), wanted, paths, target, html=html)
    return FinishedSweep(wanted, paths, report, target)


def write_sweep(
    title: str, sweep: Sweep, wanted: Sequence[NamedRun], paths: Sequence[Path], target: Path, *, html: bool = False
) -> Report:
    """Write ``report.md`` and ``report.png`` about the runs of a sweep to folder ``target``; return what it says.

    The first table shows the final figures of the sweep's group of clients: the mean over seeds and, with several
    seeds, its standard error; the second one the paired differences between variants.

    Args:
        title: the report's title.
        sweep: the sweep.
        wanted, paths: its runs and their folders.
        target: a folder.
        html: whether to write ``report.html``, too (:func:`florilegium.apps.reports.writing.write_report`).

    Raises:
        ConfigurationError: if a run lacks the sweep's group of clients or figure.
        RunError: if a run has not completed.
    """
    pools, figure = _pools(wanted, paths), ""
    for pool in pools.values():
        for run in pool.runs:
            final = run.summary["final"]
            if sweep.clients not in final:
                raise ConfigurationError(
                    f"sweep: run {run.path} has no figures of clients = '{sweep.clients}', only of {', '.join(final)}"
                )
            figure = sweep.figure or pool.main.shown(final[sweep.clients])
            if figure not in final[sweep.clients]:
                raise ConfigurationError(
                    f"sweep: run {run.path} has no figure = '{figure}', only {', '.join(final[sweep.clients])}"
                )
    found = {place: estimate for place, pool in pools.items() if (estimate := pool.figure(sweep.clients, figure))}
    labels, values = list(dict.fromkeys(label for label, _ in pools)), list(dict.fromkeys(value for _, value in pools))
    known = next(iter(pools.values())).main
    whole = figure == known.pooled
    words = f"{known.name}, weighted by test examples" if whole else figure.replace("_", " ")
    unit = words + (" (%)" if known.is_percent(figure) else "")
    rows = [
        [unit if value is None else str(value), *(shown(found[label, value], figure, known) for label in labels)]
        for value in values
    ]
    of = "" if sweep.clients == TARGET else f" of {sweep.clients} clients"
    several = any(len(pool.runs) > 1 for pool in pools.values())
    meaning = f"mean {unit}{of}" + ("; ± is the standard error over seeds" if several else "")
    main = Table(meaning, [sweep.over, *labels], rows)
    sections_of = [Section(tuple(pool for place, pool in pools.items() if place[1] == value)) for value in values]
    tables = [main]
    by_client, unweighted = (known.name if whole else figure), ", clients unweighted"  # a client has no weighted mean
    for value, section in zip(values, sections_of, strict=True):
        if sweep.clients != TARGET and (between := pairs(section, by_client, sweep.clients)):
            heading = f"{sweep.over} = {value}" if sweep.over else "paired differences"
            tables.append(pairs_table(between, heading + (unweighted if by_client != figure else "")))
    judged = [*_claims(sweep, pools, next((label for label in labels if label not in sweep.variants), ""))]
    tables += [Table("do published claims hold?", (sweep.over, *HEAD), judged)] if judged else []
    remarks = _remarks(sweep.over, dict(zip(values, sections_of, strict=True)))
    picture = _draw(found, labels, values, sweep.over, f"mean {unit}{of}", scale(figure, known)[0])
    remove_report(target)
    write_picture(picture, target / "report.png")
    report = Report(tables, remarks)
    if judged:
        write_text(target / "claims.toml", tomli_w.dumps({"over": sweep.over, "verdicts": judged}))
    about = Section(tuple(pools.values())).title(without=sweep.over)
    explained = [PAIRS_MEANING] if len(tables) > len(judged[:1]) + 1 else []
    explained += [CLAIMED] if judged else []
    runs = "\n".join(f"- `{path.name}`" for path in paths)
    parts = (f"# {title}", f"{about}.", report.markdown(), *explained, f"![{title}](report.png)", "Runs:", runs)
    write_page(target / "report.md", *parts)
    if html:
        from florilegium.apps.reports.html import FILE, Lead, write_html

        found_runs = [run for pool in pools.values() for run in pool.runs]
        write_html(sections(found_runs), [], target / FILE, title, [Lead(main, picture)])
    return report


def _remarks(over: str, sections: Mapping[Value | None, Section]) -> list[str]:
    """Return the remarks on the sections of a sweep, with the value of ``over`` where they are not on all of them."""
    found = {value: notes(section, [over]) for value, section in sections.items()}
    whole = [note for note in dict.fromkeys(chain(*found.values())) if all(note in own for own in found.values())]
    return [*whole, *(f"{over} = {value}: {note}" for value, own in found.items() for note in own if note not in whole)]


def _claims(sweep: Sweep, pools: Mapping[Place, Pool], plain: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for each value of the key and each claim: the value, and as in :data:`HEAD`.

    Args:
        sweep: the sweep.
        pools: its runs.
        plain: the label of the variant "".
    """
    for value in dict.fromkeys(value for _, value in pools):
        for claim in sweep.claims:
            better, worse = (pools[side or plain, value] for side in (claim.better, claim.worse))
            name = better.main.shown(better.runs[0].summary["final"][sweep.clients])
            lower = name == LOSS or not better.main.higher
            found = verdict(better.by_seed(sweep.clients, name), worse.by_seed(sweep.clients, name), lower=lower)
            yield "" if value is None else str(value), claim.paper, better.label, worse.label, *found


def _pools(wanted: Sequence[NamedRun], paths: Sequence[Path]) -> dict[Place, Pool]:
    """Return the runs of each place in the table, in the order of the sweep."""
    found: dict[Place, list[Path]] = {}
    for one, path in zip(wanted, paths, strict=True):
        label = one.variant or str(one.keys.get("method", defaults()["method"]))
        found.setdefault((label, one.value), []).append(path)
    return {place: Pool(place[0], tuple(map(load_run, own))) for place, own in found.items()}


def _draw(
    found: Mapping[Place, Estimate],
    labels: Sequence[str],
    values: Sequence[Value | None],
    over: str,
    title: str,
    factor: float,
) -> ShownFigure:
    """Plot a line per variant over the values of the key; a dot per variant if only variants are compared."""

    def means(places: Sequence[Place]) -> tuple[list[float], list[float]]:
        errors = [0.0 if np.isnan(found[place].error) else factor * found[place].error for place in places]
        return [factor * found[place].mean for place in places], errors

    if not over:
        figure = ShownFigure(6.8, 1.4 + 0.32 * len(labels))
        axes = figure.subplots()
        centres, errors = means([(label, None) for label in labels])
        places = list(range(len(labels)))
        axes.errorbar(centres, places, xerr=errors, fmt="o", capsize=3, color=colour(0))
        axes.set_yticks(places, labels)
        axes.invert_yaxis()
        axes.set_xlabel(title)
        axes.margins(x=0.08)
        plain(axes)
        return figure
    figure = ShownFigure(6.8, 4.4)
    axes = figure.subplots()
    numeric = all(isinstance(value, int | float) for value in values)
    x = [float(value) for value in values] if numeric else list(range(len(values)))  # type: ignore[arg-type]
    for index, label in enumerate(labels):
        centres, errors = means([(label, value) for value in values])
        axes.errorbar(
            x, centres, yerr=errors if any(errors) else None, marker=MARKERS[index % len(MARKERS)], markersize=4,
            capsize=2, label=label, color=colour(index),
        )  # fmt: skip
    if not numeric:
        axes.set_xticks(x, [str(value) for value in values])
    elif min(x) > 0 and max(x) / min(x) >= 10:
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{value:g}" for value in x], minor=False)
        axes.minorticks_off()
    elif all(isinstance(value, int) for value in values):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel=over, ylabel=title)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    plain(axes)
    return figure
