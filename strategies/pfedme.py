"""pFedMe, server side (Dinh et al. 2020, Algorithm 1).

w ← (1 − β)w + β·mean(w_i), which is FedAvg's step with β = ``server-learning-rate``. The personal models stay with
their clients.
"""

from __future__ import annotations

from strategies.fedavg import FedAvg


class PFedMe(FedAvg):
    """Averaging of the local models w_i."""
