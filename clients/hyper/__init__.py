"""The keys of every method, ``<method>.*``: defaults, ranges, meanings.

They are separate from the methods' clients, so that a configuration can be checked without importing PyTorch, which
takes seconds.
"""
