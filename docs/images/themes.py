"""The two themes of the documentation's pictures, for light and for dark pages; backgrounds are transparent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Theme:
    """Colours of a picture.

    Args:
        suffix: added to the file's name.
        text, muted: colours of words, and of lines and small print.
        panel: background of heat maps, whose colours suit light surfaces.
        blue, amber, green, red: colours that tell parts apart.
    """

    suffix: str
    text: str
    muted: str
    panel: str
    blue: str
    amber: str
    green: str
    red: str


THEMES = (
    Theme("", "#1f2328", "#59636e", "none", "#0969da", "#9a6700", "#1a7f37", "#cf222e"),
    Theme("-dark", "#e6edf3", "#9198a1", "#d1d9e0", "#58a6ff", "#d29922", "#3fb950", "#f85149"),
)


def write_figure(name: str, draw: Callable[[], Figure], *, heat_map: bool = False) -> None:
    """Write ``<name>.svg`` and ``<name>-dark.svg``: what ``draw`` returns under the settings of each theme."""
    for theme in THEMES:
        settings = {
            "figure.facecolor": "none", "axes.facecolor": theme.panel if heat_map else "none",
            "savefig.facecolor": "none", "text.color": theme.text, "axes.labelcolor": theme.text,
            "axes.titlecolor": theme.text, "axes.edgecolor": theme.muted, "xtick.color": theme.muted,
            "ytick.color": theme.muted, "xtick.labelcolor": theme.text, "ytick.labelcolor": theme.text,
            "grid.color": theme.muted, "legend.labelcolor": theme.text, "svg.hashsalt": name,
        }  # fmt: skip
        with mpl.rc_context(settings):
            path = HERE / f"{name}{theme.suffix}.svg"
            draw().savefig(path, format="svg", dpi=130, metadata={"Date": None})
            lines = path.read_text(encoding="utf-8").splitlines()  # matplotlib ends some lines with a space
            path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")
            print(path)
