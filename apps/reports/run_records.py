"""What a report knows of a run: its folder, read into one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.origins.hashes import CODE
from florilegium.apps.runs.experiment import short_name
from florilegium.apps.runs.run_list import resume_command
from florilegium.apps.settings.configuration import complete
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.registry import partitioner_table
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.spec import DatasetSpec
from florilegium.strategies.folder.attempts import read_provenance
from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.results import read_clients, read_summary
from florilegium.strategies.folder.run_folder import deciding, read_config, read_origins

FEDERATION = {name.replace("_", "-") for name in FederationSettings.model_fields} - {"data-dir", "cache-dir", "own"}
"""Common keys that determine the clients and their data."""
COMPARED = FEDERATION | {"evaluate-on"}
"""Common keys in which runs that are compared must agree."""


@dataclass(frozen=True)
class RunRecord:
    """The results of a run.

    Attributes:
        path: the run's folder.
        config: its complete configuration, flat keys.
        summary: ``summary.json``; {} until the run has completed.
        metrics: the lines of ``metrics.jsonl``.
        clients: the lines of ``clients.csv``.
        origins: hashes of what the run was made from; {} for runs of earlier versions.
    """

    path: Path
    config: Mapping[str, Value]
    summary: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    clients: Sequence[Mapping[str, str]] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    @cached_property
    def method(self) -> str:
        """The method's name in tables: "+ft" if a client's model is fine-tuned before tests, as an option."""
        method = str(self.config["method"])
        tuned = self.config["finetune-epochs"] and METHODS[method].client_class().uses_finetuning == "option"
        return short_name(method) + ("+ft" if tuned else "")

    @cached_property
    def setting(self) -> dict[str, Value]:
        """What decides the run's figures besides the seed: settings, and code of other packages; equal runs are pooled.

        Settings of table ``privacy`` do not count in runs without privacy.
        """
        decided = deciding(self.config, table_of(str(self.config["method"])))
        private = self.config["privacy.unit"] != "none"
        kept = {key: value for key, value in decided.items() if private or not key.startswith("privacy.")}
        code = {name: value for name, value in self.origins.items() if name.startswith(CODE)}
        return {key: value for key, value in kept.items() if key != "seed"} | code

    @cached_property
    def federation(self) -> dict[str, Value]:
        """What determines clients, data and what is measured, besides the seed; runs that differ cannot be compared.

        "data" is the dataset's hash, "" if it is made from the seed, or unknown.
        """
        own = f"{partitioner_table(str(self.config['partitioner']))}."
        keys = {key: value for key, value in self.config.items() if key in COMPARED or key.startswith(own)}
        spec = DATASETS.own.get(str(self.config["dataset"]))
        made = isinstance(spec, DatasetSpec) and spec.made
        data = {"data": "" if made else self.origins.get("dataset", "unknown")}
        return {key: value for key, value in keys.items() if key != "seed"} | data

    def clients_of(self, group: str) -> int:
        """Return the number of clients of a group in the last evaluation."""
        return sum(line["group"] == group for line in self.clients)

    def identities(self) -> dict[str, str]:
        """Return by client the name that it has in every seed: its own; "" for clients that the partitioner makes."""
        return {line["client"]: line.get("name", "") for line in self.clients}

    def figures(self, figure: str) -> dict[tuple[str, str], float]:
        """Return a figure of each client in the last evaluation, by group and client."""
        return {(line["group"], line["client"]): float(line[figure]) for line in self.clients if line.get(figure)}


def read_run(path: Path) -> RunRecord:
    """Return the results so far of the run in folder ``path``.

    Raises:
        ConfigurationError: if it is not the folder of a run, or of a method that is not installed.
        RunError: if one of its files is damaged.
    """
    config = complete(read_config(path))
    if problem := METHODS.problem(str(config["method"])):
        raise ConfigurationError(f"run {path.name}: {problem}")
    read_provenance(path)  # if it is damaged, that is to be said of this run
    return RunRecord(path, config, read_summary(path), read_metrics(path), read_clients(path), read_origins(path))


def load_run(path: Path) -> RunRecord:
    """Return the results of the completed run in folder ``path``.

    Raises:
        ConfigurationError: if it is not the folder of a run, or of a method that is not installed.
        RunError: if the run has not completed, or one of its files is damaged.
    """
    run = read_run(path)
    if not run.summary:
        raise RunError(f"run {path.name} has not completed{_how_far(path)}; resume it: {resume_command(path)}")
    return run


def _how_far(path: Path) -> str:
    try:
        status = read_status(path)
    except (OSError, ValueError):
        return ""
    return f" (it {status['state']} in round {status.get('round', 0)})" if status["state"] != "running" else " yet"
