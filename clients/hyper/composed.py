"""Keys of methods that add the client's class prior to another method."""

from __future__ import annotations

from florilegium.clients.hyper.classwise import OwnPriorHyper
from florilegium.clients.hyper.hypernetworks import PeFLLHyper
from florilegium.clients.hyper.personal import DittoHyper


class DittoPriorHyper(DittoHyper, OwnPriorHyper):
    """Keys ``ditto-prior.*``."""


class PeFLLPriorHyper(PeFLLHyper, OwnPriorHyper):
    """Keys ``pefll-prior.*``."""
