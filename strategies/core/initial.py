"""What a run starts from: the network as its seed makes it, or with key ``init`` an earlier run or a file."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import PARAMETER_FILES, folder
from florilegium.models.frozen import FILE, NOTHING, Frozen
from florilegium.models.parameters import Arrays, parts_of
from florilegium.models.pretrained import read_pretrained
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.folder.run_folder import (
    Checkpoint,
    find_initial,
    has_checkpoint,
    read_checkpoint,
    read_config,
    read_frozen,
)
from florilegium.strategies.settings.server import ServerSettings


class Start:
    """What a run starts from, in two parts: what training changes, and what is frozen.

    Args:
        settings: the run's configuration.
        path: the run's folder.
        whole: all arrays of the network as the run's seed makes it.
        built: the frozen ones of these.
    """

    def __init__(self, settings: ServerSettings, path: Path, whole: Arrays, built: Frozen) -> None:
        self._settings, self._path, self.whole, self.built = settings, path, whole, built

    @cached_property
    def frozen(self) -> Frozen:
        """The run's frozen parameters: those of its checkpoint, else what ``init`` names, else those of the seed.

        Raises:
            ConfigurationError: if what ``init`` names does not fit the network.
            RunError: if a file is damaged.
        """
        built = self.built.arrays
        if not built:
            return self.built
        given: Arrays = {}
        if has_checkpoint(self._path):
            given = whole_of(self._path, read_checkpoint(self._path)).arrays
        elif self._settings.init:
            network, trained = self._named
            given = network | trained.arrays
        given = {name: given.get(name, array) for name, array in built.items()}
        return replace(self.built, arrays=replaced(self._settings, built, given))

    @property
    def kept(self) -> Frozen:
        """What the run's folder keeps of the frozen parameters: nothing if every side has them in files of its own."""
        return NOTHING if self._settings.based and self.frozen.hash == self.built.hash else self.frozen

    def named(self) -> tuple[Arrays, Checkpoint]:
        """Return the network to start from, and what ``init`` names, both without frozen parameters."""
        network, trained = self._named
        return self.built.rest(network), replace(trained, arrays=self.built.rest(trained.arrays))

    @cached_property
    def _named(self) -> tuple[Arrays, Checkpoint]:
        return named_by_init(self._settings, self.whole)

    def own(self, checkpoint: Checkpoint, run: str) -> Checkpoint:
        """Return a checkpoint of the run without frozen parameters, with which earlier versions wrote it.

        Raises:
            RunError: if it goes with other frozen parameters.
        """
        if (named := checkpoint.facts.get("frozen", self.frozen.hash)) != self.frozen.hash:
            where = "the pretrained network" if self._settings.based else f"the file {FILE} in its folder"
            raise RunError(
                f"run '{run}' has trained with frozen parameters of hash {named}, {where} has "
                f"{self.frozen.hash or 'none'}; put back the one that it was written with"
            )
        if "frozen" in checkpoint.facts:  # this version wrote it, without frozen parameters
            return checkpoint
        where = f"the checkpoint of run '{run}'"
        arrays, state = (self.frozen.without(kind, where) for kind in (checkpoint.arrays, checkpoint.state))
        return replace(checkpoint, arrays=arrays, state=state)


def whole_of(path: Path, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint of the run in ``path`` with the run's frozen parameters among its arrays."""
    return replace(checkpoint, arrays=read_frozen(path) | checkpoint.arrays)


def named_by_init(settings: ServerSettings, network: Arrays) -> tuple[Arrays, Checkpoint]:
    """Return the network to start from, and what ``init`` names: a run's last checkpoint, or a file of parameters.

    If the earlier run trained only a part of the network, as FedBABU does, the rest is initialised from its seed.

    Args:
        settings: the run's configuration, in which ``init`` is set.
        network: all arrays of the network, initialised from this run's seed.
    """
    if settings.init.endswith(PARAMETER_FILES):
        return network, Checkpoint(0, read_pretrained(folder(settings.init), network), {}, {})
    run = find_initial(settings.init, settings.seed, settings.runs_dir)
    trained, seed = whole_of(run, read_checkpoint(run)), read_config(run)["seed"]
    if seed != settings.seed and network.keys() - trained.arrays.keys():
        spec = dataset_of(settings)
        network, _ = parts_of(network_for(spec, settings, seed))
    _check_base(settings, run, trained, seed)
    return network, trained


def _check_base(settings: ServerSettings, run: Path, trained: Checkpoint, seed: int) -> None:
    """Raise :class:`ConfigurationError` if what a run trained goes with another pretrained base than this run's."""
    named = trained.facts.get("frozen")
    if not settings.based or not named or (run / FILE).is_file():
        return
    _, built = parts_of(network_for(dataset_of(settings), settings, seed))
    if built.hash != named:
        raise ConfigurationError(
            f"init: run '{settings.init}' has trained beside frozen parameters of hash {named}, and those of "
            f"'{settings.model}' have {built.hash or 'none'} here: it has another base, or other adapters are fixed"
        )


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
