"""The ServerApp: puts the run together and starts the method's strategy."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from florilegium.apps.assembly import assemble, open_folder
from florilegium.apps.experiment import run_folder
from florilegium.apps.settings import parse
from florilegium.clients.core.wire import pack
from florilegium.common.errors import FlorilegiumError
from florilegium.partitions.loading import dataset_of, decisions
from florilegium.strategies.core.run_folder import RunFolder

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment."""
    run: RunFolder | None = None
    try:
        settings, _ = parse(context.run_config)
        run = open_folder(run_folder(settings), context.run_config, settings.method)
        print(f"run folder: {run.path}", flush=True)
        assembly = assemble(context.run_config, one_thread=True)
        for line in decisions(dataset_of(settings), settings.cache_dir):
            log.info("dataset: %s", line)
        strategy = assembly.strategy(run)
        strategy.start(grid, pack(assembly.initial), num_rounds=settings.rounds, timeout=settings.start_timeout)
        print(f"run folder: {run.path}", flush=True)
    except Exception as error:
        message = str(error) if isinstance(error, FlorilegiumError) else f"{type(error).__name__}: {error}"
        # If resuming failed, the status of the earlier run stays unchanged.
        if run is not None and (run.opened or not (run.path / "config.toml").exists()):
            run.status("failed", error=message)
        if isinstance(error, FlorilegiumError):
            log.error("%s", message)
        raise
