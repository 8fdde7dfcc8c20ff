"""Signed apps without a hub: an ed25519 signature in an app's ``pyproject.toml``, over all else in its bundle.

Signed are the names and SHA-256 of all files of the bundle, and ``pyproject.toml`` as data, without the signature. The
bundle's own list of files is not among them, since Flower makes it anew. What a run overrides is not signed either:
the policy's ``[runs]`` is for that.
"""

from __future__ import annotations

import hashlib
import io
import json
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from florilegium.common.errors import DataError
from florilegium.owner.keys import has_signed, public, signed

PROJECT, LISTED = "pyproject.toml", ".info/CONTENT"
_TABLE = "[tool.florilegium.signature]"
_MARK = "# The signature of this app; `florilegium app sign` writes it."
_MOST = 256_000_000
"""The most bytes that the files of a bundle may have together."""


def signer(content: bytes) -> str | None:
    """Return the public key that has signed a bundle; None if it is not signed, or the signature is wrong.

    Raises:
        DataError: if it is no bundle.
    """
    files = _files(content)
    project = _project(files)
    said = project.get("tool", {}).get("florilegium", {})
    table = said.get("signature") if isinstance(said, dict) else None
    if not isinstance(table, dict) or not isinstance(key := table.get("key"), str):
        return None
    return key if has_signed(key, table.get("signature"), _statement(files)) else None


def sign(folder: Path, bundle: bytes, key: Ed25519PrivateKey) -> None:
    """Write the signature of an app into its ``pyproject.toml``, in place of an earlier one.

    Args:
        folder: the app.
        bundle: what Flower makes of it.
        key: the signer's key.

    Raises:
        DataError: if it is no bundle.
    """
    path = folder / PROJECT
    text = path.read_text(encoding="utf-8").partition(_MARK)[0].rstrip("\n")
    signature = signed(key, _statement(_files(bundle)))
    path.write_text(
        f'{text}\n\n{_MARK}\n{_TABLE}\nkey = "{public(key)}"\nsignature = "{signature}"\n', encoding="utf-8"
    )


def _statement(files: Mapping[str, bytes]) -> bytes:
    """Return what is signed."""
    project = _project(files)
    if isinstance(own := project.get("tool", {}).get("florilegium"), dict):
        own.pop("signature", None)
        if not own:
            del project["tool"]["florilegium"]
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if name != PROJECT}
    told = {"version": 1, "files": hashes, "project": project}
    return b"florilegium app\n" + json.dumps(told, sort_keys=True, default=str).encode()


def _project(files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        return tomllib.loads(files[PROJECT].decode())
    except KeyError:
        raise DataError(f"the bundle has no {PROJECT}") from None
    except ValueError as error:
        raise DataError(f"the bundle's {PROJECT} cannot be read ({error})") from error


def _files(content: bytes) -> dict[str, bytes]:
    """Return the files of a bundle but its own list.

    Raises:
        DataError: if it is no bundle, its files are too large, or two have one name, or one lies outside of it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            return dict(_members(bundle))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise DataError(f"it is no bundle of an app ({error})") from error


def _members(bundle: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    members = bundle.infolist()
    if sum(member.file_size for member in members) > _MOST:
        raise DataError(f"the files of the bundle have more than {_MOST} bytes")
    names = [member.filename for member in members]
    if len({*names}) != len(names):
        raise DataError("two files of the bundle have one name")
    for member in members:
        parts = PurePosixPath(member.filename)
        if parts.is_absolute() or ".." in parts.parts:
            raise DataError("a file of the bundle lies outside of it")
        if member.filename != LISTED:
            with bundle.open(member) as file:  # reads file_size bytes at most, whatever the member holds
                yield member.filename, file.read(member.file_size)
