"""The folder that Flower builds its app from: the checkout, or a folder written from the installed package.

A Flower app brings its code to the nodes, so that a SuperNode needs only the dependencies. The written folder holds
the package's source files, its licence, a ``README.md``, and a ``pyproject.toml`` generated from the declarations of
the keys: all that Flower Hub asks of an app.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

import florilegium
from florilegium.apps.origins.code import LAYERS, layer_folder
from florilegium.apps.origins.package import licence, project
from florilegium.apps.settings.configuration import defaults
from florilegium.common.errors import ConfigurationError
from florilegium.common.toml import nested

PUBLISHER = "florilegium"
COMPONENTS = {"serverapp": "florilegium.apps.server_app:app", "clientapp": "florilegium.apps.client_app:app"}

README = """# Florilegium

{description}

Version {version}. In an environment with the packages that `pyproject.toml` lists, or with a wheel of this version:

    export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
    flwr run . --stream --run-config "method='fedavg' rounds=5 num-clients=10"

Without the variable Flower installs the dependencies, several GB, anew for each run. `pyproject.toml` has all keys of
`--run-config` with their defaults; `florilegium keys`, of the wheel, says what they mean.
"""
"""The text of a written app's ``README.md``."""

LEFT_OUT = ("test_*.py", "*_test.py")
"""Names of files that Flower never puts into an app, whatever ``fab-include`` says."""


def description(include: list[str]) -> Mapping[str, Any]:
    """Return the content of the app's ``pyproject.toml``; ``include`` lists glob patterns of the app's files."""
    app = {"publisher": PUBLISHER, "fab-include": include, "components": COMPONENTS, "config": nested(defaults())}
    return {"project": project(), "tool": {"flwr": {"app": app}}}


def write_app(folder: Path) -> Path:
    """Write the app to a new ``folder``, for ``flwr run FOLDER``, and return it.

    Raises:
        ConfigurationError: if the folder exists and is not empty, or if Flower would leave a file out of its bundle.
    """
    layers = [layer_folder(layer) for layer in LAYERS]
    if lost := [path for root in layers for pattern in LEFT_OUT for path in sorted(root.rglob(pattern))]:
        raise ConfigurationError(
            f"{lost[0]}: Flower takes files named {' and '.join(LEFT_OUT)} for tests, and leaves them out of an app; "
            "rename it"
        )
    if folder.is_file() or (folder.exists() and any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is a file, or a folder that is not empty; name a new folder")
    package = folder / "florilegium"
    ignored = shutil.ignore_patterns("__pycache__")
    for layer, source in zip(LAYERS, layers, strict=True):
        shutil.copytree(source, package / layer, ignore=ignored)
    for name in ("__init__.py", "__main__.py"):
        shutil.copyfile(Path(str(florilegium.__file__)).with_name(name), package / name)
    told = description(["/florilegium/**/*.py"])
    (folder / "LICENSE").write_text(licence(), encoding="utf-8")
    (folder / "README.md").write_text(README.format(**told["project"]), encoding="utf-8")
    (folder / "pyproject.toml").write_text(tomli_w.dumps(told), encoding="utf-8")
    return folder
