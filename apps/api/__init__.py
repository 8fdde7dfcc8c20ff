"""The Python interface, ``import florilegium as fl`` (docs/python.md); everything else in the package is internal."""
