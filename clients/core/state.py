"""A client's durable state between messages: a safetensors file per client, part and round, on its own disk.

Personal heads, control variates and personal models never leave the client, survive a killed process, and cost no
memory between messages. Versions make a resumed run exact: a server that restarts from a checkpoint of round r
tells its clients, and states that the interrupted attempt wrote after r are ignored. States of another run of the same
name are ignored too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from florilegium.common.errors import DataError, RunError
from florilegium.common.files import Draft, draft_tensors, read_tensors
from florilegium.models.frozen import NOTHING, Frozen
from florilegium.models.parameters import Arrays

FROZEN = "frozen"
"""Entry of a state file with the hash of the run's frozen parameters; files of earlier versions lack it."""


class ClientState:
    """The durable arrays of one client.

    Args:
        folder: folder of this client's files.
        round: number of the present round.
        lineage: the rounds from which the run was resumed so far; its length numbers the present attempt.
        checkpoint: the last round of which the server holds a checkpoint; older versions may be deleted.
        identity: distinguishes the run from others of its name; letters and digits.
        frozen: the run's frozen parameters, which are no part of the state.
        best: the round to which the run may return at its end; None: it does not.
    """

    def __init__(
        self,
        folder: Path,
        round: int,
        lineage: Sequence[int],
        checkpoint: int,
        identity: str,
        frozen: Frozen = NOTHING,
        best: int | None = None,
    ) -> None:
        self.folder = folder
        self._round = round
        self._lineage = list(lineage)
        self._checkpoint = checkpoint
        self._identity = identity
        self._frozen = frozen
        self._best = best
        self._staged: dict[str, Arrays] = {}
        self._confirmed: dict[str, int] = {}
        self._shared: ClientState | None = None

    def _versions(self, part: str) -> list[tuple[int, Path]]:
        """Return the valid versions of a part as (round, path), oldest first."""
        found = []
        for path in self._files(part):
            if match := re.fullmatch(rf"{part}-(\d+)-(\d+)-{re.escape(self._identity)}", path.stem):
                round_, attempt = int(match[1]), int(match[2])
                # Of an earlier attempt, only rounds up to the checkpoints that the run was resumed from are valid.
                last = min(self._lineage[attempt:], default=self._round)
                if round_ <= min(last, self._confirmed.get(part, last)):
                    found.append((round_, attempt, path))
        return [(round_, path) for round_, _, path in sorted(found)]

    def _files(self, part: str) -> list[Path]:
        try:
            names = os.listdir(self.folder)  # a tenth of the cost of Path.glob
        except OSError:
            return []
        return [self.folder / name for name in names if name.startswith(f"{part}-") and name.endswith(".safetensors")]

    def confirm(self, part: str, round: int) -> None:
        """Let versions of a part count only up to ``round``: the server has not used what goes with later ones."""
        self._confirmed[part] = round

    def load(self, part: str = "state") -> Arrays | None:
        """Return the newest version of a part of the state, or None for a client that has none yet.

        Raises:
            DataError: if the file is damaged.
            RunError: if it has other frozen parameters than the run; an earlier version stored them, too.
        """
        if part in self._staged:
            return self._staged[part]
        versions = self._versions(part)
        if not versions:
            return None
        try:
            found, told = read_tensors(versions[-1][1])
        except Exception as error:  # safetensors raises its own error type, OSError or ValueError
            raise DataError(
                f"the state file {versions[-1][1]} is damaged ({error}); delete it to start this client anew"
            ) from error
        if FROZEN in told:  # this version wrote it, without frozen parameters
            return found
        return self._frozen.without(found, f"the state file {versions[-1][1]}")

    def save(self, arrays: Arrays, part: str = "state") -> None:
        """Stage ``arrays`` as the new version of ``part``; :meth:`commit` writes it once the work has succeeded.

        Each part is a file of its own, so that a part that changes every round does not rewrite the others. Names of
        parts consist of letters and digits.
        """
        self._staged[part] = arrays

    def share(self, arrays: Arrays, part: str) -> None:
        """Stage ``arrays`` that are the same for all clients of a node, and are therefore stored once per node.

        Nothing is staged if another client has already stored the same arrays in this round.
        """
        node = self._node()
        there = self.load_shared(part, this_round=True)
        if there is None or there.keys() != arrays.keys() or any((there[n] != a).any() for n, a in arrays.items()):
            node.save(arrays, part)

    def load_shared(self, part: str, *, this_round: bool = False) -> Arrays | None:
        """Return the newest version of a part stored by :meth:`share`, or None; ``this_round``: only this round's."""
        node = self._node()
        if this_round and part not in node._staged and not node._path(part).exists():
            return None
        return node.load(part)

    def _node(self) -> ClientState:
        if self._shared is None:
            # No client has this name: names of clients do not begin with an underscore.
            self._shared = ClientState(
                self.folder.parent / "_node", self._round, self._lineage, self._checkpoint, self._identity,
                self._frozen, self._best,
            )  # fmt: skip
        return self._shared

    def _path(self, part: str) -> Path:
        return self.folder / f"{part}-{self._round:06d}-{len(self._lineage)}-{self._identity}.safetensors"

    def commit(self) -> None:
        """Write the staged parts to disk, and delete versions that no resumed run can need.

        Raises:
            RunError: if an array has NaN or infinity; then nothing is written.
        """
        if publish := self.draft():
            publish()

    def draft(self) -> Callable[[], None] | None:
        """Write the staged parts beside their files; return a function that does the rest of :meth:`commit`.

        The function may be called in another thread, since it hardly does more than wait for the disk; None if nothing
        is staged. What clients of a node have in common is committed at once, so that the next client finds it.

        Raises:
            RunError: as :meth:`commit`.
        """
        for part, staged in self._staged.items():
            for name, array in staged.items():
                if not np.isfinite(array).all():
                    raise RunError(
                        f"'{name}' of the client's own '{part}' has NaN or infinity; lower the learning rate or set "
                        "max-grad-norm"
                    )
        if self._shared is not None:
            self._shared.commit()
        if not self._staged:
            return None
        told = {FROZEN: self._frozen.hash} if self._frozen.arrays else None
        drafts: dict[str, Draft] = {}
        with ExitStack() as failed:
            for part, staged in self._staged.items():
                drafts[part] = draft_tensors(self._path(part), staged, told)
                failed.callback(drafts[part].discard)
            failed.pop_all()
        self._staged = {}

        def publish() -> None:
            with ExitStack() as left:
                for draft in drafts.values():
                    left.callback(draft.discard)
                for part, draft in drafts.items():
                    draft.publish()
                    self._delete_old(part)

        return publish

    def _delete_old(self, part: str) -> None:
        """Delete versions of a part that are not needed, now that this round's is written.

        A resumed run needs the newest version up to the checkpoint, and a run that keeps its best models the newest up
        to their round; later phases of this round need this one, or the
        newest that counts, if this one comes not to count.
        """
        versions = self._versions(part)
        needed = {self._path(part), *(path for _, path in versions[-1:])}
        for last in (self._checkpoint, self._best):
            seen = [path for round_, path in versions if last is not None and round_ <= last]
            needed |= {*seen[-1:]}
        for old in self._files(part):
            if old not in needed:
                old.unlink(missing_ok=True)
