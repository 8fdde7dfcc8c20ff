"""Initial model of a run with key ``init``, from an earlier run or from a file of parameters."""

from __future__ import annotations

from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import PARAMETER_FILES, folder
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.models.pretrained import read_pretrained
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.folder.run_folder import Checkpoint, find_initial, read_checkpoint, read_config
from florilegium.strategies.settings.server import ServerSettings


def named_by_init(settings: ServerSettings, network: Arrays) -> tuple[Arrays, Checkpoint]:
    """Return the network to start from, and what ``init`` names: a run's last checkpoint, or a file of parameters.

    If the earlier run trained only a part of the network, as FedBABU does, the rest is initialised from its seed.

    Args:
        settings: the run's configuration, in which ``init`` is set.
        network: the arrays of the network, initialised from this run's seed.
    """
    if settings.init.endswith(PARAMETER_FILES):
        return network, Checkpoint(0, read_pretrained(folder(settings.init), network), {}, {})
    run = find_initial(settings.init, settings.seed, settings.runs_dir)
    trained, seed = read_checkpoint(run), read_config(run)["seed"]
    if seed != settings.seed and network.keys() - trained.arrays.keys():
        spec = dataset_of(settings)
        network = get_arrays(network_for(spec, settings.model, seed))
    return network, trained


def replaced(settings: ServerSettings, network: Arrays, trained: Arrays) -> Arrays:
    """Return ``network`` with its arrays replaced by the ``trained`` ones of an earlier run.

    Raises:
        ConfigurationError: if that run trained another network: names or shapes differ.
    """
    wrong = [name for name, a in trained.items() if name not in network or network[name].shape != a.shape]
    if wrong:
        shapes = [
            f"'{name}' {trained[name].shape} against {network[name].shape if name in network else 'none'}"
            for name in wrong[:3]
        ]
        raise ConfigurationError(
            f"init: run '{settings.init}' trained something else than the network model = '{settings.model}': "
            f"{', '.join(shapes)}{', …' if len(wrong) > 3 else ''}"
        )
    return network | trained
