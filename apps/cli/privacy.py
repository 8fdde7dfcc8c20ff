"""Commands that plan a privacy budget and attack finished runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from florilegium.apps.cli.groups import PRIVACY, Group
from florilegium.apps.cli.options import RunsDir, of_run, runs_folder

log = logging.getLogger("flwr")

private = Group(PRIVACY)

Sampling = Literal["poisson", "fixed", "slots"]
Mechanism = Literal["gaussian", "tree", "matrix"]
NoiseAt = Literal["server", "device"]
Attack = Literal["one-run", "canary", "gradient", "trajectory", "membership"]

ATTACKS: Mapping[Attack, str] = {
    "one-run": "florilegium.apps.studies.audit:audit",
    "canary": "florilegium.apps.studies.attacks.canary:attack",
    "gradient": "florilegium.apps.studies.attacks.gradient:attack",
    "trajectory": "florilegium.apps.studies.attacks.trajectory:attack",
    "membership": "florilegium.apps.studies.attacks.membership:attack",
}


@private.add("florilegium privacy --epsilon 8 --clients 1000 --cohort 100 --rounds 200")
def privacy(
    clients: Annotated[int, typer.Option(help="clients that may take part; or one client's examples")],
    cohort: Annotated[int, typer.Option(help="clients in a round; or the batch size")],
    rounds: Annotated[int, typer.Option(help="number of rounds; or a client's steps in all rounds")],
    epsilon: Annotated[float, typer.Option(help="the budget ε; or give --noise-multiplier")] = 0.0,
    delta: Annotated[float, typer.Option(help="δ, the probability that the guarantee fails")] = 1e-5,
    noise_multiplier: Annotated[float, typer.Option(help="standard deviation of the noise ÷ clip norm")] = 0.0,
    sampling: Annotated[Sampling, typer.Option(help="key privacy.sampling; only poisson amplifies")] = "poisson",
    mechanism: Annotated[Mechanism, typer.Option(help="key privacy.mechanism, for --sampling slots")] = "gaussian",
    noise_at: Annotated[NoiseAt, typer.Option(help="key privacy.noise-at; device is for --sampling fixed")] = "server",
    failing: Annotated[int, typer.Option(help="with --noise-at device: clients of each cohort that fail")] = 0,
    secure_aggregation: Annotated[
        bool, typer.Option("--secure-aggregation", help="with --noise-at device: discrete noise on secure sums")
    ] = False,
    clip_norm: Annotated[float, typer.Option(help="largest norm of a contribution")] = 1.0,
    parameters: Annotated[int, typer.Option(help="parameters of the network, to compare signal and noise")] = 0,
) -> None:
    """Plan a privacy budget before any run: the noise it needs, and the remaining signal-to-noise ratio."""
    from florilegium.apps.assembly.privacy_plan import Devices, check_shown, make_plan
    from florilegium.common.errors import ConfigurationError
    from florilegium.privacy.delta import delta_warning

    check_shown(clip_norm, parameters)
    if noise_at == "server" and (failing or secure_aggregation):
        raise ConfigurationError("failing, secure-aggregation: these change the account only with --noise-at device")
    plan = make_plan(
        clients, cohort, rounds, delta, epsilon=epsilon, noise_multiplier=noise_multiplier, sampling=sampling,
        mechanism=mechanism, devices=Devices(failing, secure_aggregation) if noise_at == "device" else None,
    )  # fmt: skip
    if warning := delta_warning("delta", delta, clients, "clients"):
        log.warning("%s", warning)
    print(plan.table(clip_norm, parameters))


@private.add("florilegium audit RUN --attack membership")
def audit(
    run: Annotated[str, of_run("id or folder of a finished run")],
    attack: Annotated[
        Attack, typer.Option(help="how to attack it; one-run needs a run with key canaries set")
    ] = "one-run",
    runs_dir: RunsDir = None,
) -> None:
    """Attack what a finished run releases: print what an attacker finds, and write it to the run's folder."""
    from florilegium.common.references import resolve
    from florilegium.strategies.core.run_folder import find_run

    print(resolve(ATTACKS[attack])(find_run(run, runs_folder(runs_dir))).table(), end="")
