"""The command ``florilegium ui``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from florilegium.apps.cli.groups import INSPECT, Group
from florilegium.apps.cli.options import RunsDir, runs_folder

commands = Group(INSPECT)

TOKEN = "FLORILEGIUM_UI_TOKEN"


@commands.add("florilegium ui --port 8300")
def ui(
    runs_dir: RunsDir = None,
    host: Annotated[
        str, typer.Option(help=f"address to listen on; one that other machines reach needs a token, in {TOKEN}")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8265,
    name: Annotated[
        list[str] | None, typer.Option(help="a further name by which browsers call this machine; repeatable")
    ] = None,
    own_code: Annotated[
        bool, typer.Option("--own-code", help="import code of your own that runs name, to compare them and to predict")
    ] = False,
) -> None:
    """Show the runs in a browser: list, live curves, clients, skipped clients, comparisons, predictions."""
    from florilegium.common.settings import folder
    from florilegium.ui.serving import serve

    root = folder(runs_folder(runs_dir))
    serve(root, host, port, name or [], os.environ.get(TOKEN, ""), own_code=own_code)
