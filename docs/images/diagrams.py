"""The diagrams of the documentation: boxes and arrows as SVG. ``draw.py`` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from themes import HERE, THEMES, Theme


class Sheet:
    """An SVG that is drawn part by part.

    Args:
        width, height: size in pixels.
        theme: its colours.
    """

    def __init__(self, width: int, height: int, theme: Theme) -> None:
        self.theme = theme
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif">',
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" fill="{theme.muted}"/></marker></defs>',
        ]

    def text(
        self, x: float, y: float, words: str, *, size: float = 12, bold: bool = False, colour: str = "",
        anchor: str = "middle",
    ) -> None:  # fmt: skip
        """Write one line around, from or up to (x, y)."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{weight} text-anchor="{anchor}" '
            f'fill="{colour or self.theme.text}">{escape(words, quote=False)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, title: str = "", lines: Sequence[str] = (), *,
        colour: str, dashed: bool = False,
    ) -> None:  # fmt: skip
        """Draw a box with a title and lines below it."""
        dashes = ' stroke-dasharray="6 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" fill="{colour}" '
            f'fill-opacity="{0.04 if dashed else 0.1}" stroke="{colour}" stroke-width="1.4"{dashes}/>'
        )
        if title:
            self.text(x + width / 2, y + 24, title, size=13, bold=True)
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + 46 + 17 * number, line, colour=self.theme.muted)

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, words: str = "", *, below: bool = False, both: bool = False
    ) -> None:
        """Draw an arrow with words above or below its middle."""
        start = ' marker-start="url(#arrow)"' if both else ""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{self.theme.muted}" stroke-width="1.6" '
            f'marker-end="url(#arrow)"{start}/>'
        )
        if words:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 + (17 if below else -8), words)

    def end(self) -> str:
        """Return the SVG."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def architecture(theme: Theme) -> Sheet:
    """Three ways through the code: a setting, the model's arrays, a row of data."""
    sheet = Sheet(1290, 492, theme)
    ways: list[tuple[str, str, list[tuple[str, list[str]]]]] = [
        ("A setting", theme.blue, [
            ("key(default, meaning)", ["in a Section: */settings.py,", "clients/hyper/"]),
            ("generated", ["pyproject.toml, docs,", "florilegium keys"]),
            ("recipe, --set", ["apps/runs/experiment.py"]),
            ("parse", ["apps/settings: Settings", "and hyper, checked"]),
            ("assemble", ["apps/assembly puts", "every run together"]),
            ("self.settings, self.hyper", ["in strategy and client"]),
        ]),
        ("The model's arrays", theme.amber, [
            ("train_round(round, model)", ["strategies/<method>.py"]),
            ("round.ask(phase, …)", ["strategies/core/round.py:", "checked, packed"]),
            ("one message per node", ["clients/core/wire.py"]),
            ("Host: client by client", ["clients/node/host.py"]),
            ("@phase train(arrays, …)", ["clients/<method>.py", "returns an Answer"]),
            ("Σ wᵢ·(returned − sent)", ["clients/core/reduce.py;", "round.ask returns it"]),
        ]),
        ("A row of data", theme.green, [
            ("parquet, hub, or made", ["a DatasetSpec in", "partitions/datasets.py"]),
            ("decode", ["partitions/sources/: arrays,", "memory-mapped in cache-dir"]),
            ("partition", ["partitions/partitioners/:", "index tables"]),
            ("Federation", ["partitions/federation.py:", "who holds which rows"]),
            ("ClientData", ["partitions/clientdata.py:", "train, test, validation"]),
            ("a batch", ["clients/core/training.py:", "the one training loop"]),
        ]),
    ]  # fmt: skip
    for row, (name, colour, steps) in enumerate(ways):
        top = 158 * row
        sheet.text(24, top + 34, name, size=17, bold=True, colour=colour, anchor="start")
        for place, (title, lines) in enumerate(steps):
            x = 24 + 210 * place
            sheet.box(x, top + 46, 190, 92, title, lines, colour=colour)
            if place:
                sheet.arrow(x - 19, top + 92, x - 2, top + 92)
    return sheet


def exchange(theme: Theme) -> Sheet:
    """One exchange: a request to each node, the node's clients one by one, one sum back."""
    sheet = Sheet(1000, 450, theme)
    sheet.box(20, 90, 210, 250, "server", ["strategy: train_round"], colour=theme.blue)
    steps = ("1. samples a cohort", "2. sends the model", "5. checks replies", "6. adds up sums", "7. moves the model")
    for number, line in enumerate(steps):
        sheet.text(38, 172 + 32 * number, line, size=12.5, anchor="start")
    for number, clients in enumerate((("3", "8", "12"), ("1", "5"))):
        top = 20 + 210 * number
        middle = top + 95
        sheet.box(440, top, 540, 180, colour=theme.amber)
        sheet.text(710, top + 22, f"node {number + 1}", size=13, bold=True)
        sheet.arrow(234, middle - 16, 436, middle - 16, "phase, clients, arrays")
        sheet.arrow(436, middle + 16, 234, middle + 16, "one sum, metrics, failures", below=True)
        for place, client in enumerate(clients):
            work = "3. trains", "on its", "own data"
            sheet.box(460 + 100 * place, top + 42, 88, 120, f"client {client}", work, colour=theme.green)
        sheet.arrow(764, middle, 796, middle)
        sheet.box(800, top + 62, 164, 74, "4. reduce", ["Σ wᵢ·(returned − sent)"], colour=theme.amber)
    note = "In a simulation a node is a worker process; on devices, each device is a node with one client."
    sheet.text(710, 436, note)
    return sheet


def engines(theme: Theme) -> Sheet:
    """The same strategy and client code under both engines of a simulation, and on devices."""
    sheet = Sheet(1000, 350, theme)
    ways = [
        ("simulation, engine process", "florilegium run", "the calling process", "worker processes"),
        ("simulation, engine ray", "florilegium run, flwr run", "SuperLink, Flower's ServerApp", "Ray actors"),
        ("real devices", "flwr run", "SuperLink, with TLS and keys", "SuperNodes"),
    ]
    for place, (name, command, where, nodes) in enumerate(ways):
        x = 20 + 327 * place
        sheet.text(x + 153, 30, name, size=15, bold=True, colour=theme.blue)
        sheet.text(x + 153, 52, command, size=12, colour=theme.muted)
        lines = where, "cohorts, sums, checkpoints"
        sheet.box(x, 68, 306, 92, "strategy of the method", lines, colour=theme.blue)
        sheet.arrow(x + 153, 164, x + 153, 212, both=True)
        sheet.text(x + 163, 192, "one message per node", anchor="start")
        for copy in range(3):
            sheet.box(x + 104 * copy, 216, 98, 46, colour=theme.amber)
            sheet.text(x + 104 * copy + 49, 244, "client code", size=12)
        sheet.text(x + 153, 286, nodes, size=13, bold=True)
        hosts = "one device, one client each" if name == "real devices" else "many clients each"
        sheet.text(x + 153, 305, hosts, colour=theme.muted)
    sheet.text(500, 338, "Strategy and client code are the same in all three.", size=13)
    return sheet


def trust(theme: Theme) -> Sheet:
    """What leaves a device and what the server sees, by kind of protection."""
    sheet = Sheet(1000, 470, theme)
    for x, words in ((120, "protection"), (395, "device"), (690, "server"), (910, "published models")):
        sheet.text(x, 28, words, size=14, bold=True, colour=theme.muted)
    client, example = "client protected", "example protected"
    rows = [
        ("none", "sends its update", "update", "sees each update", "no bound", theme.red),
        ("privacy.unit = client", "clips its update", "clipped update", "sums, adds noise", client, theme.blue),
        ("privacy.unit = example", "adds noise", "noisy update", "sees noisy updates", example, theme.green),
        ("secure-aggregation", "masks its update", "masked update", "sees the sum alone", "no bound", theme.amber),
        ("both, noise-at = device", "adds noise, masks", "masked update", "sees a private sum", client, theme.green),
    ]
    for number, (name, does, sent, sees, models, colour) in enumerate(rows):
        top = 44 + 84 * number
        sheet.text(24, top + 42, name, size=13, bold=True, anchor="start")
        sheet.box(290, top, 210, 66, colour=theme.muted)
        sheet.text(395, top + 28, "the data stay here", colour=theme.muted)
        sheet.text(395, top + 48, does)
        sheet.arrow(504, top + 36, 596, top + 36, sent)
        sheet.box(600, top, 180, 66, colour=colour)
        sheet.text(690, top + 38, sees)
        sheet.arrow(784, top + 36, 836, top + 36)
        sheet.text(910, top + 41, models, colour=colour, bold=True)
    return sheet


DIAGRAMS: dict[str, Callable[[Theme], Sheet]] = {
    "architecture": architecture, "exchange": exchange, "engines": engines, "trust": trust,
}  # fmt: skip


def write_diagram(name: str) -> None:
    """Write ``<name>.svg`` and ``<name>-dark.svg``."""
    for theme in THEMES:
        path = HERE / f"{name}{theme.suffix}.svg"
        path.write_text(DIAGRAMS[name](theme).end(), encoding="utf-8")
        print(path)
