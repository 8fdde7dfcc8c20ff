"""Other versions of packages: the lowest that ``pyproject.toml`` allows, and the newest that the registry has.

Each version gets an environment of its own (:mod:`tests.environments`), in which those tests run that use the package
most. ``make test-versions`` takes about an hour, and installs packages.
"""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from docs.generate.version_pages import JOBS
from florilegium.apps.origins.tested import PYTHONS, TESTED
from tests.environments import Environment, build, build_anew, resolve
from tests.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIRED = {one.name: one.specifier for one in map(Requirement, PROJECT["dependencies"])}


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


def test_the_constraints_without_cuda_fit() -> None:
    """They name the newest PyTorch that was tested, and the torchvision that is made for it, built for CPUs."""
    text = (ROOT / "deploy" / "cpu.txt").read_text("utf-8")
    pins = {
        one.name: one for one in map(Requirement, (line for line in text.splitlines() if line[:1] not in ("", "#")))
    }
    assert {*pins} == {"torch", "torchvision"}
    for name, pin in pins.items():
        (one,) = pin.specifier
        version = Version(one.version)
        assert (one.operator, version.local) == ("==", "cpu")
        assert REQUIRED[name].contains(version)
        assert str(pin.marker) == 'platform_system == "Linux"'
        if name == "torch":
            assert version.public == TESTED["torch"][-1]
        elif version.public == Version(metadata.version(name)).public:
            needs = next(one for one in map(Requirement, metadata.requires(name) or []) if one.name == "torch")
            assert needs.specifier.contains(Version(TESTED["torch"][-1]))


def test_the_tested_versions_of_python_are_declared() -> None:
    declared = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if " :: 3." in one]
    assert tuple(declared) == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


@pytest.mark.versions
@pytest.mark.parametrize("python", [*PYTHONS, "3.14"])
def test_every_package_has_wheels_for_a_python(python: str, tmp_path: Path) -> None:
    options = ("--upgrade", "--python-version", python, "--only-binary", ":all:")
    assert REQUIRED.keys() <= resolve(tmp_path, *options, wanted={}, extras=()).keys()


@pytest.mark.versions
@pytest.mark.parametrize("python", PYTHONS[1:])
def test_a_python(python: str, tmp_path: Path) -> None:
    _passes(build_anew(tmp_path / "env", python), "all", tmp_path)


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
