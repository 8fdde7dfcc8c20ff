"""SpherePacking, client side: the steps of FedDP-Lloyds."""

from __future__ import annotations

from clients.kmeans import KMeansClient


class SpherePackingClient(KMeansClient):
    """Refines the server's centres."""
