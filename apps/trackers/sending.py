"""Send a run's figures to a tracker: of a run in its folder, or of one that this process carries out."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from florilegium.apps.settings.configuration import complete
from florilegium.apps.trackers.following import SENT, Following, tracked_run
from florilegium.apps.trackers.registry import check_tracker
from florilegium.common.errors import ConfigurationError, FlorilegiumError, RunError
from florilegium.common.settings import Value
from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import Watcher, has_results, read_config


@dataclass(frozen=True)
class Delivery:
    """What was sent.

    Attributes:
        rounds: number of rounds of which something was sent; 0 if the tracker has the run already.
        known: number of rounds that the run has.
        place: where it was sent, in words.
    """

    rounds: int
    known: int
    place: str


def track(path: Path, to: str, project: str = "") -> Delivery:
    """Send a run's figures, configuration and results to a tracker; what it has already is not sent again.

    Args:
        path: the run's folder.
        to: the tracker, as in key ``tracker``.
        project: the name under which the tracker groups runs; "": the run's key ``tracker-project``.

    Raises:
        ConfigurationError: if the tracker cannot be used, or the running run itself sends to it.
        RunError: if sending fails.
    """
    if not to:
        raise ConfigurationError("tracker: name one, such as 'tensorboard'")
    check_tracker(to)
    config = complete(read_config(path))
    state = str(read_status(path)["state"]) if (path / "status.json").exists() else "stopped"
    if state == "running" and config["tracker"] == to:
        raise ConfigurationError(f"tracker: run '{path.name}' is running and sends to '{to}' itself; wait for its end")
    try:
        following = Following(to, tracked_run(path, config, project or str(config["tracker-project"])))
        lines = read_metrics(path)
        rounds = following.send(lines)
        following.end(state)
    except FlorilegiumError:
        raise
    except Exception as error:  # every tracker has its own errors
        raise RunError(f"tracker: '{to}' did not take run '{path.name}': {type(error).__name__}: {error}") from error
    return Delivery(rounds, len(lines), following.place)


log = logging.getLogger("flwr")


def attached(watcher: Watcher, config: Mapping[str, Value], path: Path) -> Watcher:
    """Return a watcher that does what ``watcher`` does and sends the run's figures to the tracker of key ``tracker``.

    Args:
        watcher: follows the run.
        config: the complete run configuration, flat keys. Without a tracker ``watcher`` itself is returned.
        path: the folder of the run, which this process is about to create or reopen.
    """
    return _Attached(watcher, config, path) if config["tracker"] else watcher


class _Attached:
    def __init__(self, watcher: Watcher, config: Mapping[str, Value], path: Path) -> None:
        self._watcher, self._config, self._path = watcher, config, path
        self._name = str(config["tracker"])
        self._anew = not has_results(path)  # what an attempt sent that left no checkpoint belongs to another run
        self._following: Following | None = None
        self._failed = False

    @property
    def interrupted(self) -> bool:
        return self._watcher.interrupted

    def recorded(self, line: Mapping[str, Any]) -> bool:
        self._try(lambda: self._send(line))
        return self._watcher.recorded(line)

    def progressed(self, status: Mapping[str, Any]) -> None:
        self._watcher.progressed(status)
        if self._following is not None and status["state"] != "running":
            self._try(lambda: self._end(str(status["state"])))

    def _send(self, line: Mapping[str, Any]) -> None:
        if self._following is not None:
            self._following.send([line])
            return
        if self._anew:
            (self._path / SENT).unlink(missing_ok=True)
        run = tracked_run(self._path, self._config, str(self._config["tracker-project"]))
        self._following = Following(self._name, run)
        log.info("tracker %s: %s", self._name, self._following.place)
        self._following.send(read_metrics(self._path))  # of a resumed run also what was not sent before

    def _end(self, state: str) -> None:
        assert self._following is not None
        self._following.end(state)

    def _try(self, action: Callable[[], None]) -> None:
        """Carry out ``action`` unless the tracker has failed before; a failure is logged once."""
        if self._failed:
            return
        try:
            action()
        except Exception as error:  # a tracker must not take the run down, and each has its own errors
            self._failed = True
            log.warning(
                "tracker %s: %s: %s. The run goes on without it. When it has ended, send its figures: "
                "florilegium track %s --to %s --project %s",
                self._name, type(error).__name__, error, shlex.quote(str(self._path)), shlex.quote(self._name),
                shlex.quote(str(self._config["tracker-project"])),
            )  # fmt: skip
