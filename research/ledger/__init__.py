"""The ledger of fidelity: every number that the papers print, beside what was measured here.

``published/<paper>.toml`` has a paper's tables as printed. ``measured/<paper>.toml`` has our values, cell by cell, as
they stand on the pages in ``docs/results``, and for each cell without one the reason.
"""
