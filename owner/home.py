"""The owner's folder: the policy, the device's log and its key, the accounts, and what was withdrawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from florilegium.common.errors import DataError
from florilegium.owner.keys import make_key, read_key
from florilegium.owner.log import Log
from florilegium.owner.owned import check_owned
from florilegium.owner.policy import Policy, read_policy
from florilegium.owner.withdrawn import withdraw

POLICY = "policy.toml"


@dataclass(frozen=True)
class Home:
    """The owner's folder, which no run's process may enter."""

    folder: Path

    @property
    def policy_file(self) -> Path:
        """The policy."""
        return self.folder / POLICY

    @property
    def log_file(self) -> Path:
        """The log."""
        return self.folder / "log.jsonl"

    @property
    def usage_file(self) -> Path:
        """The account of bytes, and of what was asked."""
        return self.folder / "usage.json"

    @property
    def epsilon_file(self) -> Path:
        """The account of ε."""
        return self.folder / "epsilon.json"

    @property
    def withdrawn_file(self) -> Path:
        """What the owner has withdrawn."""
        return self.folder / "withdrawn.json"

    def policy(self) -> Policy:
        """Read the policy.

        Raises:
            DataError: if it cannot be used.
        """
        return read_policy(self.policy_file)

    def key(self) -> Ed25519PrivateKey:
        """Return the key that signs the log; it is made when it is first needed."""
        path = self.folder / "log.key"
        return read_key(path) if path.exists() else make_key(path)

    def withdraw(self, *, run: str = "", app: str = "", everything: bool = False) -> None:
        """Withdraw from a run, an app, or all, and log it: nothing of it is finished, or begins again.

        Raises:
            DataError: if that cannot be written down.
        """
        withdraw(self.withdrawn_file, run=run, app=app, everything=everything)
        self.log().add("withdrawn", run=run, app=app, everything=everything)

    def log(self) -> Log:
        """Return the log, to write to."""
        return Log(self.log_file, self.key())


def open_home(folder: Path) -> Home:
    """Return the owner's folder.

    Raises:
        DataError: if there is none, or others can enter it.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; `florilegium device policy init {folder}` makes one")
    check_owned(folder, secret=True)
    return Home(folder.resolve())
