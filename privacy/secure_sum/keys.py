"""Keys of the parties: for key agreement (X25519) and what follows from it, signatures (Ed25519), sealed messages."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY = 32
"""Length of every key and seed in bytes."""
SIGNATURE = 64
"""Length of a signature in bytes."""
_NONCE = 12
SEALED = _NONCE + 16
"""Bytes by which sealing makes a message longer."""


def new_key() -> bytes:
    """Return a new private key, or a new random seed."""
    return secrets.token_bytes(KEY)


def public_key(private: bytes) -> bytes:
    """Return the public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return the secret key that the owner of ``private`` has in common with the owner of ``public``.

    Args:
        private, public: one's own private key, the other's public key.
        purpose: what the key is for, the same at both; keys for different purposes are independent.

    Raises:
        ValueError: if ``public`` is none that an honest party sends.
    """
    common = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), KEY, None, b"florilegium secure sum" + purpose).derive(common)


def verification_key(private: bytes) -> bytes:
    """Return the public key with which signatures of a private key are verified."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, message: bytes) -> bytes:
    """Return the signature of ``message``."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(message)


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether the owner of ``public`` has signed ``message``."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def seal(key: bytes, message: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate ``message``, which can be opened with the same ``key`` and ``context`` alone."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, message, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Return the message that was sealed.

    Raises:
        ValueError: if it was not sealed with this key and context, or was changed.
    """
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], context)
    except InvalidTag:
        raise ValueError("a share cannot be opened") from None


def commitment(seed: bytes, context: bytes) -> bytes:
    """Return a hash of a random ``seed``, which tells nothing of it but whether a seed is the same."""
    digest = Hash(SHA256())
    digest.update(context + seed)
    return digest.finalize()
