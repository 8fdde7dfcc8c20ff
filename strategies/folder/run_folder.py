"""The folder of a run: configuration, metrics, per-client results, checkpoint, summary (docs/run-folder.md).

Files are replaced atomically, never half-written. ``status.json`` shows the progress of the run.
"""

from __future__ import annotations

import csv
import io
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import tomli_w

from florilegium.common.errors import ConfigurationError, FileError, RunError, nearest
from florilegium.common.files import append_text, check_tensors, overwrite_text, read_tensors, write_tensors, write_text
from florilegium.common.foreign import spreadsheet_cell
from florilegium.common.places import read_utf8
from florilegium.common.settings import Value, folder
from florilegium.common.toml import flatten, nested
from florilegium.models.frozen import FILE, Frozen, hash_of
from florilegium.strategies.folder.attempts import PROVENANCE, STATUS, Attempts
from florilegium.strategies.folder.metrics_file import MetricsFile, is_evaluated
from florilegium.strategies.folder.results import CLIENTS, SUMMARY
from florilegium.strategies.settings.plugged import own_tables
from florilegium.strategies.settings.server import TABLES

if TYPE_CHECKING:
    from florilegium.models.parameters import Arrays

# Keys that a resumed run may change: they affect its length, folders, timeouts, evaluation and tracker, not what is
# computed, or, as the number of workers does, its rounding alone (vectorise).
FREE_ON_RESUME = frozenset(
    [
        "rounds",
        "evaluate-every",
        "checkpoint-every",
        "checkpoint-seconds",
        "evaluate-clients",
        "run-name",
        "resume",
        "runs-dir",
        "cache-dir",
        "data-dir",
        "data-from",
        "round-timeout",
        "roster-timeout",
        "metrics-port",
        "start-timeout",
        "min-success",
        "init",
        "tracker",
        "tracker-project",
        "vectorise",
    ]
)
FIGURES_ON_RESUME = ("rounds", "init", "evaluate-clients", "min-success", "round-timeout")
"""Keys that a resumed run may change although they change its figures."""


STOP = "stop"
"""A file of this name in a run's folder asks the run to end with its next evaluation."""

ORIGINS = "origins.json"
"""A file in a run's folder: hashes of what the run is made from, by what each is of."""

BUFFER = "buffer:"
"""Beginning of the names of arrays in a checkpoint that buffered rounds need."""

_ADAM_BEFORE_0_2 = ("pefll", "pfedhn")
"""Methods for which "adam" meant Adam in version 0.1.0; for all others it meant FedAdam."""
_SINCE_0_2 = "image-size"
"""A key that the configurations of all runs have since version 0.2.0."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that the server needs to continue a run.

    Attributes:
        round: number of the last finished round.
        arrays: the global model.
        state: further arrays of the strategy.
        facts: the strategy's other state, byte counts and times; JSON values.
    """

    round: int
    arrays: Arrays
    state: Arrays
    facts: dict[str, Any]

    @property
    def own(self) -> Arrays:
        """The arrays of the method's own state, without those of buffered rounds."""
        return {name: array for name, array in self.state.items() if not name.startswith(BUFFER)}


class Watcher(Protocol):
    """Follows a run in its own process, and may end it."""

    @property
    def interrupted(self) -> bool:
        """Whether the run is to stop after the present round, to be resumed later."""

    def recorded(self, line: Mapping[str, Any]) -> bool:
        """Receive a line of ``metrics.jsonl``; return whether the run ends with it, if it has an evaluation."""

    def progressed(self, status: Mapping[str, Any]) -> None:
        """Receive the contents of ``status.json`` whenever they change."""


class Unwatched:
    """A run that nobody follows in its own process."""

    interrupted = False

    def recorded(self, line: Mapping[str, Any]) -> bool:
        """Return that the run goes on."""
        return False

    def progressed(self, status: Mapping[str, Any]) -> None:
        """Ignore the status."""


class RunFolder:
    """Reads and writes the files of one run.

    Args:
        path: the folder.
        config: the complete run configuration, with flat keys.
        table: name of the table with the method's own keys.
        watcher: follows the run in this process.
        defaults: of all keys; runs of earlier versions lack newer keys, and behaved as with their defaults.

    Attributes:
        metrics: its ``metrics.jsonl``.
        attempts: its ``provenance.json``.
        opened: whether the run has opened the folder with :meth:`create` or :meth:`reopen`.
        watcher: as given.
        ended: whether the watcher has ended the run at an evaluation.
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, bool | int | float | str],
        table: str,
        watcher: Watcher | None = None,
        defaults: Mapping[str, bool | int | float | str] | None = None,
    ) -> None:
        self.path = path
        self.watcher: Watcher = watcher or Unwatched()
        self.ended = False
        self._table = table
        self._config = dict(config)
        self._defaults = dict(defaults or {})
        self.metrics = MetricsFile(path)
        self.attempts = Attempts(path)
        self.opened = False

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name

    # ----------------------------------------------------------------------------------------- start

    def create(self, origins: Mapping[str, str]) -> None:
        """Create the folder and write ``config.toml`` and ``origins.json``.

        Args:
            origins: hashes of what the run is made from, by what each is of.

        Raises:
            ConfigurationError: if a run of this name already exists.
        """
        if has_results(self.path):
            raise ConfigurationError(
                f"run-name: there is already a run {self.path}. Choose another name, or "
                f"resume it: resume = '{self.name}'."
            )
        self.metrics.begin()
        for name in ("failures.jsonl", CLIENTS, PROVENANCE, FILE):  # of an attempt that died early
            (self.path / name).unlink(missing_ok=True)
        self._write_config(origins)
        self.opened = True

    def reopen(self, rounds: int, origins: Mapping[str, str]) -> Checkpoint | None:
        """Return the checkpoint to continue from, None if there is none; delete metrics and failures of later rounds.

        Args:
            rounds: the last round.
            origins: as for :meth:`create`, now.

        Raises:
            ConfigurationError: if there is no such run, a key that changes the results differs, what the run is made
                from has changed, or the run has more than ``rounds`` rounds already.
            RunError: if the checkpoint is damaged.
        """
        before = {**self._defaults, **read_config(self.path)}
        if differing := differing_settings(before, self._config, self._table):
            raise ConfigurationError(f"resume: run '{self.name}' had other settings. " + "; ".join(differing))
        if changed := changed_origins(self.path, origins):
            raise ConfigurationError(
                f"resume: run '{self.name}' began with another {' and another '.join(changed)}; go back to what it "
                "began with, or start a new run"
            )
        checkpoint = read_checkpoint(self.path) if _checkpoints(self.path) else None
        done = checkpoint.round if checkpoint else -1
        if done > rounds:
            raise ConfigurationError(
                f"resume: run '{self.name}' has {done} rounds already, rounds = {rounds} asks for fewer"
            )
        self.metrics.cut(after=done)
        self._forget_failures(after=done)
        self._write_config(origins)
        self.opened = True
        return checkpoint

    def hold(self, frozen: Frozen) -> None:
        """Write the frozen parameters, which neither checkpoints nor clients' states contain."""
        if frozen.arrays and hash_of(read_frozen(self.path)) != frozen.hash:
            write_tensors(self.path / FILE, frozen.arrays)

    def _write_config(self, origins: Mapping[str, str]) -> None:
        write_text(self.path / ORIGINS, json.dumps(origins, indent=2) + "\n")
        write_text(self.path / "config.toml", tomli_w.dumps(nested(self._config)))

    # ---------------------------------------------------------------------------------------- during

    def status(self, state: str, **facts: object) -> None:
        """Write ``status.json``.

        Args:
            state: "running", "completed", "stopped" (by its user, to be resumed) or "failed".
            facts: further entries.
        """
        text = json.dumps({"state": state, **facts}) + "\n"
        try:
            write_text(self.path / STATUS, text)
        except FileError:
            if state != "failed":
                raise
            overwrite_text(self.path / STATUS, text)  # that the disk is full may be why it failed
        if state != "running":
            self.attempts.end()
        self.watcher.progressed({"state": state, **facts})

    def record(self, line: dict[str, Any]) -> None:
        """Append a line to ``metrics.jsonl``; ask the watcher whether the run ends, if the round was evaluated."""
        self.metrics.add(line)
        ends = self.watcher.recorded(line)
        if is_evaluated(line):
            stop = self.path / STOP
            self.ended = ends or stop.exists()
            stop.unlink(missing_ok=True)

    def note_failures(self, server_round: int, phase: str, reasons: Mapping[str, str]) -> None:
        """Append to ``failures.jsonl`` the clients that did not contribute to an exchange, and the reasons."""
        lines = [
            {"round": server_round, "phase": phase, "client": client, "reason": reason}
            for client, reason in reasons.items()
        ]
        append_text(self.path / "failures.jsonl", "".join(json.dumps(line) + "\n" for line in lines), private=True)

    def _forget_failures(self, after: int) -> None:
        file = self.path / "failures.jsonl"
        if file.exists():
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            write_text(file, "".join(line for line in lines if _round_of(line) <= after), private=True)

    def save(self, checkpoint: Checkpoint, keep: int | None = None) -> None:
        """Write a checkpoint file, read it back, and delete older ones. The lines of its rounds are on disk before.

        Args:
            checkpoint: the checkpoint.
            keep: a round whose checkpoint is not deleted.

        Raises:
            RunError: if what was written cannot be read; then the older ones are still there.
        """
        self.metrics.flush()
        target = self._checkpoint(checkpoint.round)
        tensors = {f"arrays/{name}": array for name, array in checkpoint.arrays.items()}
        tensors |= {f"state/{name}": array for name, array in checkpoint.state.items()}
        metadata = {"round": str(checkpoint.round), "facts": json.dumps(checkpoint.facts)}
        write_tensors(target, tensors, metadata)
        with _damaged(target):
            check_tensors(target)
        for old in target.parent.glob("round-*.safetensors"):
            if old != target and (keep is None or old != self._checkpoint(keep)):
                old.unlink(missing_ok=True)

    def saved(self, server_round: int) -> Checkpoint:
        """Return the checkpoint of a round; raise :class:`RunError` if it is not there, or damaged."""
        return _read(self._checkpoint(server_round))

    def _checkpoint(self, server_round: int) -> Path:
        return self.path / "checkpoint" / f"round-{server_round:06d}.safetensors"

    # ------------------------------------------------------------------------------------------- end

    def write_clients(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write ``clients.csv``: one line per evaluated client."""
        text = io.StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
        writer.writeheader()
        cells = [{n: spreadsheet_cell(v) if isinstance(v, str) else v for n, v in row.items()} for row in rows]
        writer.writerows(cells)
        write_text(self.path / CLIENTS, text.getvalue(), private=True)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        write_text(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n", private=True)


def _computes(config: Mapping[str, Value], table: str) -> Callable[[str], bool]:
    """Return whether a key affects what a run computes in a round, as a function of the key."""
    tables = (table, *TABLES, *own_tables(config))

    def computes(key: str) -> bool:
        prefix, dot, _ = key.partition(".")
        return prefix in tables if dot else key not in FREE_ON_RESUME

    return computes


def differing_settings(before: Mapping[str, Value], now: Mapping[str, Value], table: str) -> list[str]:
    """Return old and new value, in words, of each key that affects results and differs between two configurations.

    All keys affect results except ``FREE_ON_RESUME`` and the tables of other methods than ``table``, and of other
    plug-ins than those in ``now``.
    """
    computes = _computes(now, table)
    keys = [key for key in sorted(before.keys() | now.keys()) if computes(key) and before.get(key) != now.get(key)]
    return [f"{key}: was {before.get(key)!r}, is {now.get(key)!r}" for key in keys]


def deciding(config: Mapping[str, Value], table: str) -> dict[str, Value]:
    """Return the part of a configuration that decides the final figures: keys that affect results, and the length.

    Args:
        config: flat keys.
        table: the table of the method's own keys.
    """
    computes = _computes(config, table)
    return {key: value for key, value in config.items() if computes(key) or key in FIGURES_ON_RESUME}


def changed_origins(path: Path, now: Mapping[str, str]) -> list[str]:
    """Return what the run in ``path`` was made from and has changed since; [] for runs of earlier versions.

    Args:
        path: the run's folder.
        now: hashes by what each is of.

    Raises:
        RunError: if the file is damaged.
    """
    before = read_origins(path)
    return [what for what, value in now.items() if before.get(what, value) != value]


def read_origins(path: Path) -> dict[str, str]:
    """Return the hashes of what the run in ``path`` was made from, by what each is of; {} for earlier versions' runs.

    Raises:
        RunError: if the file is damaged.
    """
    file = path / ORIGINS
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{file} is damaged: {error}") from error


def read_frozen(path: Path) -> Arrays:
    """Return the frozen parameters of the run in ``path``; {} if it has none, or an earlier version carried it out.

    Raises:
        RunError: if the file is damaged.
    """
    try:
        return read_tensors(path / FILE)[0] if (path / FILE).exists() else {}
    except Exception as error:  # safetensors has its own error type
        raise RunError(f"{path / FILE} is damaged: {error}") from error


def has_results(path: Path) -> bool:
    """Return whether ``path`` holds a run with a checkpoint or a summary; one without can only begin anew."""
    return (path / "config.toml").exists() and (has_checkpoint(path) or (path / SUMMARY).exists())


def has_checkpoint(path: Path) -> bool:
    """Return whether the run in ``path`` has a checkpoint."""
    return bool(_checkpoints(path))


def newest_runs(runs_dir: str) -> list[Path]:
    """Return the folders of all runs under ``runs_dir``, the one that was last started or resumed first."""
    begun = []
    for file in folder(runs_dir).glob("*/config.toml"):
        with suppress(OSError):  # a run may be deleted meanwhile
            begun.append((file.stat().st_mtime, file.parent))
    return [path for _, path in sorted(begun, reverse=True)]


def find_run(name: str, runs_dir: str) -> Path:
    """Return the folder of run ``name``: a path to it, or its id under ``runs_dir``.

    Raises:
        ConfigurationError: if there is no such run; suggests the closest name and lists the newest runs.
    """
    for path in (folder(runs_dir) / name, folder(name)):
        if name and (path / "config.toml").is_file():
            return path.resolve()
    known = [path.name for path in newest_runs(runs_dir)]
    raise ConfigurationError(
        f"there is no run '{name}' in {folder(runs_dir)}{nearest(name, known)} Newest runs: "
        f"{', '.join(known[:5]) or 'none'}."
    )


def find_initial(init: str, seed: int, runs_dir: str) -> Path:
    """Return the folder of the run that key ``init`` names, in which ``{seed}`` stands for the run's own seed.

    Raises:
        ConfigurationError: if there is no such run.
    """
    return find_run(init.replace("{seed}", str(seed)), runs_dir)


def read_config(path: Path) -> dict[str, Any]:
    """Return the flat configuration of the run in ``path``, in the words of this version."""
    try:
        config = flatten(tomllib.loads(read_utf8(path / "config.toml")))
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} is not the folder of a run: it has no config.toml") from error
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} is not the folder of a run: {error}") from error
    if _SINCE_0_2 not in config and config.get("server-optimizer") == "adam":
        config["server-optimizer"] = "adam" if config.get("method") in _ADAM_BEFORE_0_2 else "fedadam"
    return config


def _round_of(line: str) -> float:
    """Return the round of a line of ``failures.jsonl``; infinity for one that a power cut has torn."""
    try:
        return float(json.loads(line)["round"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


@contextmanager
def earlier_version(run: str) -> Iterator[None]:
    """Context for reading a checkpoint: a missing fact means that an earlier version wrote it.

    Raises:
        RunError: in place of a KeyError.
    """
    try:
        yield
    except KeyError as error:
        raise RunError(
            f"run '{run}' is of an earlier version, whose checkpoints have no {error}; run it again, or use that "
            "version"
        ) from error


def _checkpoints(path: Path) -> list[Path]:
    """Return the checkpoint files of the run in ``path``, the newest last."""
    return sorted(path.glob("checkpoint/round-*.safetensors"))


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the newest checkpoint of the run in ``path``.

    Raises:
        RunError: if there is no checkpoint, or it is damaged.
    """
    files = _checkpoints(path)
    if not files:
        raise RunError(f"run '{path.name}' has no checkpoint yet; start it anew")
    return _read(files[-1])


def _read(file: Path) -> Checkpoint:
    """Return the checkpoint in ``file``; raise :class:`RunError` if it is damaged."""
    with _damaged(file):
        found, metadata = read_tensors(file)
        arrays: Arrays = {}
        state: Arrays = {}
        for key, array in found.items():
            kind, _, name = key.partition("/")
            (arrays if kind == "arrays" else state)[name] = array
        facts = json.loads(metadata["facts"])
        # safetensors does not keep the order of names, on which NumPyClient's lists of arrays depend.
        arrays = {name: arrays[name] for name in facts["order"]}
        return Checkpoint(int(metadata["round"]), arrays, state, facts)


@contextmanager
def _damaged(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # safetensors has its own error type; a damaged header can raise anything
        raise RunError(
            f"the checkpoint {file} is damaged, or of another version: {type(error).__name__}: {error}"
        ) from error
