"""How the clients' main figures are spread, over the rounds so far: their mean, standard deviation and worst tenth."""

from __future__ import annotations

from matplotlib.ticker import MaxNLocator

from florilegium.apps.reports.pictures import colour, curve, plain, reader
from florilegium.apps.reports.pools import GROUPS, Pool
from florilegium.common.figures import ShownFigure


def plot_spread(pool: Pool) -> ShownFigure | None:
    """Draw for each group of clients the mean with a band of the standard deviation, and the mean of the worst tenth.

    Args:
        pool: a single run with its metrics.

    Returns:
        The picture; None if no evaluation has any of these figures.
    """
    main = pool.main
    figure = ShownFigure(4.8, 3.4)
    axes = figure.subplots()
    for index, group in enumerate(GROUPS):
        rounds, mean, _ = curve(pool, reader(group, main.name, main), "round")
        spread, worst = (curve(pool, reader(group, name, main), "round") for name in ("std", "worst_decile"))
        if len(spread[0]) != len(rounds) or not len(rounds):
            continue
        own = colour(index)
        axes.plot(rounds, mean, "-", marker=".", color=own, label=f"{group}: mean")
        axes.fill_between(rounds, mean - spread[1], mean + spread[1], color=own, alpha=0.2, linewidth=0)
        axes.plot(worst[0], worst[1], "--", marker=".", color=own, label=f"{group}: worst tenth")
    if not axes.lines:
        return None
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set(xlabel="round", ylabel=f"{main.name.replace('_', ' ')}{' (%)' if main.percent else ''} of clients")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    plain(axes)
    return figure
