"""What an HTML page holds besides words: pictures that follow the reader's theme, and their numbers as CSV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from florilegium.common.layout import csv_uri, data_uri

_DARK = (
    "<style>@media screen and (prefers-color-scheme: dark) { svg { fill: #e4e8ec } "
    '[style*="stroke: #000000"], [style*="stroke: #b0b0b0"] { stroke: #aeb7c0 !important } '
    '[style*="fill: #000000"] { fill: #e4e8ec !important } }</style>'
)
"""What turns matplotlib's black letters and lines light where the page is dark; colours of methods suit both."""


@dataclass(frozen=True)
class Picture:
    """A vector picture as a data URI, with a text for readers who do not see it.

    Attributes:
        source: the picture.
        text: what it shows.
        csv: its numbers, as a data URI; "" if it has none that a table lacks.
        panel: whether it needs a light background, as heat maps do.
    """

    source: str
    text: str
    csv: str = ""
    panel: bool = False


def picture_of(figure: Figure, text: str) -> Picture:
    """Return a figure as SVG in a data URI: an image of its own, so that names in it do not clash with others'."""
    panel = any(axes.images for axes in figure.axes)
    for axes in () if panel else figure.axes:
        axes.patch.set_visible(False)  # the page's own background
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": text}):  # the same report twice is the same file
        figure.savefig(drawn, format="svg", metadata={"Date": None}, facecolor="white" if panel else "none")
    svg = drawn.getvalue()
    if not panel:
        end = svg.index(">", svg.index("<svg")) + 1
        svg = svg[:end] + _DARK + svg[end:]
    return Picture(data_uri("image/svg+xml", svg), text, _numbers(figure), panel)


def _numbers(figure: Figure) -> str:
    """Return the points of a figure's named lines, or the values of its image, as CSV in a data URI; "" for neither."""
    rows: list[Sequence[object]] = []
    for axes in figure.axes:
        names = (axes.get_ylabel() or "y", axes.get_xlabel().partition("\n")[0] or "x")
        for image in axes.images:
            values: Any = np.ma.filled(np.ma.asarray(image.get_array()), 0)
            rows += [(*names, "value"), *((*at, value) for at, value in np.ndenumerate(values))]
        lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
        if lines and not rows:
            rows.append(("line", *names[::-1]))
        rows += [
            (line.get_label(), x, y)
            for line in lines
            for x, y in zip(*(np.asarray(data).tolist() for data in line.get_data()), strict=True)
        ]
    return csv_uri(rows) if rows else ""
