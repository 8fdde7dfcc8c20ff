"""Ditto with class priors, client side: both of Ditto's models are trained with the logits of the client's own prior.

The global model wᵗ and the personal model v_k minimise the cross-entropy of f(x) + ln π_k + ln C, v_k with Ditto's
proximal term; v_k predicts with the same logits. Neither model has the prior in it while it is averaged, compared or
kept.

Strategy: FedAvg (``strategies/fedavg.py``).
"""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training
from florilegium.clients.ditto import DittoClient
from florilegium.clients.families.own_prior import OwnPriorClient
from florilegium.clients.hyper.composed import DittoPriorHyper


class DittoPriorClient(OwnPriorClient, DittoClient):
    """Trains Ditto's two models with its own class prior."""

    training = Training("its class frequencies are in its gradients", stacked=True)
    hyper: DittoPriorHyper
