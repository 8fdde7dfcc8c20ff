"""The owner of a device, put together from what the command line names; and the configuration of a run to be judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from florilegium.apps.assembly.node_config import DeviceSettings
from florilegium.apps.runs.experiment import resolve
from florilegium.apps.settings.configuration import complete, defaults, packed
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value, folder
from florilegium.owner.home import open_home
from florilegium.owner.keeper import Keeper
from florilegium.strategies.folder.run_folder import read_config


def configuration(run: str, assignments: Sequence[str]) -> dict[str, Value]:
    """Return all keys of a run that somebody wants to start: a recipe, a file of keys, or a run's folder."""
    given = read_config(Path(run)) if run and Path(run).is_dir() else {}
    return packed(complete({**given, **resolve(None if given else run or None, assignments, {})}))


def keeper(owner: Path, device: DeviceSettings) -> Keeper:
    """Return who decides for the owner of a device.

    Raises:
        ConfigurationError: if a run's process could reach the owner's folder by what it may read or write.
        DataError: if the owner's folder cannot be used.
    """
    home = open_home(owner)
    for key, place in (("state-dir", device.state_dir), ("data-path", device.data_path)):
        if place and ":" not in place and home.folder.is_relative_to(folder(place).resolve()):
            raise ConfigurationError(f"--owner: {home.folder} lies in {key}, which the code of runs reads; move it out")
    return Keeper(home, device.client_id, defaults())
