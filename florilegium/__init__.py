"""Federated-learning methods as one Flower App.

In an installed package the layers (``florilegium.apps``, ``florilegium.strategies``, …) lie in this folder. In a
checkout, and where Flower has unpacked the app, they lie beside it, at the top level, and are found there.
"""

from pathlib import Path as _Path

_here = _Path(__file__).resolve().parent
if not (_here / "apps").is_dir():
    __path__.append(str(_here.parent))
