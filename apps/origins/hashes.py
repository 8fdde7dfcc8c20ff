"""What a run is made from besides its configuration, as hashes: data, their division, initial model, others' code.

The run's folder keeps them. A run is not continued, and its figures are not reused, if they have changed meanwhile.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping

from florilegium.apps.origins.code import source_version
from florilegium.apps.origins.packages import in_notebook, used_code
from florilegium.apps.settings.configuration import Settings
from florilegium.common.errors import ConfigurationError
from florilegium.common.model_folders import pretrained_hash
from florilegium.common.references import resolve
from florilegium.common.settings import PARAMETER_FILES, Value, folder
from florilegium.partitions.federation import federate
from florilegium.partitions.fingerprints import fingerprint_of_dataset, fingerprint_of_federation
from florilegium.partitions.loading import revision_of
from florilegium.strategies.folder.run_folder import find_initial, has_checkpoint, read_checkpoint, read_frozen

CODE = "code of "
"""Beginning of the names of those origins that are code."""
INITIAL = "initial model"
"""Name of the origin that key ``init`` names."""


def origins_of(config: Mapping[str, Value], settings: Settings, *, deployed: bool = False) -> dict[str, str]:
    """Return hashes of what a run is made from, by what each is of: "dataset", "partition", "code of my_package".

    The "revision of the dataset" is there if its rows come from the hub: a commit, a tag or a branch.
    The "pretrained model" is what the folders of model and tokenizer say besides weights, which have their own hash.
    The "initial model" is what ``init`` names: the last model of another run, or a file. It is left out while there is
    none, as before the first run of a sweep from which others start.

    Args:
        config: the run's complete configuration.
        settings: the same, parsed.
        deployed: whether the clients are real devices, whose data stay there.

    Raises:
        ConfigurationError: if a package has no source files.
        DataError: if the data are missing.
        RunError: if a checkpoint of the run that ``init`` names is damaged.
    """
    typed_in = in_notebook(config)
    tops = {
        reference.partition(":")[0].partition(".")[0] for reference in used_code(config) if reference not in typed_in
    }
    found = {f"{CODE}{top}": source_version(top) for top in sorted(tops)}
    found |= {f"{CODE}{reference}": _typed(reference) for reference in typed_in}
    if not deployed:
        if revision := revision_of(settings):
            found["revision of the dataset"] = revision
        federation, dataset = federate(settings)
        found["dataset"] = fingerprint_of_dataset(dataset)
        found["partition"] = fingerprint_of_federation(federation)
    if initial := _initial(settings):
        found[INITIAL] = initial
    if pretrained := pretrained_hash(settings.model, settings.tokenizer):
        found["pretrained model"] = pretrained
    return found


def _initial(settings: Settings) -> str:
    """Return a hash of the model that ``init`` names; "" if it names none, or there is none."""
    digest = hashlib.sha256()
    if settings.init.endswith(PARAMETER_FILES):
        if not (file := folder(settings.init)).is_file():
            return ""
        digest.update(file.read_bytes())
        return digest.hexdigest()[:12]
    try:
        run = find_initial(settings.init, settings.seed, settings.runs_dir) if settings.init else None
    except ConfigurationError:
        run = None  # the run that needs it is refused when it starts
    if run is None or not has_checkpoint(run):
        return ""
    checkpoint = read_checkpoint(run)
    for name, array in sorted({**checkpoint.state, **checkpoint.arrays, **read_frozen(run)}.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:12]


def _typed(reference: str) -> str:
    """Return a hash of what was typed into a notebook or script; "" if its source is not known any more."""
    try:
        source = inspect.getsource(resolve(reference))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:12]
