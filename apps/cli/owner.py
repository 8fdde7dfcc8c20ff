"""``florilegium device policy`` and ``log``: what a device's owner allows, and what was done."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Annotated, TypeVar

import click
import typer

from florilegium.apps.cli.groups import DEVICES, Group
from florilegium.apps.cli.options import Assignments
from florilegium.apps.cli.tables import show

N = TypeVar("N", int, float)
Folder = Annotated[Path, typer.Argument(help="the owner's folder, as in --owner of `florilegium device serve`")]

policy = Group(DEVICES, no_args_is_help=True, help="What the owner of a device allows: write it, check it, explain it.")
logs = Group(DEVICES, no_args_is_help=True, help="The owner's log: what was asked, what left, what was refused.")

_RISKY = (
    "rounds",
    "init",
    "canaries",
    "own",
    "embeddings",
    "server-data",
    "tracker",
    "tracker-project",
    "metrics-port",
)
"""Keys of the server that name files, start connections, or that a policy bounds."""
_TRAINING = (
    "seed", "dataset", "model", "optimizer", "local-epochs", "local-steps", "batch-size", "batch-order",
    "learning-rate", "learning-rate-decay", "decay-rounds", "momentum", "weight-decay", "weighting", "max-update-norm",
    "vectorise",
)  # fmt: skip
"""Keys of training that a first policy leaves to the run."""


@policy.add("florilegium device policy init /var/lib/a/owner --app site.pub --method fedavg --rounds 50")
def init(
    folder: Folder,
    app: Annotated[str, typer.Option(help="64 digits: the public key of a signer; or a file with it")] = "",
    bundle: Annotated[bool, typer.Option(help="--app is the SHA-256 of a bundle, not a key")] = False,
    method: Annotated[str, typer.Option(help="the method of the runs")] = "",
    rounds: Annotated[int | None, typer.Option(help="the most rounds of a run")] = None,
    epsilon: Annotated[float | None, typer.Option(help="total ε for single examples over all runs; 0: none")] = None,
    rows: Annotated[int | None, typer.Option(help="the fewest examples that a reply may be about")] = None,
    columns: Annotated[str, typer.Option(help="columns that may be read, a,b,…; any: all")] = "",
    norm: Annotated[float | None, typer.Option(help="the largest norm of an update")] = None,
    noise: Annotated[float | None, typer.Option(help="noise that the device itself adds, relative to it")] = None,
    megabytes: Annotated[int | None, typer.Option(help="MB that may leave in a day")] = None,
    until: Annotated[str, typer.Option(help="the last day, YYYY-MM-DD")] = "",
) -> None:
    """Write a first policy from a few questions: those whose options are not given."""
    from florilegium.clients.core.settings import ClientSettings
    from florilegium.common.errors import ConfigurationError
    from florilegium.owner.draft import Wishes, write_policy
    from florilegium.strategies.settings.server import ServerSettings

    app = app or typer.prompt("Whose apps may run? A public key, or a file with one")
    method = method or typer.prompt("Which method", "fedavg")
    rounds = _asked(rounds, "At most how many rounds", 50)
    epsilon = _asked(epsilon, "Total ε for single examples over all runs (0: they need no protection)", 3.0)
    rows = _asked(rows, "At least how many examples must a reply be about", 50)
    columns = columns or typer.prompt("Which columns may be read (a,b,…; any: all)", "any")
    norm = _asked(norm, "Largest norm of an update", 10.0)
    noise = _asked(noise, "Noise that the device itself adds, relative to it (0: none)", 0.0)
    megabytes = _asked(megabytes, "How many MB may leave in a day", 100)
    until = until or typer.prompt("Last day (YYYY-MM-DD)", str(date(date.today().year + 1, 12, 31)))
    told = Path(app).read_text(encoding="ascii").strip() if Path(app).is_file() else app
    theirs = [str(field.alias) for field in ClientSettings.model_fields.values()]
    servers = [str(field.alias) for field in ServerSettings.model_fields.values()]
    free = [*_TRAINING, *(key for key in servers if key not in (*theirs, *_RISKY, "fleet", "buffer"))]
    try:
        last = date.fromisoformat(until)
    except ValueError:
        raise ConfigurationError(f"--until: '{until}' is no day; write YYYY-MM-DD") from None
    home = write_policy(folder, Wishes(
        [told] if bundle else [], [] if bundle else [told], method, rounds, epsilon, rows,
        [one.strip() for one in columns.split(",") if one.strip()], norm, noise, megabytes, last, free,
    ))  # fmt: skip
    home.policy()  # a mistake in what was typed is told now
    print(home.policy_file)


def _asked(given: N | None, question: str, usual: N) -> N:
    """Return what is given, or what is typed in reply to a question."""
    return typer.prompt(question, usual, type=type(usual)) if given is None else given


@policy.add("florilegium device policy check /var/lib/a/owner", listing=True)
def check(folder: Folder) -> None:
    """Check a policy, who may change it, and say what may leave the device."""
    from florilegium.owner.explained import rules
    from florilegium.owner.home import open_home

    home = open_home(folder)
    found = home.policy()
    show(("phase", "reduce", "norm", "noise", "ε of one", "bits besides"), rules(found), str(home.policy_file))


@policy.add("florilegium device policy explain /var/lib/a/owner run.toml --set rounds=20")
def explain(
    folder: Folder,
    run: Annotated[str, typer.Argument(help="a recipe, a file of keys such as run.toml, or a run's folder")] = "",
    assignments: Assignments = None,
) -> None:
    """Say what the policy refuses of a run's configuration, before anything runs; exit with 1 if it refuses it."""
    from florilegium.apps.devices.owned import configuration
    from florilegium.apps.settings.configuration import defaults
    from florilegium.owner.admission import problems
    from florilegium.owner.home import open_home

    config = configuration(run, assignments or [])
    found = [(one.line, one.why) for one in problems(open_home(folder).policy(), config, defaults(), None)]
    if found:
        show(("line of the policy", "why the run is refused"), found)
        raise typer.Exit(1)
    print("the policy allows this configuration")


@policy.add("florilegium device policy withdraw /var/lib/a/owner --run RUN")
def withdraw(
    folder: Folder,
    run: Annotated[str, typer.Option(help="the name of a run")] = "",
    app: Annotated[str, typer.Option(help="the hash of an app's bundle")] = "",
    everything: Annotated[bool, typer.Option("--everything", help="from all runs")] = False,
) -> None:
    """Withdraw from a run, an app or all: the device finishes nothing of it, and nothing of it begins again."""
    from florilegium.common.errors import ConfigurationError
    from florilegium.owner.home import open_home

    if [bool(run), bool(app), everything].count(True) != 1:
        raise ConfigurationError("name one of --run, --app and --everything")
    open_home(folder).withdraw(run=run, app=app, everything=everything)
    print(f"withdrawn from {run or app or 'everything'}")


@logs.add("florilegium device log show /var/lib/a/owner --refused", name="show", listing=True)
def show_log(
    folder: Folder,
    run: Annotated[str, typer.Option(help="only of this run")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="only what was, or would be, refused")] = False,
) -> None:
    """List what was asked, what left the device, and what was refused by which line of the policy."""
    from florilegium.owner.explained import COLUMNS, lines
    from florilegium.owner.home import open_home

    show(COLUMNS, lines(open_home(folder).log_file, run, refused=refused))


@logs.add("florilegium device log verify /var/lib/a/owner --head 12:0f…")
def verify(
    folder: Folder,
    head: Annotated[str, typer.Option(help="COUNT:HASH that was noted earlier, elsewhere")] = "",
) -> None:
    """Check every line's hash and signature, and that no line is missing at the end; print the head, to be noted."""
    from florilegium.owner.home import open_home
    from florilegium.owner.keys import public
    from florilegium.owner.log import Head, verify_log

    home = open_home(folder)
    print(verify_log(home.log_file, public(home.key()), noted=Head.of(head) if head else None))


@logs.add("florilegium device log export /var/lib/a/owner log.json")
def export(folder: Folder, target: Annotated[Path, typer.Argument(help="a new file")]) -> None:
    """Check the log, and write it with the device's public key into one JSON file, for somebody else to check."""
    from florilegium.common.files import write_text
    from florilegium.owner.home import open_home
    from florilegium.owner.keys import public
    from florilegium.owner.log import read_log, verify_log

    home = open_home(folder)
    key = public(home.key())
    head = verify_log(home.log_file, key)
    content = {"key": key, "head": str(head), "lines": [*read_log(home.log_file)]}
    if target.exists():
        raise click.UsageError(f"{target} exists")
    write_text(target, json.dumps(content, indent=1) + "\n", private=True)
    print(target)
