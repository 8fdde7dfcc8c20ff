"""TensorBoard: event files in the run's own folder, shown by ``tensorboard --logdir <runs-dir>``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from florilegium.apps.trackers.base import TrackedRun, Tracker


class TensorBoard(Tracker):
    """Writes event files to ``<run folder>/tensorboard``, in single precision."""

    package = "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._folder = run.path / "tensorboard"
        self._round = 0

    @property
    def place(self) -> str:
        """The folder of the event files."""
        return str(self._folder)

    def knows(self, own: str) -> bool:
        """Return whether the folder has event files."""
        return any(self._folder.glob("events.out.tfevents.*"))

    def begin(self, own: str) -> str:
        """Open a new event file beside those of earlier attempts, which TensorBoard shows as one run."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        if not own:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._writer = SummaryWriter(str(self._folder))
        if not own:
            _, started, _ = hparams(dict(self.run.config), {})
            self._writer.file_writer.add_summary(started)
        return self.run.name

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Write figures to disk."""
        self._round = round
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(
        self, state: str, summary: Mapping[str, float], files: Sequence[Path], clients: Mapping[str, Sequence[float]]
    ) -> None:
        """Write the summary's figures and a histogram over clients, and close the event file."""
        self.log(self._round, {f"summary/{name}": value for name, value in summary.items()})
        for name, values in clients.items():
            self._writer.add_histogram(f"clients/{name}", np.array(values), self._round)
        self._writer.close()
