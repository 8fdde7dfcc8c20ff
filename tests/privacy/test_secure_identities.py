"""Secure sums of parties with identities: whose keys they accept, whatever the server passes on."""

from __future__ import annotations

import re
import secrets
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key

from florilegium.apps.assembly.node_config import identity_of, parse_node
from florilegium.common.errors import DataError
from florilegium.common.settings import Value
from florilegium.privacy.secure_sum.entry import Entry
from florilegium.privacy.secure_sum.identity import CERTIFICATE, Identity, signer_of
from florilegium.privacy.secure_sum.masks import Vector
from florilegium.privacy.secure_sum.party import TOKEN, Party, ProtocolError, certified, listed
from florilegium.privacy.secure_sum.plan import plan
from florilegium.privacy.secure_sum.tally import Tally
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.liars import Devices


def _identities(count: int) -> list[Identity]:
    """Return identities that know each other."""
    keys = [generate_private_key(SECP384R1()) for _ in range(count)]
    everyone = frozenset(Identity(key).public for key in keys)
    return [Identity(key, everyone - {Identity(key).public}) for key in keys]


class Exchange:
    """An exchange of as many parties as there are identities, up to the introductions."""

    def __init__(self, identities: list[Identity], token: bytes = b"", parties: list[Party] | None = None) -> None:
        self.identities, self.token = identities, token or secrets.token_bytes(TOKEN)
        self.parties = parties or [Party(self.token) for _ in identities]
        self.entry, public = Entry(self.token), dict[int, bytes]()
        for i, (party, identity) in enumerate(zip(self.parties, identities, strict=True)):
            public[i] = self.entry.admit(i, party.enter(self.entry.invitation(i), identity))
        self.public = public
        self.tally = Tally(self.token, plan(len(public), 0.1, 0.2, 1e-9), public, self.entry.certificates)

    def share(self, party: int) -> bytes:
        return self.parties[party].share(self.tally.introductions()[party], self.identities[party])


@pytest.mark.parametrize("n", [5, 12])
def test_parties_that_know_each_other_find_their_sum(n: int) -> None:
    done = Exchange(_identities(n))
    for i in range(n):
        done.tally.take_shares(i, done.share(i))
    for i, message in done.tally.forwarded().items():
        restored = Party.load(done.parties[i].dump())  # between messages, a party is a file
        done.parties[i] = restored
        said = restored.open(message)
        assert not said
        done.tally.take_complaints(i, said)
    total, expected = Vector.zeros(2, 7), np.zeros(7, np.uint32)
    for i, message in done.tally.members().items():
        vector = Vector(np.full(2, 1, np.uint64), np.arange(7, dtype=np.uint32) * (i + 1))
        expected += vector.narrow
        done.parties[i].mask(vector, message)
        total.add(vector)
    for i, message in done.tally.questions({*range(n)}).items():
        done.tally.take_revealed(i, done.parties[i].reveal(message))
    done.tally.unmask(total)
    assert total.narrow.tolist() == expected.tolist()


def test_keys_that_the_server_puts_in_place_of_a_partys_are_refused() -> None:
    """It can certify them by a key that nobody knows, or take a certificate for other keys, or of another exchange."""
    identities = _identities(5)
    done, before = Exchange(identities), Exchange(identities)
    fake, own = Party(done.token), generate_private_key(SECP384R1())
    for certificate in (
        b"",
        Identity(own).certify(certified(done.token, 1, fake.public())),
        done.entry.certificates[1],
        before.entry.certificates[1],
        identities[2].certify(certified(done.token, 2, fake.public())),
    ):
        others = {party: one for party, one in done.entry.certificates.items() if party != 1}
        certificates = others | ({1: certificate} if certificate else {})
        done.tally = Tally(done.token, done.tally.plan, {**done.public, 1: fake.public()}, certificates)
        with pytest.raises(ProtocolError, match="the keys of party 1 are not certified by a device of the file"):
            done.share(0)


def test_parties_that_the_server_has_invented_are_refused() -> None:
    """Without certificates; or one device as two parties."""
    identities = _identities(5)
    stranger = Identity(generate_private_key(SECP384R1()))
    with pytest.raises(ProtocolError, match="party 5 are not certified"):
        Exchange([*identities, stranger]).share(0)
    with pytest.raises(ProtocolError, match="a device takes part as two parties"):
        Exchange([*identities, identities[1]]).share(0)
    with pytest.raises(ProtocolError, match="party 5 are not certified"):  # nobody is its own peer
        Exchange([*identities, Identity(identities[0].private)]).share(0)


def test_a_device_that_knows_nobody_takes_part_with_any() -> None:
    certain, open_to_all = _identities(5), [Identity(generate_private_key(SECP384R1())) for _ in range(5)]
    assert Exchange(open_to_all).share(0)
    done = Exchange([*certain[:4], open_to_all[0]])
    assert done.share(4)
    with pytest.raises(ProtocolError, match="party 4"):
        done.share(0)


def test_the_list_of_all_parties_has_the_keys_that_a_party_is_told_and_has() -> None:
    done = Exchange(_identities(5))
    message, whole = done.tally.introductions()[0], listed(done.public)
    assert whole in message
    for party in (0, 3):
        other = listed({**done.public, party: Party(done.token).public()})
        with pytest.raises(ProtocolError, match=f"the list of all parties has other keys of party {party}"):
            Party.load(done.parties[0].dump()).share(message.replace(whole, other), done.identities[0])
    for cut in (whole[:-1], whole[:2], whole + b"x"):
        with pytest.raises(ProtocolError):
            Party.load(done.parties[0].dump()).share(message.replace(whole, cut), done.identities[0])


def test_shares_are_opened_by_those_alone_that_have_seen_the_same_list() -> None:
    """The server tells party 0 of a sixth party, which is nobody's neighbour."""
    done = Exchange(_identities(5))
    whole, other = listed(done.public), listed({**done.public, 9: Party(done.token).public()})
    message = done.tally.introductions()[0].replace(whole, other)
    done.tally.take_shares(0, done.parties[0].share(message, done.identities[0]))
    for i in range(1, 5):
        done.tally.take_shares(i, done.share(i))
    complaints = {}
    for i, message in done.tally.forwarded().items():
        done.tally.take_complaints(i, done.parties[i].open(message))
        complaints[i] = done.tally._complaints[i]
    assert complaints == {0: {1, 2, 3, 4}, **{i: {0} for i in range(1, 5)}}
    done.tally.members()
    assert [*done.tally.named] == [0]


def test_a_certificate_for_other_keys_names_its_sender() -> None:
    entry, party = Entry(secrets.token_bytes(TOKEN)), Party(b"")
    party.token = entry.token
    (identity,) = _identities(1)
    said = party.enter(entry.invitation(3), identity)
    assert signer_of(said[-CERTIFICATE:], certified(entry.token, 3, party.public())) == identity.public
    for wrong in (said[:-1] + bytes([said[-1] ^ 1]), said[:-CERTIFICATE] + bytes(CERTIFICATE)):
        with pytest.raises(ProtocolError, match="its certificate is not for its public keys"):
            entry.admit(3, wrong)
    with pytest.raises(ProtocolError, match="its certificate is not for its public keys"):
        entry.admit(3, said[:-CERTIFICATE] + party.enter(entry.invitation(4), identity)[-CERTIFICATE:])


# ---------------------------------------------------------------------------------------------- devices


def _key(folder: Path, name: str, *kind: str) -> Path:
    path = folder / name
    kind = kind or ("ecdsa", "-b", "384")
    subprocess.run(["ssh-keygen", "-q", "-t", *kind, "-N", "", "-f", path, "-C", name], check=True)
    return path


def test_the_files_are_those_of_supernodes(tmp_path: Path) -> None:
    """Keys of ssh-keygen, as SuperNodes have them; notes and empty lines among the public ones."""
    own, other = (_key(tmp_path, name) for name in ("own", "other"))
    peers = tmp_path / "peers"
    peers.write_text(f"# site b\n\n{other.with_suffix('.pub').read_text()}")

    def read(**keys: Value) -> Any:
        return identity_of(parse_node({"data-path": "/x", **keys}))

    assert read() is None
    assert read(identity=str(own)).known == frozenset()
    found, theirs = read(identity=str(own), peers=str(peers)), read(identity=str(other))
    assert found.known == {theirs.public}
    with pytest.raises(DataError, match="peers needs identity"):
        read(peers=str(peers))
    wrong = _key(tmp_path, "wrong", "ed25519")
    for key, text in (
        (wrong, "is no ECDSA key over P-384"),
        (tmp_path / "none", "is no private key"),
        (peers, "is no"),
    ):
        with pytest.raises(DataError, match=f"identity: {key} {text}"):
            read(identity=str(key))
    for words, text in (
        ("", "has no public keys"), ("ssh-nothing AAAA", "line 1 of .* is no public key"),
        (wrong.with_suffix(".pub").read_text(), "line 1 of .* is no ECDSA key"),
    ):  # fmt: skip
        peers.write_text(words)
        with pytest.raises(DataError, match=f"peers: .*{text}"):
            read(identity=str(own), peers=str(peers))


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Devices:
    """Five devices, each with a key, and a file of the keys of the others."""
    keys: dict[str, Value] = {
        "method": "fedavg", "model": "linear", "num-clients": 5, "partitioner": "iid", "participation": 1.0,
        "rounds": 1, "local-steps": 2, "max-update-norm": 10.0, "secure-aggregation": True, "min-success": 0.5,
    }  # fmt: skip
    found = Devices(tmp_path, keys, monkeypatch)
    everyone = [_key(tmp_path, str(node["client-id"])) for node in found.nodes]
    for node, own in zip(found.nodes, everyone, strict=True):
        peers = tmp_path / f"{own.name}.peers"
        peers.write_text("".join(key.with_suffix(".pub").read_text() for key in everyone if key != own))
        node |= {"identity": str(own), "peers": str(peers)}
    return found


def test_devices_that_know_each_other_learn_what_others_do(devices: Devices) -> None:
    path = devices.told("known")
    for node in devices.nodes:
        del node["peers"], node["identity"]
    plain = devices.told("plain")
    ours, theirs = (read_checkpoint(run).arrays for run in (path, plain))
    assert all(np.array_equal(array, theirs[name]) for name, array in ours.items())
    assert not (path / "failures.jsonl").exists()


def test_a_device_that_the_others_do_not_know_ends_no_ones_privacy(devices: Devices) -> None:
    """They refuse to share secrets with it, so that there is no sum."""
    stranger = _key(devices.folder, "stranger")
    devices.nodes[-1]["identity"] = str(stranger)
    with pytest.raises(Exception, match=re.escape("the secure sum has failed")):
        devices.told("refused")
