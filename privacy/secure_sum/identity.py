"""Identities of devices: keys of their own that sign the keys of an exchange, and the keys of others that they know.

The keys are those with which SuperNodes sign in at the SuperLink, ECDSA over P-384. Which others a device knows, its
owner says in a file. The server cannot put keys of its own in place of those of such devices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from florilegium.common.errors import DataError

_POINT, _NUMBER = 49, 48
"""Bytes of a public key, compressed, and of each of the two numbers of a signature."""
CERTIFICATE = _POINT + 2 * _NUMBER
"""Length of a certificate: the public key that signs, and the signature."""
_PURPOSE = b"florilegium secure sum: keys of an exchange"


@dataclass(frozen=True)
class Identity:
    """What a device knows of identities.

    Attributes:
        private: its own private key.
        known: the public keys of the devices with which it takes part in secure sums; empty: with any.
    """

    private: EllipticCurvePrivateKey
    known: frozenset[bytes] = frozenset()

    @property
    def public(self) -> bytes:
        """The device's own public key."""
        return _point(self.private.public_key())

    def certify(self, keys: bytes) -> bytes:
        """Return a certificate for ``keys``: what names an exchange, a party's number, and its public keys."""
        numbers = decode_dss_signature(self.private.sign(_PURPOSE + keys, ECDSA(SHA256())))
        return self.public + b"".join(number.to_bytes(_NUMBER) for number in numbers)

    def check(self, keys: Mapping[int, bytes], certificates: Mapping[int, bytes]) -> None:
        """Check that the keys of other parties are those of devices that this one knows.

        Args:
            keys: what each party's certificate is to be for, by the party's number.
            certificates: those that have come.

        Raises:
            ValueError: if a certificate is missing or not for these keys, or the device is unknown, or a party twice.
        """
        if not self.known:
            return
        found = [self.public]
        for party, signed in keys.items():
            signer = signer_of(certificates.get(party, b""), signed)
            if signer not in self.known:
                raise ValueError(f"the keys of party {party} are not certified by a device of the file 'peers'")
            found.append(signer)
        if len({*found}) < len(found):
            raise ValueError("a device takes part as two parties")


def signer_of(certificate: bytes, keys: bytes) -> bytes | None:
    """Return the public key that has certified ``keys``; None if the certificate is not for them."""
    if len(certificate) != CERTIFICATE:
        return None
    point, r, s = certificate[:_POINT], certificate[_POINT:-_NUMBER], certificate[-_NUMBER:]
    try:
        public = EllipticCurvePublicKey.from_encoded_point(SECP384R1(), point)
        signature = encode_dss_signature(int.from_bytes(r), int.from_bytes(s))
        public.verify(signature, _PURPOSE + keys, ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        return None
    return point


def read_identity(key: Path, peers: Path | None) -> Identity:
    """Return the identity of a device.

    Args:
        key: its private key, in OpenSSH's format and without a passphrase.
        peers: the public keys of other devices, a line each as in OpenSSH's ``.pub`` files; lines with ``#`` are notes.

    Raises:
        DataError: if a file cannot be read, or has other keys.
    """
    try:
        private = load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DataError(f"identity: {key} is no private key without a passphrase ({error})") from error
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP384R1):
        raise DataError(f"identity: {key} is no ECDSA key over P-384; make one with ssh-keygen -t ecdsa -b 384")
    return Identity(private, frozenset(_known(peers)) if peers else frozenset())


def _known(peers: Path) -> Collection[bytes]:
    try:
        lines = peers.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"peers: {peers} cannot be read ({error})") from error
    found: list[bytes] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            public = load_ssh_public_key(line.encode("utf-8"))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise DataError(f"peers: line {number} of {peers} is no public key ({error})") from error
        if not isinstance(public, EllipticCurvePublicKey) or not isinstance(public.curve, SECP384R1):
            raise DataError(f"peers: line {number} of {peers} is no ECDSA key over P-384")
        found.append(_point(public))
    if not found:
        raise DataError(f"peers: {peers} has no public keys; leave the key out to take part with any device")
    return found


def _point(public: EllipticCurvePublicKey) -> bytes:
    return public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
