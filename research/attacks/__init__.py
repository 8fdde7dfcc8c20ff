"""Attacks on what a finished run releases; each module has a function ``attack(run)`` (``florilegium audit``)."""
