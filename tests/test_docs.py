"""The documentation agrees with the code: examples run, links lead somewhere, no page is missing.

Commands: ``test_doc_commands.py``. Words: ``test_prose.py``.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import florilegium as fl
from docs.generate.method_pages import FACTS, index, new_page, read_page, with_facts, with_pages
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import complete, parse
from florilegium.common.errors import ConfigurationError
from tests.browser import BROWSER, dom
from tests.processes import BIN, ROOT
from tests.support import CACHE

DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if "```python" in page.read_text(encoding="utf-8")]
PAGES.remove(DOCS / "own.md")  # needs the package that it writes: tests/apps/origins/test_package.py
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
MADE_BY = re.compile(r"florilegium [a-z]+|python -m benchmarks|fl\.run\(|\btests/|\.py::test_")
"""What makes or shows the numbers of a table: a command, a call, a test."""
WITHOUT_COMMAND = {
    ("README.md", "Results"): "lists the pages",
    ("fedl2p.md", "FedL2P"): "sums up the tables below, which have commands",
    (
        "fedl2p.md",
        "Unstratified validation misled the choice of λ",
    ): "runs of code that has changed, as the section says",
    ("fedl2p.md", "Notes"): "the same",
    ("mdm.md", "Notes"): "the same",
}
"""Tables of results without a command, by page and section, and why."""
PICTURE = re.compile(
    r'<picture>\s+<source media="\(prefers-color-scheme: dark\)" srcset="(\S+)">\s+<img alt="([^"]+)" src="(\S+)">'
)
"""A picture with two themes: the dark file, the words, the light file."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.long) if page.stem == "python" else page for page in PAGES],
    ids=lambda page: page.stem,
)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    """The Python examples of a page, as they stand, in an empty folder."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    # A cell of a notebook may call itself by name; a script has one namespace for all of them.
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    (tmp_path / ".florilegium").mkdir()
    (tmp_path / ".florilegium" / "cache").symlink_to(CACHE)
    CACHE.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) + re.findall(r' (?:src|srcset)="([^"]+)"', text):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_pictures_have_words_and_two_themes() -> None:
    """Every picture has a text for those who cannot see it; each of a pair of files names the other's theme."""
    for page in TEXTS:
        text = page.read_text(encoding="utf-8")
        assert "![](" not in text, page
        assert text.count("<img ") == text.count("<img alt=") == len(PICTURE.findall(text)), page
        for dark, words, light in PICTURE.findall(text):
            assert dark == light.replace(".svg", "-dark.svg"), page
            assert len(words.split()) > 5, page


def test_every_picture_is_shown() -> None:
    shown = " ".join(text.read_text(encoding="utf-8") for text in TEXTS)
    pictures = {path.name for kind in ("*.png", "*.svg") for path in (DOCS / "images").glob(kind)}
    assert not {name for name in pictures if f"images/{name}" not in shown}


def test_diagrams_are_those_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "images")
    diagrams, themes = importlib.import_module("diagrams"), importlib.import_module("themes")
    for name, draw in diagrams.DIAGRAMS.items():
        for theme in themes.THEMES:
            assert (DOCS / "images" / f"{name}{theme.suffix}.svg").read_text(encoding="utf-8") == draw(theme).end()


def test_the_site_has_every_page() -> None:
    """The navigation names every page of ``docs/``, and the Python reference every public name."""
    named = set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]))
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} <= named
    reference = (DOCS / "reference.md").read_text(encoding="utf-8")
    public = {f"florilegium.{where}".replace(":", ".") for where in fl._PUBLIC.values()}
    assert set(re.findall(r"^::: (\S+)$", reference, re.MULTILINE)) == public


def test_every_method_has_one_page() -> None:
    with pytest.raises(ConfigurationError, match="there is no method 'nothing'"):
        read_page(Path("own.md"), "<!-- begin generated facts: fedavg, nothing -->\n<!-- end generated -->\n")
    with pytest.raises(ConfigurationError, match=r"own\.md: '<!-- begin generated facts"):
        read_page(Path("own.md"), "# FedAvg\n")
    texts = {path: path.read_text(encoding="utf-8") for path in (DOCS / "methods").glob("*.md")}
    pages = [read_page(path, text) for path, text in texts.items() if FACTS.search(text)]
    assert sum(len(page.methods) for page in pages) == len(METHODS.own)
    with pytest.raises(ConfigurationError, match=r"one page about 'fedavg' expected \(found: 2\)"):
        index([*pages, next(page for page in pages if page.name == "fedavg.md")])


def test_every_method_has_a_first_run_that_is_accepted() -> None:
    for name in METHODS.own:
        parse(complete({"method": name, **METHODS[name].first}))
    text = (DOCS / "methods" / "fedbn.md").read_text(encoding="utf-8")
    assert "`florilegium run --set method=fedbn --set model=cnn-bn`" in text


def test_a_method_without_a_page_gets_one_and_an_entry() -> None:
    text = with_facts(new_page("fedavg"))
    assert read_page(Path("fedavg.md"), text).methods == ("fedavg",)
    assert "| what it is | Federated averaging |" in text
    site = "nav:\n  - Methods:\n      - One: methods/one.md\n  - Reference: reference.md\n"
    grown = with_pages(site, [Path("methods/one.md"), Path("methods/two.md")])
    assert grown == site.replace("one.md\n", "one.md\n      - two: methods/two.md\n")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.long
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    """Links and their sections are checked, too, and no page loads anything from another server."""
    done = subprocess.run(
        [BIN / "mkdocs", "build", "--quiet", "--site-dir", tmp_path], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'(?:src|<link[^>]*href)="https?://[^"]+', text), page
        assert not re.findall(r'href="[./]*"', text), (
            f"{page} leads to a folder, which is listed where there is no server"
        )
        assert '<table border="1"' not in text, f"{page}: the theme lets only tables without a class scroll"
    assert not [*tmp_path.rglob("__pycache__"), *tmp_path.rglob("*.py"), *tmp_path.rglob("*.toml")]
    index = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)(?:: \S.*)?$", index, re.MULTILINE)
    assert {*listed} == {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")} - {"404.html"}
    assert "- [FedProx](methods/fedprox.html): As FedAvg, but a penalty keeps each client's model close" in index
    if BROWSER is not None:
        found = dom(f"{(tmp_path / 'methods' / 'fedprox.html').as_uri()}?q=pFedHN", tmp_path / "profile")
        results = re.findall(r'<a href="([^"]*)" class="md-search-result__link', found)
        assert any("methods/pfedhn.html" in result for result in results)
        found = dom(f"{(tmp_path / 'start.html').as_uri()}?q=learning%20rate", tmp_path / "profile")
        first = re.findall(r'<a href="([^"]*)" class="md-search-result__link', found)[0]
        assert "/results/" not in first, "pages that explain come before those of results"


def _without_command(page: Path) -> list[str]:
    """Return the sections of a page of results that have a table but, like those around them, no command."""
    found: list[str] = []
    around: list[bool] = []  # of each level of headings: whether the section's own text has a command
    for section in re.split(r"^(?=#+ )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        level = len(title) - len(title.lstrip("#"))
        around = [*around[: level - 1], bool(MADE_BY.search(section))]
        if "\n|" in section and not any(around):
            found.append(title.lstrip("# "))
    return found


def test_every_table_of_results_has_a_command_and_a_date() -> None:
    """The sections that have neither are known, each with its reason."""
    pages = {page: page.relative_to(DOCS / "results").as_posix() for page in (DOCS / "results").rglob("*.md")}
    found = {(name, title) for page, name in pages.items() for title in _without_command(page)}
    assert found == set(WITHOUT_COMMAND)
    for page, name in pages.items():
        dated = re.search(r"\b2026-\d\d-\d\d\b", page.read_text(encoding="utf-8"))
        assert dated or name in ("README.md", "board/README.md", "ledger.md", "robustness.md"), name


def test_the_page_on_robustness_names_tests_that_exist() -> None:
    named = re.findall(
        r"`(\S+/\S+\.py)::(test_\w+)`", (ROOT / "docs/results/robustness.md").read_text(encoding="utf-8")
    )
    assert named
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{test}"
