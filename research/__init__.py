"""Studies of single papers, attacks on finished runs, boards of methods, and the ledger of all papers' numbers.

A layer above ``florilegium.apps``, in a checkout and an editable install; neither in the wheel nor in Flower's app.
"""
