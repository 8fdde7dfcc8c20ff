"""The owner of a device, put together from what the command line names; and the configuration of a run to be judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from florilegium.apps.assembly.node_config import DeviceSettings
from florilegium.apps.runs.experiment import resolve
from florilegium.apps.settings.configuration import complete, defaults, packed
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value, folder
from florilegium.owner.cells import Cells
from florilegium.owner.home import open_home
from florilegium.owner.keeper import Keeper
from florilegium.owner.policy import open_to_all
from florilegium.owner.view import View, names_in
from florilegium.strategies.folder.run_folder import read_config


def configuration(run: str, assignments: Sequence[str]) -> dict[str, Value]:
    """Return all keys of a run that somebody wants to start: a recipe, a file of keys, or a run's folder."""
    given = read_config(Path(run)) if run and Path(run).is_dir() else {}
    return packed(complete({**given, **resolve(None if given else run or None, assignments, {})}))


def keeper(owner: Path, device: DeviceSettings, clock: Callable[[], datetime] = datetime.now) -> Keeper:
    """Return who decides for the owner of a device.

    Raises:
        ConfigurationError: if a run's process could reach the owner's folder by what it may read or write, or the
            device has no folder for the state of runs.
        DataError: if the owner's folder cannot be used.
    """
    home = open_home(owner)
    if not device.state_dir:
        raise ConfigurationError("--owner needs state-dir in --node-config, the one place where runs may write")
    state, data = folder(device.state_dir).resolve(), device.data_path
    places = [("state-dir", state)] + ([] if ":" in data else [("data-path", folder(data).resolve())])
    for key, place in places:
        if home.folder.is_relative_to(place):
            raise ConfigurationError(f"--owner: {home.folder} lies in {key}, which the code of runs reads; move it out")
    named = [device.schema_file, device.dataset, device.base, device.embeddings, device.identity, device.peers]
    columns = home.policy().data.columns
    view = None
    if not open_to_all(columns):
        if ":" in data:
            raise ConfigurationError(f'data.columns: {data} is a function; write columns = ["any"]')
        view = View(folder(data), tuple(columns), names_in(device.schema_file), state / "_view")
        view.made()
    readable = [folder(one) for one in named if one]
    cells = Cells(state, None if ":" in data else folder(data), view, readable)
    return Keeper(home, device.client_id, defaults(), cells, clock)
