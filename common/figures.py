"""Figures that a notebook shows as pictures, also where it has never imported ``matplotlib.pyplot``."""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure outside pyplot's list of open ones; the last line of a notebook's cell shows it.

    Args:
        width, height: size in inches.
    """

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        """Return the figure as PNG; IPython calls this unless pyplot has told it how to draw figures."""
        picture = io.BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()
