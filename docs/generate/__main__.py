"""``python -m docs.generate``: write the files whose generated parts are out of date."""

from docs.generate import main

if __name__ == "__main__":
    main()
