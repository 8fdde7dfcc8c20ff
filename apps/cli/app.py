"""The command line. Each command imports the modules that do its work only when it is called."""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from florilegium.apps.cli.apps import apps
from florilegium.apps.cli.cluster import clusters
from florilegium.apps.cli.data import data, private
from florilegium.apps.cli.device import device
from florilegium.apps.cli.groups import DEVICES, RUN, Commands, own_groups
from florilegium.apps.cli.inspect import looking
from florilegium.apps.cli.new import writing
from florilegium.apps.cli.run import running
from florilegium.apps.cli.several import together
from florilegium.apps.cli.superlink import linking
from florilegium.common.errors import FlorilegiumError
from florilegium.common.references import add_folder

cli = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
for group in (running, together, writing, looking, data):
    cli.add_typer(group)
cli.add_typer(apps, name="app", rich_help_panel=RUN)
cli.add_typer(clusters, name="cluster", rich_help_panel=RUN)
cli.add_typer(device, name="device", rich_help_panel=DEVICES)
for outside in (linking, private, *own_groups()):
    cli.add_typer(outside)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        from florilegium.apps.origins.package import version
        from florilegium.apps.origins.tested import DATE, TESTED, tested_line

        print(version())
        print("; ".join(f"{package} {metadata.version(package)}" for package in TESTED))
        print(f"tested on {DATE} with {tested_line()}")
        raise typer.Exit


@cli.callback()
def florilegium(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="print version, commit, and tested versions of other packages",
        ),
    ] = False,
) -> None:
    """Federated-learning methods as one Flower App."""


def _end(number: int, frame: FrameType | None) -> None:
    """End as on Ctrl-C, so that a run notes it and its processes end too."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def _leave() -> None:
    """Leave garbage at the end where it is: looking for it takes a second."""
    if "triton" not in sys.modules:  # its bindings write about each object that is not freed
        gc.freeze()


def main() -> None:
    """Run the command line. Wrong input exits with status 2, a failed run with 1; both print one message."""
    # While modules are imported there is no garbage: looking for some is a quarter of PyTorch's import time.
    gc.disable()
    atexit.register(_leave)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _end)
    add_folder(Path.cwd())  # so that `--set method=mine:Client` finds mine.py here
    try:
        cli(standalone_mode=True)
    except FlorilegiumError as error:
        with suppress(OSError):  # the terminal may have been closed
            Console(stderr=True).print(f"error: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
