"""PeFLL with class priors, client side: the generated model is trained with the logits of the client's own prior.

The client trains the received θ_i on the cross-entropy of f(x) + ln π_k + ln C, so that hypernetwork and embedding
network need not learn how frequent its classes are, and predicts with the same logits.

Strategy: PeFLL (``strategies/pefll.py``).
"""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.own_prior import OwnPriorClient
from florilegium.clients.hyper.composed import PeFLLPriorHyper
from florilegium.clients.hyper.hypernetworks import PeFLLHyper
from florilegium.clients.pefll import PeFLLClient


class PeFLLPriorClient(OwnPriorClient, PeFLLClient):
    """Uses the model that the server makes from its data, with its own class prior."""

    hyper: PeFLLPriorHyper

    @staticmethod
    def training(hyper: PeFLLHyper) -> Training:
        """Return that gradients reveal a client's classes."""
        return Training("its class frequencies are in its gradients", stacked=True)
