"""The keys of every method, ``<method>.*``: defaults, ranges, meanings.

They are apart from the methods' clients so that a configuration can be checked without importing torch, which takes
seconds.
"""
