"""Other versions of packages: the lowest that ``pyproject.toml`` allows, and the newest that the registry has.

Each version gets an environment of its own (:mod:`tests.environments`), in which those tests run that use the package
most. ``make test-versions`` takes about an hour, and installs packages.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from docs.generate.version_pages import JOBS
from florilegium.apps.origins.tested import TESTED
from tests.environments import Environment, build, resolve
from tests.processes import ROOT

REQUIRED = {
    requirement.name: requirement.specifier
    for requirement in map(
        Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    )
}


def _lowest(package: str) -> Version:
    return min(Version(one.version) for one in REQUIRED[package] if one.operator == ">=")


def _passes(environment: Environment, package: str, log: Path) -> None:
    """Run the tests that use a package most: those that are named one by one, and the short ones of files."""
    single = [test for test in JOBS[package] if "::" in test]
    several = [test for test in JOBS[package] if "::" not in test]
    for words in (single, ["-m", "not long and not deployment and not simulation", *several]):
        done = environment.run("-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "--basetemp", log / "tmp", *words)
        (log / "log.txt").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " passed" in done.stdout


@pytest.mark.parametrize("package", TESTED)
def test_the_lowest_version_that_is_allowed_is_tested(package: str) -> None:
    assert Version(TESTED[package][0]) == _lowest(package)
    assert all(REQUIRED[package].contains(version) for version in TESTED[package])
    assert list(TESTED[package]) == sorted(TESTED[package], key=Version)
    assert package in JOBS


@pytest.mark.versions
@pytest.mark.parametrize(("package", "version"), [(name, version) for name in TESTED for version in TESTED[name]])
def test_a_version(package: str, version: str, tmp_path: Path) -> None:
    environment = build(tmp_path / "env", resolve(tmp_path, wanted={package: version}))
    assert environment.versions([package]) == {package: version}
    _passes(environment, package, tmp_path)


@pytest.mark.versions
@pytest.mark.parametrize("package", TESTED)
def test_the_newest_version(package: str, tmp_path: Path) -> None:
    """A version that has come out since ``TESTED`` was written is tested, and then to be entered there."""
    chosen = resolve(tmp_path, "--upgrade-package", package, wanted={})
    if chosen[package] in TESTED[package]:
        return  # the test above
    _passes(build(tmp_path / "env", chosen), package, tmp_path)
    raise AssertionError(f"the tests pass with {package} {chosen[package]}: enter it in apps/origins/tested.py")


@pytest.mark.versions
def test_the_lowest_versions_of_all_packages_together(tmp_path: Path) -> None:
    options = ("--upgrade", "--resolution", "lowest-direct")
    resolved = resolve(tmp_path / "lowest", *options, wanted={}, extras=())
    lowest = {name: resolved[name] for name in REQUIRED}
    environment = build(tmp_path / "env", resolve(tmp_path, wanted=lowest))
    assert environment.versions([*lowest]) == lowest
    assert {name: lowest[name] for name in TESTED} == {name: versions[0] for name, versions in TESTED.items()}
    _passes(environment, "all", tmp_path)
