"""The owner's log: a line that was changed, removed, replaced or added by somebody without the key is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from florilegium.common.errors import DataError
from florilegium.owner.keys import has_signed, make_key, public, read_key, signed
from florilegium.owner.log import EMPTY, Head, Log, read_head, read_log, verify_log

LINES = 5


@pytest.fixture
def log(tmp_path: Path) -> tuple[Path, Ed25519PrivateKey]:
    """A log of five lines."""
    path, key = tmp_path / "log.jsonl", make_key(tmp_path / "key")
    for number in range(LINES):
        Log(path, key).add("request", run=f"run-{number}", bytes=number)
    return path, key


def test_a_whole_log_is_accepted(log: tuple[Path, Ed25519PrivateKey]) -> None:
    path, key = log
    head = verify_log(path, public(key))
    assert head == read_head(path, public(key)) == Head.of(str(head))
    assert head.count == LINES
    entries = [*read_log(path)]
    assert [entry["run"] for entry in entries] == [f"run-{number}" for number in range(LINES)]
    assert path.stat().st_mode & 0o077 == 0
    for count in (0, 1, 4):
        noted = Head(count, entries[count]["before"])
        assert verify_log(path, public(key), noted=noted) == head
    with pytest.raises(DataError, match="line 4 is another"):
        verify_log(path, public(key), noted=Head(4, entries[3]["before"]))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda lines: [lines[0], lines[1].replace(b"run-1", b"run-9"), *lines[2:]], "line 2 was changed"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 does not follow"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1 does not follow"),
        (lambda lines: lines[:-1], "tail was cut"),
        (lambda lines: lines[:-3], "tail was cut"),
        (lambda lines: [], "tail was cut"),
        (lambda lines: [*lines, lines[-1]], "line 6 does not follow"),
        (lambda lines: [*lines[:2], b"nonsense\n", *lines[3:]], "line 3 is no entry"),
        (lambda lines: [*lines[:2], b"[]\n", *lines[3:]], "line 3 is no entry"),
    ],
)
def test_a_changed_log_is_found(log: tuple[Path, Ed25519PrivateKey], change: object, found: str) -> None:
    path, key = log
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))  # type: ignore[operator]
    with pytest.raises(DataError, match=found):
        verify_log(path, public(key))


def test_a_tail_signed_by_another_key_is_found(log: tuple[Path, Ed25519PrivateKey], tmp_path: Path) -> None:
    path, key = log
    lines = path.read_bytes().splitlines(keepends=True)
    other = make_key(tmp_path / "other")
    path.write_bytes(b"".join(lines[:3]))
    (path.parent / "log.head").unlink()
    last = json.loads(lines[3])
    with pytest.raises(DataError, match="does not end where its head says"):
        Log(path, other).add("reply")  # without its head nothing is added
    entry = {"n": 4, "at": last["at"], "what": "reply", "before": last["before"]}
    text = json.dumps(entry, separators=(",", ":")).encode()
    path.write_bytes(b"".join(lines[:3]) + json.dumps(entry | {"signature": signed(other, text)}).encode() + b"\n")
    with pytest.raises(DataError, match="line 4 was changed"):
        verify_log(path, public(key))


def test_an_older_log_with_its_head_is_found_by_a_noted_one(log: tuple[Path, Ed25519PrivateKey]) -> None:
    path, key = log
    before = path.read_bytes(), (path.parent / "log.head").read_bytes()
    Log(path, key).add("reply")
    noted = read_head(path, public(key))
    path.write_bytes(before[0])
    (path.parent / "log.head").write_bytes(before[1])
    assert verify_log(path, public(key)).count == LINES
    with pytest.raises(DataError, match="tail was cut"):
        verify_log(path, public(key), noted=noted)


def test_an_older_head_is_found(log: tuple[Path, Ed25519PrivateKey]) -> None:
    path, key = log
    head = path.parent / "log.head"
    before = head.read_bytes()
    Log(path, key).add("reply")
    newer = head.read_bytes()
    head.write_bytes(before)
    assert verify_log(path, public(key)).count == LINES + 1  # as when the power goes between line and head
    head.write_bytes(newer)
    Log(path, key).add("reply")
    head.write_bytes(before)
    with pytest.raises(DataError, match="head is an older one"):
        verify_log(path, public(key))
    head.unlink()
    with pytest.raises(DataError, match="head is an older one"):
        verify_log(path, public(key))
    head.write_text('{"count": 7, "hash": "0", "signature": "00"}')
    with pytest.raises(DataError, match="has not signed it"):
        verify_log(path, public(key))


def test_a_torn_line_is_removed(log: tuple[Path, Ed25519PrivateKey]) -> None:
    path, key = log
    with path.open("ab") as file:
        file.write(b'{"n":6,"at":')
    Log(path, key).add("reply", long="x" * 300_000)
    Log(path, key).add("reply")
    assert verify_log(path, public(key)).count == LINES + 2


def test_a_line_without_its_head_counts(log: tuple[Path, Ed25519PrivateKey]) -> None:
    path, key = log
    head = path.parent / "log.head"
    before = head.read_bytes()
    Log(path, key).add("reply")
    head.write_bytes(before)
    Log(path, key).add("reply")
    assert verify_log(path, public(key)).count == LINES + 2


def test_an_empty_log_is_whole(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    assert verify_log(tmp_path / "log.jsonl", public(key)) == EMPTY
    with pytest.raises(DataError, match="no log"):
        [*read_log(tmp_path / "log.jsonl")]
    with pytest.raises(DataError, match="is no head"):
        Head.of("5")


def test_keys_are_their_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "key"
    key = make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert public(read_key(path)) == public(key)
    with pytest.raises(DataError, match="never replaced"):
        make_key(path)
    path.chmod(0o640)
    with pytest.raises(DataError, match="chmod 600"):
        read_key(path)
    path.chmod(0o600)
    path.write_text("nothing")
    with pytest.raises(DataError, match="no private key"):
        read_key(path)


def test_a_signature_is_of_one_key_and_one_content(tmp_path: Path) -> None:
    key, other = make_key(tmp_path / "one"), make_key(tmp_path / "other")
    signature = signed(key, b"text")
    assert has_signed(public(key), signature, b"text")
    assert not has_signed(public(other), signature, b"text")
    assert not has_signed(public(key), signature, b"texts")
    assert not has_signed(public(key), None, b"text")
    assert not has_signed("ab", signature, b"text")
