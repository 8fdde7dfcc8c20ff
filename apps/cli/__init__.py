"""The command line, ``florilegium``."""


def main() -> None:
    """Run the command line (:func:`florilegium.apps.cli.app.main`)."""
    from florilegium.apps.cli.app import main as run  # a command's own modules do not import all others

    run()
