"""The tasks, losses and metrics in the documentation, from their declarations."""

from __future__ import annotations

from docs.generate.method_pages import table
from florilegium.tasks.measured import LOSSES, METRICS, Measured
from florilegium.tasks.registry import TASKS


def task_tables() -> str:
    """Return the tables of the suite's own tasks, losses and metrics in Markdown."""
    tasks = [(name, one) for name in TASKS.own if issubclass(one := TASKS[name], Measured)]
    first = [
        [f"`{name}`", one.title, one.wants, f"`{one.own_loss}`", ", ".join(f"`{metric}`" for metric in one.own_metrics)]
        for name, one in tasks
    ]
    losses = [
        [f"`{name}`", LOSSES[name].title, ", ".join(f"`{task}`" for task, one in tasks if one.form in LOSSES[name].of)]
        for name in LOSSES.own
    ]
    metrics = []
    for name in METRICS.own:
        metric = METRICS[name]
        shapes = [one(one.example).metric_shape for _, one in tasks if one.predicts in metric.fits]
        made = metric(shapes[0])
        metrics.append([
            f"`{name}`", metric.title, "larger" if made.figure.higher else "smaller",
            f"`{name}_{made.figure.pooled}`" if made.columns else "none: clients' values are averaged",
            ", ".join(f"`{task}`" for task, one in tasks if one.predicts in metric.fits),
        ])  # fmt: skip
    return "\n".join(
        (
            "### All tasks\n\n"
            + table(["`task`", "what it does", "targets", "loss", "figures, the main one first"], first),
            "### All losses\n\n" + table(["`loss`", "what it is", "tasks"], losses),
            "### All metrics\n\n"
            + table(["`metrics`", "what it is", "better", "of all examples together", "tasks"], metrics),
        )
    )
