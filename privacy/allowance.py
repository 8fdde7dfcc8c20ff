"""What the owner of a device allows: a total privacy cost of one client's training, over all runs together.

The account of a run forgets with the run; this one lies beside the runs and lasts, also when they are deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from florilegium.common.errors import BudgetSpentError
from florilegium.privacy.ledger import SPENT

FOLDER = "_privacy"
"""Folder in a device's ``state-dir``; no run has this name, since names of runs do not begin with an underscore."""
DELTA = 1e-5
"""δ of the total, whatever the runs' own is."""


@dataclass(frozen=True)
class Allowance:
    """The total ε at :data:`DELTA` that a client may spend.

    Attributes:
        path: file of the account.
        most: the largest total ε, > 0.
    """

    path: Path
    most: float

    def pay(self, multiplier: float, rate: float, times: int) -> None:
        """Record releases before they are made, as in :meth:`florilegium.privacy.ledger.Ledger.add`.

        Raises:
            BudgetSpentError: if the total would exceed what is allowed, or the releases have no noise.
        """
        from florilegium.privacy.dp_sgd import Account  # Opacus takes seconds to import

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):  # several runs may train at once
            account = Account(self.path, DELTA)
            if not multiplier or account.epsilon((multiplier, rate, times)) > self.most:
                raise BudgetSpentError(f"{SPENT}: the owner of this device allows ε = {self.most:g} over all runs")
            account.add(multiplier, rate, times)
