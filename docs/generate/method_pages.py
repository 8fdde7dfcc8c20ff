"""The methods' facts in the documentation, from the declarations: the table of each page, and the index of all.

A page of ``docs/methods`` names its methods between two marker lines (:data:`FACTS`); what stands between them is
generated (:mod:`docs.generate`), so that page and code agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from florilegium.apps.assembly.task_checks import learns
from florilegium.apps.methods.declaration import Method
from florilegium.apps.methods.layers import LAYERS, why_not
from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.settings.keys import method_keys
from florilegium.common.errors import ConfigurationError
from florilegium.tasks.measured import Measured
from florilegium.tasks.registry import TASKS

FACTS = re.compile(r"(<!-- begin generated facts: ([^>]+) -->\n).*?(<!-- end generated -->\n)", re.DOTALL)
"""What is generated in a page: the first marker, the methods that it names, the second marker."""
OF_LAYERS = re.compile(r"(<!-- begin generated layers: ([^>]+) -->\n).*?(<!-- end generated -->\n)", re.DOTALL)
"""What is generated of one of :data:`LAYERS` or of "all" in a page: first marker, layer, second marker."""
RESULTS = re.compile(r"Results: \[[^\]]+\]\((\.\./results/[^)\s]+)\)")
"""How a page names its results."""
LEARNS = {"clustering": "clusters", "histograms": "how clients differ", "columns": "what columns hold"}


def _learned(method: str) -> str:
    """Return what a method learns: the tasks that it can learn with its default keys, or something else."""
    if (other := METHODS[method].task) in LEARNS:
        return LEARNS[other]
    tasks = {name: one for name in TASKS.own if issubclass(one := TASKS[name], Measured)}
    return ", ".join(name for name, task in tasks.items() if learns(method, task(task.example)))


@dataclass(frozen=True)
class Page:
    """A page about one or several methods.

    Attributes:
        name: the file's name in ``docs/methods``.
        methods: the names of its methods.
        results: the page of their results, relative to ``docs/methods``; "" without one.
    """

    name: str
    methods: tuple[str, ...]
    results: str


def read_page(path: Path, text: str) -> Page:
    """Read from the text of the page ``path`` which methods it is about.

    Raises:
        ConfigurationError: if the page lacks the two marker lines, or names an unknown method.
    """
    marked, results = FACTS.search(text), RESULTS.search(text)
    if marked is None:
        raise ConfigurationError(
            f"{path}: '<!-- begin generated facts: METHOD, … -->', '<!-- end generated -->' expected"
        )
    methods = tuple(name.strip() for name in marked[2].split(","))
    if unknown := [name for name in methods if name not in METHODS]:
        raise ConfigurationError(f"{path}: there is no method '{unknown[0]}'")
    return Page(path.name, methods, results[1] if results else "")


def new_page(name: str) -> str:
    """Return the beginning of a page about a method that has none: to be written on, with what is generated in it."""
    method = METHODS[name]
    marks = f"<!-- begin generated facts: {name} -->\n<!-- end generated -->\n"
    return f"# {name}\n\n{method.title}.\n\n{method.source}.\n\n{marks}"


def with_pages(site: str, pages: Sequence[Path]) -> str:
    """Return the site's configuration whose navigation names all pages about methods: new ones follow the others."""
    entries = [f"      - {page.stem}: methods/{page.name}\n" for page in pages if f"methods/{page.name}\n" not in site]
    end = site.index("\n", site.rindex(" methods/")) + 1
    return site[:end] + "".join(entries) + site[end:]


def with_facts(text: str) -> str:
    """Return the text of a method's page with its table of facts renewed."""
    return FACTS.sub(
        lambda marked: marked[1] + _facts([name.strip() for name in marked[2].split(",")]) + marked[3], text
    )


def index(pages: Sequence[Page]) -> str:
    """Return the table of all methods in Markdown, in the order of the registry.

    Raises:
        ConfigurationError: unless each of the suite's own methods has exactly one page.
    """
    rows = []
    for name in METHODS.own:
        own = [page for page in pages if name in page.methods]
        if len(own) != 1:
            raise ConfigurationError(f"docs/methods: one page about '{name}' expected (found: {len(own)})")
        method, page = METHODS[name], own[0]
        results = f"[results]({page.results})" if page.results else ""
        rows.append([f"[`{name}`]({page.name})", method.title, method.source, results])
    return table(["method", "what it is", "paper", "results"], rows)


def with_layers(text: str) -> str:
    """Return a page's text with what it says of layers and methods renewed: lists of one layer, a table of all."""
    return OF_LAYERS.sub(lambda m: m[1] + (_all_layers() if m[2] == "all" else _of_layer(m[2])) + m[3], text)


def _all_layers() -> str:
    rows = [[f"`{n}`", *(_kept(METHODS[n], layer).partition(":")[0] for layer in LAYERS)] for n in METHODS.own]
    return table(["method", *LAYERS], rows)


def _of_layer(layer: str) -> str:
    """Return with which methods a layer goes, and with which it does not, by reason."""
    methods: dict[str, list[str]] = {"": []}
    for name in METHODS.own:
        methods.setdefault(why_not(METHODS[name], layer), []).append(f"`{name}`")
    goes, *others = (f"{', '.join(names)}{f': {reason}' * bool(reason)}" for reason, names in methods.items())
    return f"With the methods' default keys: {goes}.\n\nNot supported:\n\n" + "".join(f"- {one}\n" for one in others)


def _facts(names: Sequence[str]) -> str:
    methods = [METHODS[name] for name in names]
    rows = [
        ["what it is", *(method.title for method in methods)],
        ["paper", *(method.source for method in methods)],
        ["learns", *(_learned(name) for name in names)],
        ["new clients use", *(method.new_clients for method in methods)],
        ["own keys", *(_keys(name) for name in names)],
        *([layer, *(_kept(method, layer) for method in methods)] for layer in LAYERS),
        ["first run", *(_first_run(name) for name in names)],
        ["code", *(_code(method) for method in methods)],
    ]
    return table(["", *(f"`{name}`" for name in names)], rows)


def _first_run(name: str) -> str:
    keys = {"method": name, **METHODS[name].first}
    return f"`florilegium run {' '.join(f'--set {key}={value}' for key, value in keys.items())}`"


def _kept(method: Method, layer: str) -> str:
    """Return whether a layer goes with a method with its default keys, and the reason if not."""
    broken = why_not(method, layer)
    return f"no: {broken}" if broken else "yes"


def _keys(name: str) -> str:
    if not method_keys(name):
        return "none"
    table = table_of(name)
    sharing = ", ".join(other for other in METHODS.own if table_of(other) == table)
    anchor = re.sub(r"[^\w\- ]", "", f"table-{table}-{sharing}").replace(" ", "-")
    return f"[`{table}.…`](../configuration.md#{anchor})"


def _code(method: Method) -> str:
    files = {reference.partition(":")[0] for reference in method.references[:2]}
    return ", ".join(f"`{module.removeprefix('florilegium.').replace('.', '/')}.py`" for module in sorted(files))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
