"""The ServerApp: checks the configuration, builds the run, starts the method's strategy."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from apps.code_version import code_version
from apps.experiment import run_folder
from apps.methods import METHODS, table_of
from apps.settings import Settings, parse
from clients.wire import pack
from clients.worker import tune_process
from common.errors import FlorilegiumError
from models.networks import build
from models.parameters import get_arrays
from partitions.datasets import find_spec
from partitions.federation import federate
from strategies.example_privacy import refuse_examples
from strategies.roster import Client, Roster
from strategies.run_folder import RunFolder

app = ServerApp()
log = logging.getLogger("flwr")


def population(settings: Settings) -> list[Client]:
    """Return the clients of the simulated federation."""
    federation, _ = federate(settings)
    return [
        Client(str(i), int(train), int(test), bool(unseen), bool(labeled))
        for i, (train, test, unseen, labeled) in enumerate(
            zip(
                federation.train.sizes,
                federation.test.sizes,
                federation.unseen,
                federation.labeled,
                strict=True,
            )
        )
    ]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment."""
    run: RunFolder | None = None
    try:
        settings, hyper = parse(context.run_config)
        method = METHODS[settings.method]
        if advice := method.client().finetuning_advice(settings.finetune_epochs):
            log.warning("method '%s': %s", settings.method, advice)
        run = RunFolder(run_folder(settings), context.run_config, table_of(settings.method))
        print(f"run folder: {run.path}", flush=True)
        tune_process(settings.device, one_thread=True)
        spec = find_spec(settings.dataset)
        network = build(settings.model, spec.shape, spec.classes, settings.seed)
        initial = get_arrays(network)
        if settings.privacy.unit == "example":
            refuse_examples(settings, method.client().example_gap(hyper), network)
        # On real devices the data are theirs; only a simulation shares a dataset out.
        roster = Roster(lambda: population(settings), settings.num_clients, code_version(), settings.roster_timeout)
        strategy = method.strategy()(settings, hyper, roster, run)
        strategy.start(grid, pack(initial), num_rounds=settings.rounds, timeout=settings.start_timeout)
        print(f"run folder: {run.path}", flush=True)
    except Exception as error:
        message = str(error) if isinstance(error, FlorilegiumError) else f"{type(error).__name__}: {error}"
        # A run that could not be resumed stays what it was.
        if run is not None and (run.opened or not (run.path / "config.toml").exists()):
            run.status("failed", error=message)
        if isinstance(error, FlorilegiumError):
            log.error("%s", message)
        raise
