"""Send a run in its folder, ended or running, to a tracker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from florilegium.apps.settings.configuration import complete
from florilegium.apps.trackers.following import Following, tracked_run
from florilegium.apps.trackers.registry import check_tracker
from florilegium.common.errors import ConfigurationError, FlorilegiumError, RunError
from florilegium.strategies.core.claim import read_status
from florilegium.strategies.core.metrics_file import read_metrics
from florilegium.strategies.core.run_folder import read_config


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
