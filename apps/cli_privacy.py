"""Commands that plan a privacy budget and audit a private run."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from florilegium.apps.cli_groups import PRIVACY, Group
from florilegium.apps.cli_options import RunsDir, of_run, runs_folder

log = logging.getLogger("flwr")

private = Group(PRIVACY)


@private.add("florilegium privacy --epsilon 8 --clients 1000 --cohort 100 --rounds 200")
def privacy(
    clients: Annotated[int, typer.Option(help="clients that may take part; or one client's examples")],
    cohort: Annotated[int, typer.Option(help="clients in a round; or the batch size")],
    rounds: Annotated[int, typer.Option(help="number of rounds; or a client's steps in all rounds")],
    epsilon: Annotated[float, typer.Option(help="the budget ε; or give --noise-multiplier")] = 0.0,
    delta: Annotated[float, typer.Option(help="δ, the probability that the guarantee fails")] = 1e-5,
    noise_multiplier: Annotated[float, typer.Option(help="standard deviation of the noise ÷ clip norm")] = 0.0,
    fixed: Annotated[bool, typer.Option("--fixed", help="cohorts of a fixed size: no amplification")] = False,
    clip_norm: Annotated[float, typer.Option(help="largest norm of a contribution")] = 1.0,
    parameters: Annotated[int, typer.Option(help="parameters of the network, to compare signal and noise")] = 0,
) -> None:
    """Plan a privacy budget before any run: the noise it needs, and the remaining signal-to-noise ratio."""
    from florilegium.apps.privacy_plan import check_shown, make_plan
    from florilegium.privacy.delta import delta_warning

    check_shown(clip_norm, parameters)
    plan = make_plan(
        clients, cohort, rounds, delta, epsilon=epsilon, noise_multiplier=noise_multiplier, poisson=not fixed
    )
    if warning := delta_warning("delta", delta, clients, "clients"):
        log.warning("%s", warning)
    print(plan.table(clip_norm, parameters))


@private.add("florilegium audit RUN")
def audit(
    run: Annotated[str, of_run("id or folder of a run with key canaries set")],
    runs_dir: RunsDir = None,
) -> None:
    """Audit a run's privacy: attack its models to detect canaries, and print the lower bound on ε."""
    from florilegium.apps.studies.audit import audit as look
    from florilegium.strategies.core.run_folder import find_run

    print(look(find_run(run, runs_folder(runs_dir))).table(), end="")
