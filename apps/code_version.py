"""A hash of the running code, by which server and clients check that they run the same version."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import florilegium
from florilegium.common.errors import ConfigurationError

LAYERS = ("apps", "clients", "common", "models", "partitions", "privacy", "strategies")


@lru_cache(maxsize=8)
def code_version(references: tuple[str, ...] = ()) -> str:
    """Return a hash (twelve hex digits) of the package's source and of the referenced modules outside it.

    The hash does not depend on the location of the package: a checkout, unpacked by Flower, or installed.

    Args:
        references: code that the run uses, as ``module:attribute``; files of modules outside the package are hashed.

    Raises:
        ConfigurationError: if a referenced module has no source file.
    """
    digest = hashlib.sha256()
    for layer in LAYERS:
        root = layer_folder(layer)
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{layer}/{path.relative_to(root).as_posix()}".encode() + path.read_bytes())
    modules = {reference.partition(":")[0] for reference in references}
    for module in sorted(name for name in modules if not name.startswith("florilegium.")):
        spec = find_spec(module)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            raise ConfigurationError(f"'{module}' has no source file; server and clients cannot compare their code")
        digest.update(module.encode() + Path(spec.origin).read_bytes())
    return digest.hexdigest()[:12]


def layer_folder(layer: str) -> Path:
    """Return the folder of one layer of the package, wherever it is installed."""
    return next(folder for root in florilegium.__path__ if (folder := Path(root) / layer).is_dir())
