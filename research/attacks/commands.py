"""``florilegium audit``: attack a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from florilegium.apps.cli.groups import PRIVACY, Group
from florilegium.apps.cli.options import RunsDir, of_run, run_path

commands = Group(PRIVACY)

Attack = Literal["one-run", "canary", "gradient", "trajectory", "membership"]

ATTACKS: Mapping[Attack, str] = {
    "one-run": "florilegium.research.attacks.audit:audit",
    "canary": "florilegium.research.attacks.canary:attack",
    "gradient": "florilegium.research.attacks.gradient:attack",
    "trajectory": "florilegium.research.attacks.trajectory:attack",
    "membership": "florilegium.research.attacks.membership:attack",
}


@commands.add("florilegium audit RUN --attack membership")
def audit(
    run: Annotated[str, of_run("id or folder of a finished run")],
    attack: Annotated[
        Attack, typer.Option(help="how to attack it; one-run needs a run with key canaries set")
    ] = "one-run",
    runs_dir: RunsDir = None,
) -> None:
    """Attack what a finished run releases: print what an attacker finds, and write it to the run's folder."""
    from florilegium.common.references import resolve

    print(resolve(ATTACKS[attack])(run_path(run, runs_dir)).table(), end="")
