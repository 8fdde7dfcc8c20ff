"""``python -m florilegium`` is the command ``florilegium``."""

from florilegium.apps.cli.app import main

if __name__ == "__main__":
    main()
