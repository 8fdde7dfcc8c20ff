"""How parties enter a secure sum: the server passes on no public key whose owner has not shown that it holds it.

The server sends a key of its own with the invitation. What a party derives from that and its private keys, it cannot
derive from keys that it has copied from others; and no key gives anything from a public key of low order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from florilegium.privacy.secure_sum import keys
from florilegium.privacy.secure_sum.identity import CERTIFICATE, signer_of
from florilegium.privacy.secure_sum.party import (
    ENTRY,
    PUBLIC,
    ProtocolError,
    certified,
    invitation,
    possession,
    verification_key_of,
)


@dataclass(frozen=True)
class Entry:
    """The server's part of stage ``keys``.

    Attributes:
        token: names the exchange.
        certificates: those of the parties that have sent one, by their numbers.
    """

    token: bytes
    certificates: dict[int, bytes] = field(default_factory=dict)
    _private: bytes = field(default_factory=keys.new_key)

    def invitation(self, party: int) -> bytes:
        """Return the message that asks a party for its public keys."""
        return invitation(party, keys.public_key(self._private))

    def admit(self, party: int, message: bytes) -> bytes:
        """Return the public keys in a party's reply.

        Raises:
            ProtocolError: if it is malformed, the party does not hold the private keys, or has certified others.
        """
        if len(message) not in (ENTRY, ENTRY + CERTIFICATE):
            raise ProtocolError(f"its public keys have {len(message)} bytes, expected {ENTRY}")
        certificate, message = message[ENTRY:], message[:ENTRY]
        public, shown, signature = message[:PUBLIC], message[PUBLIC : -keys.SIGNATURE], message[-keys.SIGNATURE :]
        secrets = [self._agreed(public[i * keys.KEY :][: keys.KEY]) for i in range(2)]
        signed = keys.is_signed(verification_key_of(public), shown, signature)
        if shown != possession(secrets, party, self.token) or not signed:
            raise ProtocolError("it does not hold its public keys")
        if certificate:
            if signer_of(certificate, certified(self.token, party, public)) is None:
                raise ProtocolError("its certificate is not for its public keys")
            self.certificates[party] = certificate
        return public

    def _agreed(self, public: bytes) -> bytes:
        try:
            return keys.agree(self._private, public, b" possession" + self.token)
        except ValueError:
            raise ProtocolError("its public keys are of low order, with which nothing is secret") from None


def shared_keys(public: Mapping[int, bytes]) -> set[int]:
    """Return the parties one of whose public keys is also another's, or stands twice among its own."""
    each = {
        party: [own[start : start + keys.KEY] for start in range(0, PUBLIC, keys.KEY)] for party, own in public.items()
    }
    times = Counter(key for own in each.values() for key in own)
    return {party for party, own in each.items() if any(times[key] > 1 for key in own)}
