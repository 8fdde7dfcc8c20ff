"""``python -m docs.generate``: generate parts of a checkout's files from the declarations of the keys.

These parts are ``[tool.flwr.app.config]`` in ``pyproject.toml``, which Flower needs; the tables of keys, methods,
commands, networks, tasks and adapters in ``docs/configuration.md``, ``docs/methods/README.md``, ``docs/commands.md``,
``docs/models.md``, ``docs/tasks.md``, ``docs/adapters.md``, ``docs/attacks.md`` and ``docs/robust.md``; the facts at
the head of each method's page; which methods a layer goes with, in the pages about layers; and the tables of
``findings/README.md``, ``docs/surprises.md``, ``docs/versions.md``, ``docs/stability.md`` and ``docs/upgrading.md``.
All stand between two marker lines; a test compares them with the declarations. A method without a page gets the
beginning of one, and an entry in the navigation of ``mkdocs.yml``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generate.adapter_pages import adapter_table
from docs.generate.command_pages import command_reference
from docs.generate.finding_pages import findings_table, read_findings, surprises_tables
from docs.generate.method_pages import index, new_page, read_page, with_facts, with_layers, with_pages
from docs.generate.public_pages import public_tables
from docs.generate.release_pages import upgrade_tables
from docs.generate.robust_pages import attack_table, rule_table
from docs.generate.task_pages import task_tables
from docs.generate.version_pages import version_tables
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.origins.package import checkout
from florilegium.apps.settings.keys import groups
from florilegium.common.errors import ConfigurationError
from florilegium.common.files import write_text
from florilegium.models.networks import NETWORKS

TOML_MARKS = ("# begin generated: python -m docs.generate\n", "# end generated\n")
MARKDOWN_MARKS = ("<!-- begin generated: python -m docs.generate -->\n", "<!-- end generated -->\n")


def config_tables() -> str:
    """Return the TOML of ``[tool.flwr.app.config]`` with every key and its default."""
    lines, present = ["[tool.flwr.app.config]"], ""
    for group in groups():
        if group.table != present:
            lines += ["", f"[tool.flwr.app.config.{group.table}]"]
            present = group.table
        elif not group.table:
            lines.append(f"# {group.title}")
        lines += [f"{key.name.removeprefix(f'{group.table}.')} = {key.shown_default}" for key in group.keys]
    return "\n".join(lines) + "\n"


def key_tables() -> str:
    """Return the tables of keys in Markdown, a section for each group."""
    parts = []
    for group in groups():
        rows = [f"| `{key.name}` | {key.values} | `{key.shown_default}` | {key.meaning} |" for key in group.keys]
        table = f"Table `{group.table}`: " if group.table else ""
        parts.append("\n".join([f"### {table}{group.title}", "", "| key | values | default | meaning |",
                                "|---|---|---|---|", *rows]) + "\n")  # fmt: skip
    return "\n".join(parts)


def network_table() -> str:
    """Return the table of the suite's own networks in Markdown, as their docstrings describe them."""
    facts = {name: (NETWORKS[name].__doc__ or "").partition("\n")[0].replace("``", "`") for name in NETWORKS.own}
    return "\n".join(["| `model` | |", "|---|---|", *(f"| `{name}` | {fact} |" for name, fact in facts.items())]) + "\n"


def replaced(text: str, marks: tuple[str, str], content: str, where: str) -> str:
    """Return ``text`` with ``content`` in place of what stands between the two ``marks``.

    Raises:
        ConfigurationError: unless both marks occur in this order, the first of them once; the message names ``where``.
    """
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end or marks[0] in rest:
        raise ConfigurationError(f"{where}: expected the line '{marks[0].strip()}' and then '{marks[1].strip()}'")
    return before + begin + content + end + after


def generated(root: Path) -> dict[Path, str]:
    """Return the expected content of each file of the checkout ``root`` that has generated parts.

    Methods without a page get one, in the site's navigation too.
    """
    docs = root / "docs"
    texts = {path: path.read_text("utf-8") for path in sorted((docs / "methods").glob("*.md")) if path.stem != "README"}
    written = {name for path, text in texts.items() for name in read_page(path, text).methods}
    texts |= {docs / "methods" / f"{name}.md": new_page(name) for name in METHODS.own if name not in written}
    pages = [read_page(path, text) for path, text in texts.items()]
    findings = read_findings(root)
    wanted = {
        root / "pyproject.toml": (TOML_MARKS, config_tables()),
        docs / "configuration.md": (MARKDOWN_MARKS, key_tables()),
        docs / "commands.md": (MARKDOWN_MARKS, command_reference()),
        docs / "models.md": (MARKDOWN_MARKS, network_table()),
        docs / "tasks.md": (MARKDOWN_MARKS, task_tables()),
        docs / "adapters.md": (MARKDOWN_MARKS, adapter_table()),
        docs / "attacks.md": (MARKDOWN_MARKS, attack_table()),
        docs / "robust.md": (MARKDOWN_MARKS, rule_table()),
        docs / "versions.md": (MARKDOWN_MARKS, version_tables()),
        docs / "stability.md": (MARKDOWN_MARKS, public_tables(root)),
        docs / "upgrading.md": (MARKDOWN_MARKS, upgrade_tables(root)),
        docs / "surprises.md": (MARKDOWN_MARKS, surprises_tables(findings)),
        root / "findings" / "README.md": (MARKDOWN_MARKS, findings_table(findings)),
        docs / "methods" / "README.md": (
            MARKDOWN_MARKS,
            index(pages),
        ),
    }
    found = {page: page.read_text(encoding="utf-8") for page in docs.glob("*.md")} | {
        path: replaced(path.read_text(encoding="utf-8"), marks, content, str(path))
        for path, (marks, content) in wanted.items()
    }
    site = root / "mkdocs.yml"
    return (
        {path: with_facts(text) for path, text in texts.items()}
        | {path: with_layers(text) for path, text in found.items()}
        | {site: with_pages(site.read_text("utf-8"), [*texts])}
    )


def main() -> None:
    """Write the files whose generated parts are out of date."""
    root = checkout()
    if root is None:
        sys.exit("error: this package is installed; files are generated in a checkout alone")
    for path, text in generated(root).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            print(f"{path} written")


if __name__ == "__main__":
    main()
