"""``florilegium app``: write the Flower app to a folder, sign it, and check who has signed a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from florilegium.apps.cli.groups import RUN, Group

KeyFile = Annotated[Path, typer.Option("--key", help="file of an ed25519 key (`florilegium app key`)")]
WRITE = "write"


class AppCommands(TyperGroup):
    """Commands of an app; ``florilegium app FOLDER`` is short for ``florilegium app write FOLDER``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, and the rest of them."""
        known = args[0] in self.commands or args[0].startswith("-")
        return super().resolve_command(ctx, args if known else [WRITE, *args])


apps = Group(RUN, cls=AppCommands, no_args_is_help=True, help="Write the Flower app; sign it, and check a signature.")


@apps.add("florilegium app write fl-app")
def write(folder: Annotated[Path, typer.Argument(help="a new folder")]) -> None:
    """Write the Flower app to a folder, for `flwr run FOLDER` without a checkout of Florilegium."""
    from florilegium.apps.origins.app_folder import write_app

    print(write_app(folder))


@apps.add("florilegium app key site.key")
def key(file: Annotated[Path, typer.Argument(help="a new file; its public half goes to FILE.pub")]) -> None:
    """Make an ed25519 key to sign apps with, in a file of mode 0600; print its public half."""
    from florilegium.common.files import write_text
    from florilegium.owner.keys import make_key, public

    told = public(make_key(file))
    write_text(file.with_name(f"{file.name}.pub"), f"{told}\n")
    print(told)


@apps.add("florilegium app sign fl-app --key site.key")
def sign(folder: Annotated[Path, typer.Argument(help="the app's folder")], key: KeyFile) -> None:
    """Sign an app: write a signature over its whole bundle into its `pyproject.toml`."""
    from florilegium.apps.devices.bundles import bundle_of
    from florilegium.owner.keys import public, read_key
    from florilegium.owner.signing import sign as write_signature
    from florilegium.owner.signing import signer

    owner = read_key(key)
    write_signature(folder, bundle_of(folder), owner)
    assert signer(bundle_of(folder)) == public(owner)  # what Flower makes of it keeps the signature
    print(public(owner))


@apps.add("florilegium app verify fl-app --signer site.key.pub")
def verify(
    app: Annotated[Path, typer.Argument(help="the app's folder, or a bundle (.fab)")],
    signer: Annotated[str, typer.Option(help="the public key that must have signed it, or a file with it")] = "",
) -> None:
    """Print the hash of an app's bundle, and the key that has signed it; exit with 1 if nobody, or another has."""
    import hashlib

    from florilegium.apps.devices.bundles import bundle_of
    from florilegium.owner.signing import signer as signer_of

    content = bundle_of(app)
    found = signer_of(content)
    wanted = Path(signer).read_text(encoding="ascii").strip() if signer and Path(signer).is_file() else signer
    print(f"bundle {hashlib.sha256(content).hexdigest()}\nsigned by {found or 'nobody'}")
    if found is None or wanted not in ("", found):
        raise typer.Exit(1)
