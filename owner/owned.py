"""Files that decide for the owner must be changed by the owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from florilegium.common.errors import DataError


def check_owned(path: Path, *, secret: bool = False) -> None:
    """Check that only the user of this process, or root, can change a file or folder, or what it is reached by.

    Args:
        path: the file or folder.
        secret: whether others must not read it either.

    Raises:
        DataError: if it is missing, or others can change or (``secret``) read it.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if found.st_uid not in (os.geteuid(), 0):
        raise DataError(f"{path} belongs to user {found.st_uid}; only this user ({os.geteuid()}) or root may own it")
    forbidden = 0o077 if secret else 0o022
    if stat.S_IMODE(found.st_mode) & forbidden:
        wanted = ("700" if path.is_dir() else "600") if secret else "go-w"
        what = "read or change" if secret else "change"
        raise DataError(f"{path}: others can {what} it (mode {stat.S_IMODE(found.st_mode):03o}): chmod {wanted} {path}")
    for folder in path.resolve().parents:  # whoever may write to a folder may put another file in this one's place
        mode = folder.stat().st_mode
        if mode & 0o022 and not mode & stat.S_ISVTX:
            raise DataError(f"{folder}, a folder above {path}, can be written to by others: chmod go-w {folder}")
