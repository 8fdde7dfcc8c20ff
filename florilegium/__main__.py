"""``python -m florilegium`` is the command ``florilegium``."""

from florilegium.apps.cli import main

if __name__ == "__main__":
    main()
