"""Hooks of the documentation site (mkdocs.yml): pages that lie outside of ``docs/``, and links out of it.

The README is the site's first page; CONTRIBUTING, CHANGELOG and the notebooks are pages, too. In a checkout links lead
to files; on the site they lead to the pages made of these files. Links to other files, such as code, become plain text,
as the site does not contain them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from markdown import Extension, Markdown
from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    ROOT / "README.md": "index.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    **{path: f"notebooks/{path.stem}.md" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))},
}
"""Files outside of ``docs/``, and the place of each on the site."""
FOLDERS = {
    ROOT / "docs" / "methods": "methods/README.md",
    ROOT / "docs" / "results": "results/README.md",
    ROOT / "notebooks": "notebooks/01-first-run.md",
}
"""Folders that a link may name, and the page that stands for each."""
LINK = re.compile(r"(!?\[((?:[^\[\]]|\[[^\]]*\])*)\])\(([^)#\s:]+)(#[^)\s]*)?\)")
"""A link or picture: the brackets, the words in them, the file, the section."""
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img alt="([^"]+)" src="([^"]+)">\s*</picture>'
)
"""A picture for dark and for light pages: the dark file, the words, the light file."""
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme's plugin `offline` loads."""
FRAME = '<table border="1" class="dataframe">'
"""How pandas begins a table; the theme lets only tables without a class scroll."""
LAST_FOUND = ("results/", "changelog.md")
"""Pages that mention everything, which the search lists after those that explain it."""
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?")


class Subscripts(Extension):
    """Underscores are subscripts (``Σ_k x_k``), never emphasis."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (the library's name)
        """Make the words between two underscores no longer italic."""
        md.delimiters.remove("_")


def on_config(config: Any) -> Any:
    """Read the pages' formulas as they are written."""
    config.markdown_extensions.append(Subscripts())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside of ``docs/``, and the pictures of the notebooks."""
    for path, place in PAGES.items():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text, pictures = _converted(text, path.stem)
            for name, content in pictures.items():
                files.append(File.generated(config, f"notebooks/{name}", content=content))
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Make links between files of the repository links between pages of the site; pictures follow the site's theme."""
    uri = page.file.src_uri
    source = next((path for path, place in PAGES.items() if place == uri), ROOT / "docs" / uri)
    folder = os.path.dirname(uri) or "."
    if uri.startswith(LAST_FOUND):
        page.meta["search"] = {"boost": 0.3}

    def on_site(link: re.Match[str]) -> str:
        text, target, anchor = link[2], link[3], link[4] or ""
        path = (source.parent / target).resolve()
        place = PAGES.get(path) or FOLDERS.get(path)
        if place is None and path.is_relative_to(ROOT / "docs"):
            place = path.relative_to(ROOT / "docs").as_posix()
        if place is None:
            return text if (source.parent / target).exists() else link[0]
        return f"{link[1]}({os.path.relpath(place, folder)}{anchor})"

    return LINK.sub(on_site, PICTURE.sub(r"![\2](\3#only-light) ![\2](\1#only-dark)", markdown))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Remove the roles of Sphinx from docstrings: ``:class:`Run``` is shown as a name."""
    return ROLE.sub("<code>", html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load the script that lets the search run without a web server from the site, not from another server."""
    return output.replace(SHIM, os.path.relpath("iframe-worker.js", os.path.dirname(page.url) or "."))


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Do as :func:`on_post_page` for pages that are not made from a text."""
    return output_content.replace(SHIM, "/iframe-worker.js")


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Keep the navigation for :func:`on_post_build`."""
    config.extra["navigation"] = nav
    return nav


def on_post_build(config: Any) -> None:
    """Write ``llms.txt``, an index for language models (llmstxt.org): every page by section, with a sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section in config.extra["navigation"].items:
        lines += [f"## {section.title}", "", *map(_entry, _pages(section)), ""]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _pages(section: Any) -> Iterator[Any]:
    for item in section.children:
        if item.is_section:
            yield from _pages(item)
        elif item.is_page:
            yield item


def _entry(page: Any) -> str:
    told = _first_sentence(page.markdown or "")
    return f"- [{page.title}]({page.url}){f': {told}' if told else ''}"


def _first_sentence(markdown: str) -> str:
    """Return the first whole sentence of a page's text, without marks of links; "" if it has none."""
    plain = re.sub(r"<!--.*?-->|^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    paragraphs = (part.strip("\n") for part in re.split(r"\n[ \t]*\n", plain))
    for part in paragraphs:
        if re.match(r"[A-Za-z*`\[]", part):
            text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(part.split()))
            if re.search(r"\.(\s|$)", text):
                return re.split(r"(?<=\.)\s", text)[0]
    return ""


def _converted(notebook: str, name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by their paths beside that page."""
    names = {"unique_key": name, "output_files_dir": name}
    text, resources = MarkdownExporter().from_notebook_node(nbformat.reads(notebook, as_version=4), names)
    return text.replace(FRAME, "<table>"), resources["outputs"]
