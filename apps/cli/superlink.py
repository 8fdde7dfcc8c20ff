"""``florilegium superlink``: the server that devices connect to."""

from __future__ import annotations

import typer

from florilegium.apps.cli.groups import DEVICES, Group

linking = Group(DEVICES)


@linking.add(
    "florilegium superlink --insecure --port 8000 --database /var/lib/florilegium/superlink.db",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def superlink(context: typer.Context) -> None:
    """Run Flower's SuperLink with a database that waits two minutes for a lock instead of five seconds.

    Large models need that. All options are those of flower-superlink.
    """
    from florilegium.apps.devices.patient_superlink import serve

    serve(context.args)
