"""The command that plans a privacy budget."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

import typer

from florilegium.apps.cli.groups import PRIVACY, Group

log = logging.getLogger("flwr")

private = Group(PRIVACY)

Sampling = Literal["poisson", "fixed", "slots"]
Mechanism = Literal["gaussian", "tree", "matrix"]
NoiseAt = Literal["server", "device"]


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
