"""A run as an object: its figures as tables, its models, its predictions and its picture."""

from __future__ import annotations

import copy
import html
import json
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from florilegium.apps.runs.run_list import ListedRun, list_folder, state_of
from florilegium.apps.settings.configuration import defaults, read_settings
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.strategies.folder.main_figure import MainFigure, read_main
from florilegium.strategies.folder.metrics_file import TRAINING, read_metrics
from florilegium.strategies.folder.results import WORDS, read_clients, read_summary
from florilegium.strategies.folder.run_folder import find_run, read_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

GROUPS = ("seen", "unseen", "unlabeled", "target")


class Run:
    """A run in its folder, finished or not. Tables are read from its files at each access.

    Args:
        path: the run's folder.

    Attributes:
        path: the run's folder.
        name: the run's id.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def __repr__(self) -> str:
        return f"<florilegium run {self.name}: {self.state}, {self.config['method']} on {self.config['dataset']}>"

    def _repr_html_(self) -> str:
        last = self.metrics.tail(len(self.metrics["group"].unique())) if len(self.metrics) else self.metrics
        shown = last[[name for name in ("round", "group", self._main.name, "loss") if name in last]]
        table = shown.to_html(index=False, float_format="{:.4f}".format)
        return f"<p><code>{html.escape(self.name)}</code>: {html.escape(self.state)}</p>{table}"

    @property
    def state(self) -> str:
        """How far the run is: "running", "completed", "stopped" (to be resumed), "failed", or "unknown"."""
        return state_of(self.path)

    @cached_property
    def config(self) -> dict[str, Value]:
        """The complete configuration, with flat keys such as ``"learning-rate"`` and ``"fedprox.mu"``."""
        return read_config(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of ``summary.json``: final figures, rounds, seconds, bytes; {} until the run has completed."""
        return read_summary(self.path)

    @property
    def _main(self) -> MainFigure:
        return read_main(self.summary)

    @property
    def metrics(self) -> pd.DataFrame:
        """All evaluations: a row per round and group of clients, with figures (shares as fractions), bytes, seconds."""
        rows = [
            {"round": line["round"], "group": group, **line[group]}
            | {name: value for name, value in line.items() if name not in (*GROUPS, TRAINING, "round")}
            for line in read_metrics(self.path)
            for group in GROUPS
            if group in line
        ]
        return pd.DataFrame(rows, columns=None if rows else ["round", "group"])

    @property
    def training(self) -> pd.DataFrame:
        """The training of every round, a row each: loss, learning rate, cohort, norms, bytes, seconds by phase.

        docs/run-folder.md explains the columns; seconds of the phases are in "seconds_train",
        "seconds_server" and so on. Numbers that no client reported are NaN. Runs of earlier versions have no rows.
        """
        rows = [{"round": line["round"], **line[TRAINING]} for line in read_metrics(self.path) if TRAINING in line]
        return pd.json_normalize(rows, sep="_") if rows else pd.DataFrame(columns=["round"])

    @property
    def clients(self) -> pd.DataFrame:
        """The last evaluation, a row per client: group, numbers of examples, figures, loss."""
        lines = read_clients(self.path)
        if not lines:
            return pd.DataFrame(columns=["client", "group"])
        return pd.DataFrame(lines).apply(
            lambda cells: cells if cells.name in WORDS else pd.to_numeric(cells.replace({"": None, "nan": None}))
        )

    @property
    def failures(self) -> pd.DataFrame:
        """Clients that did not contribute to an exchange: round, phase, client, reason."""
        path = self.path / "failures.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return pd.DataFrame([json.loads(line) for line in lines], columns=["round", "phase", "client", "reason"])

    def model(self, client: str | int | None = None) -> nn.Module:
        """Return the run's model from its last checkpoint, ready for inference.

        Args:
            client: a client's id, or its name in the data: the model that this client predicts with, personalised where
                the method does that. None: the global model.

        Raises:
            ConfigurationError: if there is no such client, or the method has no global model.
            RunError: if the run has no checkpoint yet.
        """
        from florilegium.apps.runs.personal import find_client, global_model, model_of, reopened

        with reopened(self.path) as again:
            if client is None:
                model = global_model(again)
            else:
                members = again.strategy.clients
                model = model_of(again, find_client(str(client), members, self.name))
            return copy.deepcopy(model).eval().requires_grad_(False)

    def predict(self, inputs: Any, client: str | int | None = None) -> pd.DataFrame:
        """Return predictions of :meth:`model`: a row per input with "class" and "probability", or "value" (regression).

        Args:
            inputs: rows in the dataset's decoded form: uint8 images or float arrays with channels first or last,
                (n, height, width) for a single channel, features (n, d), texts, a DataFrame of the dataset's columns;
                or a path to a file of such rows, as for ``florilegium
                predict``.
            client: as for :meth:`model`.

        Raises:
            DataError: if the inputs do not fit the dataset.
        """
        from florilegium.apps.runs.predictions import inputs_of, table_of_predictions

        settings = read_settings(self.path)[0]
        if settings.standardise == "client" and client is None:
            raise ConfigurationError(
                "client: inputs are standardised by each client's own rows; name the client whose model is to predict"
            )
        rows, spec = inputs_of(inputs, settings)
        return table_of_predictions(self.model(client), rows, spec)

    def plot(self) -> Figure:
        """Return a picture: the main figure over rounds and over bytes, and its distribution over the clients."""
        from florilegium.apps.reports.pictures import plot_pools
        from florilegium.apps.reports.pools import Pool
        from florilegium.apps.reports.run_records import read_run

        run = read_run(self.path)
        return plot_pools([Pool(run.method, (run,))])

    def audit(self) -> pd.Series:
        """Attack the run's models to find its canaries, as ``florilegium audit`` does; return what was found.

        Returns:
            "canaries", "guesses" and "correct" guesses; the attack's "advantage", −1 to 1; "epsilon_at_least", the
            lower bound on ε at 95 % confidence; "epsilon_claimed", of the run's own account, infinite without one.

        Raises:
            ConfigurationError: if this is an installed package without the research tools.
            RunError: if the run has no canaries, or its account does not cover the attack.
        """
        from florilegium.apps.origins.package import research

        found = research("florilegium.research.attacks.audit:audit", "audit")(self.path)
        return pd.Series(
            {
                "canaries": found.canaries, "guesses": found.guesses, "correct": found.correct,
                "advantage": found.advantage, "epsilon_at_least": found.bound, "epsilon_claimed": found.claimed,
            }, name=self.name,
        )  # fmt: skip

    def export(self, target: str | Path, client: str | int, *, onnx: bool = False) -> Path:
        """Write a client's model to a folder, as ``florilegium export`` does; return the folder.

        Args:
            target: folder for model.safetensors and card.json.
            client: the client's number, or the name of a natural client.
            onnx: also write model.onnx.
        """
        from florilegium.apps.runs.personal import personalise

        return personalise(self.path, Path(target), str(client), onnx=onnx)

    def track(self, to: str, project: str = "") -> int:
        """Send the run to a tracker, as ``florilegium track`` does; what the tracker has already is not sent again.

        Args:
            to: tensorboard, mlflow, wandb, or package.module:Class.
            project: name that groups runs (default: the run's key tracker-project).

        Returns:
            The number of rounds of which something was sent.

        Raises:
            ConfigurationError: if the tracker cannot be used.
            RunError: if sending fails.
        """
        from florilegium.apps.trackers.sending import track

        return track(self.path, to, project).rounds


def open_run(name: str | Path, runs_dir: str | Path | None = None) -> Run:
    """Return a run by its id or folder.

    Args:
        name: the id under ``runs_dir``, or the path of a run's folder.
        runs_dir: the folder of runs; by default that of the key ``runs-dir``.

    Raises:
        ConfigurationError: if there is no such run; the message lists the newest ones.
    """
    return Run(find_run(str(name), str(runs_dir or defaults()["runs-dir"])))


def list_runs(runs_dir: str | Path | None = None) -> pd.DataFrame:
    """Return a table of all runs in a folder, the newest first.

    It has state, method, dataset, seed, rounds, and the main figure in a column of its name, such as "accuracy".
    """
    runs = [*list_folder(str(runs_dir or defaults()["runs-dir"]))]
    facts = [field.name for field in fields(ListedRun) if field.name not in ("figure", "value")]
    rows = [{name: getattr(run, name) for name in facts} | {run.figure: run.value} for run in runs]
    figures = dict.fromkeys(run.figure for run in runs or [ListedRun("", "unknown")])
    return pd.DataFrame(rows, columns=[*facts, *figures])
