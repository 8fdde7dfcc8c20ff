"""The common task in other packages, each in an environment of its own, beside ours: section ``peers``."""
