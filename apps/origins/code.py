"""A hash of the running code, by which server and clients check that they run the same version."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import florilegium
from florilegium.common.errors import ConfigurationError
from florilegium.common.memo import remembered

LAYERS = (
    "apps", "clients", "cluster", "common", "models", "owner", "partitions", "privacy", "strategies", "tasks", "ui",
)  # fmt: skip


@remembered(8)
def code_version(references: tuple[str, ...] = ()) -> str:
    """Return a hash (twelve hex digits) of the package's source and of the referenced modules outside it.

    The hash does not depend on the location of the package: a checkout, unpacked by Flower, or installed.

    Args:
        references: code that the run uses, as ``module:attribute``; all files of their top-level packages are hashed.

    Raises:
        ConfigurationError: if a referenced module has no source file.
    """
    digest = hashlib.sha256()
    for layer in LAYERS:
        root = layer_folder(layer)
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{layer}/{path.relative_to(root).as_posix()}".encode() + path.read_bytes())
    tops = {reference.partition(":")[0].partition(".")[0] for reference in references} - {"florilegium"}
    for top in sorted(tops):
        for path in _sources(top):
            digest.update(f"{top} {path.name}".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def source_version(top: str) -> str:
    """Return a hash (twelve hex digits) of the source of a top-level package or module.

    Raises:
        ConfigurationError: if it has no source file.
    """
    digest = hashlib.sha256()
    for path in _sources(top):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def layer_folder(layer: str) -> Path:
    """Return the folder of one layer of the package, wherever it is installed."""
    return next(folder for root in florilegium.__path__ if (folder := Path(root).resolve() / layer).is_dir()).resolve()


def _sources(top: str) -> list[Path]:
    """Return the source files of a top-level package or module, in order.

    Raises:
        ConfigurationError: if it has none, as a module that was typed into an interpreter.
    """
    try:
        # Every process has another "__main__".
        spec = None if top == "__main__" else find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return [path for folder in spec.submodule_search_locations for path in sorted(Path(folder).rglob("*.py"))]
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ConfigurationError(f"'{top}' has no source file; server and clients cannot compare their code")
    return [Path(spec.origin)]
