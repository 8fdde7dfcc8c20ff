"""Weights & Biases: its server, or with ``WANDB_MODE=offline`` a folder that ``wandb sync`` sends later."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from florilegium.apps.trackers.base import TrackedRun, Tracker
from florilegium.common.errors import ConfigurationError

_PATIENCE = 60.0
"""Seconds that a run waits at its end for figures to be sent; they remain on disk."""


class WeightsAndBiases(Tracker):
    """Sends figures to Weights & Biases; its files lie in ``WANDB_DIR``, or in ``<run folder>/wandb``."""

    package = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._round = 0

    @classmethod
    def check(cls) -> None:
        """Check the API key with the server, unless ``WANDB_MODE`` is something else than online."""
        if os.environ.get("WANDB_MODE", "online") != "online":
            return
        import wandb

        if not wandb.login(prompt=False):
            raise ConfigurationError("there is no API key; call `wandb login`, or set WANDB_MODE=offline")

    @property
    def place(self) -> str:
        """Mode, server and project."""
        mode = os.environ.get("WANDB_MODE", "online")
        where = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai") if mode == "online" else mode
        return f"{where}, project {self.run.project}"

    def begin(self, own: str) -> str:
        """Create a run, or go on with one. Neither code nor what is printed is sent."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, reinit="create_new",
            finish_timeout=_PATIENCE, finish_timeout_raises=True,
        )  # fmt: skip
        self._run = wandb.init(
            project=self.run.project, name=self.run.name, config=dict(self.run.config), id=own or None,
            dir=None if os.environ.get("WANDB_DIR") else str(self.run.path), settings=settings,
            resume="allow" if own and os.environ.get("WANDB_MODE", "online") == "online" else None,
        )  # fmt: skip
        return str(self._run.id)

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Send figures, with the round as their step."""
        self._round = round
        self._run.log(dict(figures), step=round)

    def end(
        self, state: str, summary: Mapping[str, float], files: Sequence[Path], clients: Mapping[str, Sequence[float]]
    ) -> None:
        """Send a histogram over clients, the summary's figures and the files, and finish the run."""
        import wandb

        for name, values in clients.items():
            self._run.log({f"clients/{name}": wandb.Histogram(list(values))}, step=self._round)
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        artifact = wandb.Artifact(self.run.name, type="run")
        for file in files:
            artifact.add_file(str(file), policy="immutable")
        self._run.log_artifact(artifact)
        self._run.finish(exit_code=int(state == "failed"))
