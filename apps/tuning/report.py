"""The page about a tuning: which values were chosen, what they are better than, and how the trials went."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from florilegium.apps.reports.pictures import MARKERS, colour
from florilegium.apps.settings.configuration import complete
from florilegium.apps.tuning.results import Result, Tuning, shown
from florilegium.common.figures import ShownFigure
from florilegium.common.pages import Table, markdown, write_page, write_picture


def write_tuning(tuning: Tuning) -> None:
    """Write ``report.md``, ``report.png`` and ``report.svg`` to the tuning's folder."""
    folder, figure = tuning.plan.folder, plot_tuning(tuning)
    for kind in ("png", "svg"):
        write_picture(figure, folder / f"report.{kind}")
    write_page(
        folder / "report.md",
        f"# Tuning of {tuning.plan.title}", about(tuning), markdown(choices(tuning)),
        "![Best objective over the trials](report.png)",
        "Filled marks are trials that completed, hollow ones were ended early, crosses at the bottom failed.",
        "## Importance of the keys", _importances(tuning), "## Notes", "\n".join(_notes(tuning)),
    )  # fmt: skip


def choices(tuning: Tuning) -> Table:
    """Return the chosen values of each method as a table, with their objective and the recipe's own."""
    rows = []
    for result in tuning.results:
        best = result.best
        chosen = ", ".join(f"{key} = {shown(value)}" for key, value in best.values.items()) if best else "none"
        objectives = [_number(tuning, best.objective if best else None), _number(tuning, result.trials[0].objective)]
        counts = [str(result.count(state)) for state in ("complete", "pruned", "failed")]
        rows.append([result.subject.name, chosen, *objectives, *counts])
    head = ["method", "chosen", "objective", "recipe's own", "completed", "ended early", "failed"]
    return Table("", head, rows)


def plot_tuning(tuning: Tuning) -> Figure:
    """Return a figure: each method's best objective so far over its trials, and the importances of its keys.

    A filled mark is a trial that completed, a hollow one a trial that was ended early, a cross at the bottom one that
    failed.
    """
    keys = list(dict.fromkeys(key for result in tuning.results for key in result.importances))
    figure = ShownFigure(11 if keys else 7, 4.4)
    curves, *bars = figure.subplots(1, 2 if keys else 1, squeeze=False)[0]
    for index, result in enumerate(tuning.results):
        _draw_curve(curves, index, result, _unit(tuning)[0])
    curves.set(xlabel="trial (0: the recipe's own values)", ylabel=_unit(tuning)[1], title="Best objective so far")
    measured = any(trial.objective is not None for result in tuning.results for trial in result.trials)
    if measured and not tuning.plan.objective.higher:
        curves.set_yscale("log")  # a few trials are often far worse than all others
    curves.xaxis.set_major_locator(MaxNLocator(integer=True))
    if measured and any(result.count("failed") for result in tuning.results):
        below = (0, -0.04 * len(tuning.results) - 0.02)  # a line of crosses for each method, under all that is drawn
        curves.set_ylim(curves.transData.inverted().transform(curves.transAxes.transform(below))[1])
    figure.legend(*curves.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    if bars:
        _draw_importances(bars[0], tuning, keys)
    for axes in (curves, *bars):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_curve(axes: Axes, index: int, result: Result, scale: float) -> None:
    own, marker = colour(index), MARKERS[index % len(MARKERS)]
    best = [float("nan") if value is None else scale * value for value in result.curve()]
    axes.plot(range(len(best)), best, drawstyle="steps-post", color=own, marker=marker, markevery=[0], markersize=5,
              label=result.subject.name)  # fmt: skip
    for state, face in (("complete", own), ("pruned", "none")):
        points = [(trial.number, trial.objective) for trial in result.trials if trial.state == state]
        values = [scale * value for _, value in points if value is not None]
        axes.scatter([number for number, _ in points], values, s=26, marker=marker, facecolors=face, edgecolors=own)
    failed = [trial.number for trial in result.trials if trial.state == "failed"]
    bottom = axes.get_xaxis_transform()
    axes.plot(failed, [0.02 + 0.03 * index] * len(failed), "x", color=own, transform=bottom)
    axes.grid(alpha=0.3)


def _draw_importances(axes: Axes, tuning: Tuning, keys: list[str]) -> None:
    known = [(index, result) for index, result in enumerate(tuning.results) if result.importances]
    height = 0.8 / len(known)
    for place, (index, result) in enumerate(known):
        y = [row + (place - (len(known) - 1) / 2) * height for row, key in enumerate(keys) if key in result.importances]
        shares = [result.importances[key] for key in keys if key in result.importances]
        axes.barh(y, shares, height, color=colour(index), label=result.subject.name)
    axes.set_yticks(range(len(keys)), keys)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="share of the objective's variance", title="Importance of the keys")
    axes.grid(alpha=0.3, axis="x")


def _unit(tuning: Tuning) -> tuple[float, str]:
    """Return the factor and the name with which the objective is shown."""
    words = f"{tuning.plan.table.figure.replace('_', ' ')}, mean of seen clients"
    return (100, f"{words} (%)") if tuning.plan.objective.percent else (1, words)


def _number(tuning: Tuning, value: float | None) -> str:
    if value is None:
        return "none"
    return f"{_unit(tuning)[0] * value:.{1 if tuning.plan.objective.percent else 4}f}"


def about(tuning: Tuning) -> str:
    """Return in words how many trials there were, of what, and what they were judged by."""
    plan = tuning.plan
    config = complete(plan.subjects[0].keys)
    few = "At most " if any(len(result.trials) < plan.table.trials for result in tuning.results) else ""
    clients = max((trial.clients for result in tuning.results for trial in result.trials), default=0)
    rounds = sorted({int(complete(subject.keys)["rounds"]) for subject in plan.subjects})
    seeds = plan.subjects[0].seeds
    of = f"one seed ({seeds[0]})" if len(seeds) == 1 else f"mean over seeds {', '.join(map(str, seeds))}"
    return (
        f"{few}{plan.table.trials} trials of every method, of {' or '.join(map(str, rounds))} rounds each. The "
        f"objective is the {_unit(tuning)[1]}: {clients} clients of {config['dataset']}, partitioner "
        f"{config['partitioner']}, model {config['model']}, {of}. It is measured on "
        f"{config['validation-fraction']:.0%} of each client's training examples, held back from training. No test "
        "example was read."
    )


def _importances(tuning: Tuning) -> str:
    known = [result for result in tuning.results if result.importances]
    if not known:
        return "Unknown: the objective did not vary over two completed trials of a method."
    keys = list(dict.fromkeys(key for result in known for key in result.importances))
    rows = [
        [result.subject.name, *(f"{result.importances[key]:.2f}" if key in result.importances else "" for key in keys)]
        for result in known
    ]
    said = "Share of the objective's variance over the completed trials, by fANOVA (Hutter et al. 2014)."
    return f"{said}\n\n{markdown(Table('', ['method', *keys], rows))}"


def _notes(tuning: Tuning) -> Iterator[str]:
    yield from (f"- {warning}" for warning in tuning.warnings())
    for result in tuning.results:
        for trial in result.trials:
            if trial.state == "failed":
                values = ", ".join(f"{key} = {shown(value)}" for key, value in trial.values.items())
                yield f"- {result.subject.name}, trial {trial.number} ({values}) failed: {trial.reason}"
    yield "- Trial 0 has the recipe's own values, so that no choice is worse than these in the objective."
    yield "- A trial is ended early if its best evaluation so far is worse than the median of the others at that round."
    yield "- The best of many trials looks better than it is: compare methods on test examples, with other seeds too."
    yield "- `tuned.toml` has the choices for `florilegium compare --tuned`."
