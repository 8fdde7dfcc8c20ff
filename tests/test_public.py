"""What is public stays or is deprecated first: the keys of releases, the groups of entry points, and marks that end."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from docs.generate.public_pages import Deprecation, deprecations, registries
from docs.generate.release_pages import releases, upgrade_tables
from florilegium.apps.origins.package import project
from florilegium.apps.settings.configuration import defaults
from florilegium.common.deprecation import deprecated, numbers
from tests.processes import ROOT

MADE = """
@deprecated("use g", since="0.3.0", until="0.4.0", day="2027-06-01")
def f() -> None: ...
"""


def _due(one: Deprecation, version: str, day: date) -> bool:
    """Return whether both the version and the day have come on which something may be gone."""
    return numbers(version) >= numbers(one.until) and day >= date.fromisoformat(one.day)


def test_what_is_deprecated_goes_when_it_was_announced_to() -> None:
    """Delete what has come due. An announcement that only one side of has come due needs a new day or version."""
    for one in deprecations(ROOT):
        assert numbers(one.since) <= numbers(project()["version"]), f"{one}: no version has warned yet"
        assert not _due(one, project()["version"], date.today()), f"{one.where}: {one.name} is due to be removed"


def test_a_mark_is_found_and_comes_due(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "old.py").write_text(MADE)
    (one,) = deprecations(tmp_path)
    assert one == Deprecation("common/old.py", "f", "use g", "0.3.0", "0.4.0", "2027-06-01")
    assert _due(one, "0.4.0", date(2027, 6, 1))
    assert not _due(one, "0.3.9", date(2027, 6, 1))
    assert not _due(one, "0.10.0", date(2027, 5, 31))


def test_a_marked_function_and_class_warn_and_work() -> None:
    @deprecated("use g", since="0.3.0", until="0.4.0", day="2027-06-01")
    def f(x: int) -> int:
        return x + 1

    @deprecated("use G", since="0.3.0", until="0.4.0", day="2027-06-01")
    class F:
        """A class."""

    told = r"f is deprecated since 0\.3\.0 and may be gone from 0\.4\.0 on, after 2027-06-01; use g"
    with pytest.warns(DeprecationWarning, match=told):
        assert f(1) == 2
    with pytest.warns(DeprecationWarning, match="use G"):
        assert isinstance(F(), F)


@pytest.mark.parametrize(("until", "day"), [("0.3.0", "2027-06-01"), ("0.4.0", "soon")])
def test_a_wrong_mark_is_refused(until: str, day: str) -> None:
    with pytest.raises(ValueError, match=r"until: expected a version above 0\.3\.0|Invalid isoformat"):
        deprecated("use g", since="0.3.0", until=until, day=day)


def test_every_key_of_a_release_is_still_there() -> None:
    """A key with another name now is refused, with the new one in the message; it is named here then."""
    renamed: set[str] = set()
    for version, keys in releases(ROOT).items():
        assert keys.keys() - defaults().keys() <= renamed, version
    assert {*releases(ROOT)} >= {"0.1.0", "0.2.0"}
    assert f"## {project()['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert project()["version"] in releases(ROOT), "write docs/generate/releases/VERSION.toml"


def test_upgrade_notes_have_what_differs(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "generate" / "releases"
    folder.mkdir(parents=True)
    (folder / "0.0.1.toml").write_text('rounds = 31\n"fedprox.nu" = 1\nseed = 1\n')
    text = upgrade_tables(tmp_path)
    assert "Of its 3 keys, 2 are as they were, and these are gone: `fedprox.nu`." in text
    assert "| `rounds` | `31` | `30` |" in text
    assert "`seed`" not in text


def test_groups_of_entry_points_are_those_that_the_guide_names() -> None:
    groups = {one.group.removeprefix("florilegium") for one in registries(ROOT)}
    guide = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    assert len(groups) > 10
    assert not [group for group in groups if f"`{group}`" not in guide and f"`florilegium{group}`" not in guide]
