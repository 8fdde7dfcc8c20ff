"""The ServerApp: puts the run together and starts the method's strategy."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from florilegium.apps.assembly.parts import assemble, open_folder, outcome_noted
from florilegium.apps.runs.experiment import run_folder
from florilegium.apps.settings.configuration import parse, received
from florilegium.apps.trackers.registry import check_tracker
from florilegium.apps.trackers.sending import attached
from florilegium.clients.core.wire import pack
from florilegium.common.child import ended_with_the_parent
from florilegium.common.errors import FlorilegiumError
from florilegium.strategies.exchange.flower_objects import use_files
from florilegium.strategies.folder.run_folder import Unwatched

PROGRAM = "flwr-serverapp"
"""Flower's program that runs this app beside a SuperLink, which does not notice that the SuperLink is gone."""

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment; with a SuperLink that has been killed, its process ends too, and releases the run."""
    use_files(grid)
    with ended_with_the_parent() if Path(sys.argv[0]).name == PROGRAM else nullcontext():
        _carry_out(grid, context)


def _carry_out(grid: Grid, context: Context) -> None:
    try:
        config = received(context.run_config)
        settings, _ = parse(config)
        check_tracker(settings.tracker)
        path = run_folder(settings)
        run = open_folder(path, config, settings.method, attached(Unwatched(), config, path))
        print(f"run folder: {run.path}", flush=True)
        with outcome_noted(run):
            assembly = assemble(config, one_thread=True)
            strategy = assembly.strategy(run, engine="flower")
            strategy.start(grid, pack(assembly.initial), num_rounds=settings.rounds, timeout=settings.start_timeout)
        print(f"run folder: {run.path}", flush=True)
    except FlorilegiumError as error:
        log.error("%s", error)
        raise
