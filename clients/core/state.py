"""A client's durable state between messages: a safetensors file per client, part and round, on its own disk.

Personal heads, control variates and personal models never leave the client, survive a killed process, and cost no
memory between messages. Versions make a resumed run exact: a server that restarts from a checkpoint of round r
tells its clients, and states that the interrupted attempt wrote after r are ignored. States of another run of the same
name are ignored too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from pathlib import Path

import numpy as np

from florilegium.clients.core.own_files import OwnFiles
from florilegium.common.errors import DataError, RunError
from florilegium.common.files import Draft, draft_tensors, read_tensors
from florilegium.models.frozen import NOTHING, Frozen
from florilegium.models.parameters import Arrays

FROZEN = "frozen"
"""Entry of a state file with the hash of the run's frozen parameters; files of earlier versions lack it."""


class ClientState:
    """The durable arrays of one client.

    Args:
        own: where this client's files are; a path is a folder of its own.
        round: number of the present round.
        lineage: the rounds from which the run was resumed so far; its length numbers the present attempt.
        checkpoint: the last round of which the server holds a checkpoint; older versions may be deleted.
        identity: distinguishes the run from others of its name; letters and digits.
        frozen: the run's frozen parameters, which are no part of the state.
        best: the round to which the run may return at its end; None: it does not.
    """

    def __init__(
        self,
        own: OwnFiles | Path,
        round: int,
        lineage: Sequence[int],
        checkpoint: int,
        identity: str,
        frozen: Frozen = NOTHING,
        best: int | None = None,
    ) -> None:
        self.own = OwnFiles.alone(own) if isinstance(own, Path) else own
        self._round = round
        self._lineage = list(lineage)
        self._checkpoint = checkpoint
        self._identity = identity
        self._frozen = frozen
        self._best = best
        self._staged: dict[str, Arrays] = {}
        self._confirmed: dict[str, int] = {}
        self._shared: ClientState | None = None

    def _versions(self, part: str, files: Sequence[Path] | None = None) -> list[tuple[int, Path]]:
        """Return the valid versions of a part as (round, path), oldest first; ``files``: its files, if known."""
        found, begin = [], re.escape(f"{self.own.before}{part}")
        for path in self._files(part) if files is None else files:
            if match := re.fullmatch(rf"{begin}-(\d+)-(\d+)-{re.escape(self._identity)}", path.stem):
                round_, attempt = int(match[1]), int(match[2])
                # Of an earlier attempt, only rounds up to the checkpoints that the run was resumed from are valid.
                last = min(self._lineage[attempt:], default=self._round)
                if round_ <= min(last, self._confirmed.get(part, last)):
                    found.append((round_, attempt, path))
        return [(round_, path) for round_, _, path in sorted(found)]

    def _files(self, part: str) -> list[Path]:
        folder, begin = self.own.folder, f"{self.own.before}{part}-"
        try:
            names = os.listdir(folder)  # a tenth of the cost of Path.glob
        except OSError:
            return []
        return [folder / name for name in names if name.startswith(begin) and name.endswith(".safetensors")]

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
            self._shared = ClientState(
                self.own.shared, self._round, self._lineage, self._checkpoint, self._identity, self._frozen, self._best
            )
        return self._shared

    def _path(self, part: str) -> Path:
        return self.own.file(f"{part}-{self._round:06d}-{len(self._lineage)}-{self._identity}.safetensors")

    def commit(self) -> None:
        """Write the staged parts to disk, and delete versions that no resumed run can need.

        Raises:
            RunError: if an array has NaN or infinity; then nothing is written.
        """
        if change := self.draft():
            change.publish()

    def draft(self) -> Change | None:
        """Write the staged parts beside their files; return what does the rest of :meth:`commit`.

        None if nothing is staged. What clients of a node have in common is committed at once, so that the next client
        finds it.

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
        files = copy(self)
        files._frozen, files._shared = NOTHING, None
        return Change(files, drafts)

    def _delete_old(self, part: str) -> None:
        """Delete versions of a part that are not needed, now that this round's is written.

        A resumed run needs the newest version up to the checkpoint, and a run that keeps its best models the newest up
        to their round; later phases of this round need this one, or the
        newest that counts, if this one comes not to count.
        """
        files = self._files(part)
        versions = self._versions(part, files)
        needed = {self._path(part), *(path for _, path in versions[-1:])}
        for last in (self._checkpoint, self._best):
            seen = [path for round_, path in versions if last is not None and round_ <= last]
            needed |= {*seen[-1:]}
        for old in files:
            if old not in needed:
                old.unlink(missing_ok=True)


class Change:
    """Parts of a client's state that are written beside their files, and replace them when they are published.

    Any thread or process that reaches the files can do that; it hardly does more than wait for the disk.

    Args:
        files: the state's files; without its arrays, so that a change is small.
        drafts: the new files, by part.
    """

    def __init__(self, files: ClientState, drafts: Mapping[str, Draft]) -> None:
        self._files, self._drafts = files, drafts

    def flush(self) -> None:
        """Make sure that the new files outlast a power cut.

        Raises:
            FileError: if that cannot be done. The state is then unchanged.
        """
        with ExitStack() as failed:
            for draft in self._drafts.values():
                failed.callback(draft.discard)
            for draft in self._drafts.values():
                draft.flush()
            failed.pop_all()

    def publish(self) -> None:
        """Let the new files replace the others; do nothing more if it is called again."""
        with ExitStack() as left:
            for draft in self._drafts.values():
                left.callback(draft.discard)
            for part, draft in self._drafts.items():
                if draft.unpublished:
                    draft.publish()
                self._files._delete_old(part)
