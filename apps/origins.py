"""What a run is made from besides its configuration, as hashes: its data, their division, and code of other packages.

The run's folder keeps them. A run is not continued, and its figures are not reused, if they have changed meanwhile.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping

from florilegium.apps.code_version import source_version
from florilegium.apps.packages import in_notebook, used_code
from florilegium.apps.settings import Settings
from florilegium.common.references import resolve
from florilegium.common.settings import Value
from florilegium.partitions.federation import federate
from florilegium.partitions.fingerprints import fingerprint_of_dataset, fingerprint_of_federation

CODE = "code of "
"""Beginning of the names of those origins that are code."""


def origins_of(config: Mapping[str, Value], settings: Settings, *, deployed: bool = False) -> dict[str, str]:
    """Return hashes of what a run is made from, by what each is of: "dataset", "partition", "code of my_package".

    Args:
        config: the run's complete configuration.
        settings: the same, parsed.
        deployed: whether the clients are real devices, whose data stay there.

    Raises:
        ConfigurationError: if a package has no source files.
        DataError: if the data are missing.
    """
    typed_in = in_notebook(config)
    tops = {
        reference.partition(":")[0].partition(".")[0] for reference in used_code(config) if reference not in typed_in
    }
    found = {f"{CODE}{top}": source_version(top) for top in sorted(tops)}
    found |= {f"{CODE}{reference}": _typed(reference) for reference in typed_in}
    if not deployed:
        federation, dataset = federate(settings)
        found["dataset"] = fingerprint_of_dataset(dataset)
        found["partition"] = fingerprint_of_federation(federation)
    return found


def _typed(reference: str) -> str:
    """Return a hash of what was typed into a notebook or script; "" if its source is not known any more."""
    try:
        source = inspect.getsource(resolve(reference))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:12]
