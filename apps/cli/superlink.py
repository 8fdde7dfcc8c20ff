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
    from florilegium.apps.devices.flower_inside import hand_over, tested

    if not tested():
        needs = "a database that waits two minutes for a lock needs"
        hand_over("flower-superlink", context.args, needs, "waits five seconds")
    from florilegium.apps.devices.patient_superlink import serve  # imports what other versions of Flower may lack

    serve(context.args)
