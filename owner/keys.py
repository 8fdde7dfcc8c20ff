"""Ed25519 keys: files that their owner alone can read, and public halves as 64 hexadecimal digits."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from florilegium.common.errors import DataError
from florilegium.owner.owned import check_owned


def make_key(path: Path) -> Ed25519PrivateKey:
    """Make a key and write it to a new file of mode 0600.

    Raises:
        DataError: if the file exists, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    except FileExistsError:
        raise DataError(f"{path} exists; a key is never replaced: name another file") from None
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror})") from error
    return key


def read_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key.

    Raises:
        DataError: if others can read or change the file, or it holds no ed25519 key.
    """
    check_owned(path, secret=True)
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} holds no private key without a passphrase ({error})") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError(f"{path} holds another kind of key; make one with `florilegium app key {path}.new`")
    return key


def public(key: Ed25519PrivateKey) -> str:
    """Return the public half of a key as 64 hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def signed(key: Ed25519PrivateKey, content: bytes) -> str:
    """Return the signature of ``content`` as 128 hexadecimal digits."""
    return key.sign(content).hex()


def has_signed(key: str, signature: object, content: bytes) -> bool:
    """Return whether ``signature`` is that of the key with the public half ``key``; nonsense is no signature."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(str(signature)), content)
    except (InvalidSignature, ValueError):
        return False
    return True
