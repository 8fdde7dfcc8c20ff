"""MLflow: the tracking server of ``MLFLOW_TRACKING_URI``, or a database beside the runs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from florilegium.apps.trackers.base import TrackedRun, Tracker

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

URI_VARIABLE = "MLFLOW_TRACKING_URI"
_STATUS = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_PARAMETERS = 100  # as many as a server accepts in one request
_LONGEST = 6000  # characters of a parameter


class MLflow(Tracker):
    """Sends figures to MLflow. Without ``MLFLOW_TRACKING_URI`` it writes ``<runs-dir>/mlruns/mlflow.db``."""

    package = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._local = run.path.parent / "mlruns"
        self._uri = os.environ.get(URI_VARIABLE) or f"sqlite:///{self._local / 'mlflow.db'}"
        self._own, self._round = "", 0

    @classmethod
    def check(cls) -> None:
        """Ask the server of ``MLFLOW_TRACKING_URI``, if that is set."""
        if uri := os.environ.get(URI_VARIABLE):
            _client(uri).search_experiments(max_results=1)

    @property
    def place(self) -> str:
        """The server's address, without a password, and the experiment."""
        return f"{re.sub('//[^/]*@', '//', self._uri)}, experiment {self.run.project}"

    def knows(self, own: str) -> bool:
        """Return whether MLflow still has the run."""
        client = self._connected()
        from mlflow.exceptions import MlflowException

        try:
            return client.get_run(own).info.lifecycle_stage == "active"
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def begin(self, own: str) -> str:
        """Create a run in the experiment named after the project, or go on with one."""
        client, self._own = self._connected(), own
        from mlflow.entities import Param

        if own:
            client.update_run(own, "RUNNING")
            return own
        experiment = client.get_experiment_by_name(self.run.project)
        number = experiment.experiment_id if experiment else client.create_experiment(self.run.project, self._files())
        self._own = client.create_run(number, run_name=self.run.name).info.run_id
        parameters = [Param(_name(key), str(value)[:_LONGEST]) for key, value in self.run.config.items()]
        for first in range(0, len(parameters), _PARAMETERS):
            client.log_batch(self._own, params=parameters[first : first + _PARAMETERS])
        return self._own

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Send figures as metrics, with the round as their step."""
        from mlflow.entities import Metric

        self._round, now = round, int(time.time() * 1000)
        metrics = [Metric(_name(name), float(value), now, round) for name, value in figures.items()]
        self._connected().log_batch(self._own, metrics=metrics)

    def end(
        self, state: str, summary: Mapping[str, float], files: Sequence[Path], clients: Mapping[str, Sequence[float]]
    ) -> None:
        """Send the summary's figures as metrics and the files as artifacts, and set the run's status."""
        self.log(self._round, {f"summary/{name}": value for name, value in summary.items()})
        for file in files:
            self._connected().log_artifact(self._own, str(file))
        if state in _STATUS:
            self._connected().set_terminated(self._own, _STATUS[state])

    def _connected(self) -> MlflowClient:
        if URI_VARIABLE not in os.environ:
            self._local.mkdir(parents=True, exist_ok=True)
        return _client(self._uri)

    def _files(self) -> str | None:
        """Return the address of a new experiment's artifacts; None: the server's own."""
        return None if os.environ.get(URI_VARIABLE) else (self._local / "artifacts" / self.run.project).as_uri()


def _client(uri: str) -> MlflowClient:
    # MLflow's own patience, seven times two minutes, would hold up the run when the network is gone.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def _name(name: str) -> str:
    """Return a name with "_" for what MLflow does not accept."""
    return re.sub(r"[^\w\-. :/]", "_", name)
