"""Whole runs with secure sums on devices of which one lies: it is named, stays out, and the others' sums count."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from florilegium.clients.core import secure_layout
from florilegium.clients.core.own_files import OwnFiles
from florilegium.clients.layers import secure
from florilegium.clients.layers.secure import SECRETS, VECTOR
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.privacy.secure_sum import keys
from florilegium.privacy.secure_sum.identity import Identity
from florilegium.privacy.secure_sum.masks import Vector
from florilegium.privacy.secure_sum.party import SEALED, Party
from florilegium.privacy.secure_sum.tally import TooFewError
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.layers.secure_exchange import SecureExchange
from tests.liars import LIAR, Devices
from tests.processes import ROOT

KEYS: dict[str, Value] = {
    "method": "ditto", "model": "linear", "num-clients": 6, "partitioner": "iid", "participation": 1.0, "rounds": 2,
    "local-steps": 2, "evaluate-every": 1, "max-update-norm": 10.0, "secure-aggregation": True, "min-success": 0.5,
}  # fmt: skip


class Lying(Party):
    """A party whose messages are changed before they are sent; its name is that of the lie."""

    lie = ""

    def enter(self, message: bytes, identity: Identity | None = None) -> bytes:
        said = super().enter(message, identity)
        return bytes(2 * keys.KEY) + said[2 * keys.KEY :] if self.lie == "zero key" else said

    def share(self, message: bytes, identity: Identity | None = None) -> bytes:
        said = bytearray(super().share(message, identity))
        if self.lie == "commitment":
            said[: keys.KEY] = bytes(keys.KEY)
        if self.lie == "sealed":
            for start in range(keys.KEY, len(said), 4 + SEALED):
                said[start + 4 + SEALED - 1] ^= 1
        return bytes(said)

    def mask(self, vector: Vector, message: bytes) -> None:
        super().mask(vector, message)
        if self.lie == "count":
            vector.wide[0] *= 2
        if self.lie == "masks":
            vector.wide[:] = np.random.default_rng(1).integers(0, 2**64, len(vector.wide), np.uint64)

    def reveal(self, message: bytes) -> bytes:
        return bytes(len(super().reveal(message))) if self.lie == "shares" else super().reveal(message)


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Devices:
    """Return what carries out runs on six devices."""
    return Devices(tmp_path, KEYS, monkeypatch)


@pytest.fixture
def lying(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what has the last device tell a lie from now on; "" for none."""
    step, add = secure._step, secure.MaskedSum.add

    def as_liar(path: Path, carry_out: Callable[[], Any]) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if LIAR in path.parts:
                patch.setattr(secure, "Party", Lying)
                patch.setattr(Party, "load", staticmethod(lambda text: Lying(**vars(_loaded(text)))))
            return carry_out()

    _loaded = Party.load
    monkeypatch.setattr(secure, "_step", lambda stage, own, *told: as_liar(own.path, lambda: step(stage, own, *told)))
    monkeypatch.setattr(
        secure.MaskedSum, "add", lambda self, client, result: as_liar(Path(client), lambda: add(self, client, result))
    )

    def tell(lie: str) -> None:
        monkeypatch.setattr(Lying, "lie", lie)

    return tell


def _failures(path: Path) -> list[dict[str, Any]]:
    file = path / "failures.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _without_liar(message: Message) -> Message | None:
    """Have the last device fail in all that it is asked."""
    from flwr.app import Error

    kind, node = message.metadata.message_type, message.metadata.dst_node_id
    gone = node == 105 and kind != "query.roster"
    return Message(Error(1, "it is away"), reply_to=message) if gone else None


WORDS = {
    "sealed": "5 of 5 neighbours cannot open its shares",
    "commitment": "the shares that it has sent do not give its secret",
    "zero key": "its public keys are of low order",
    "count": "its vector does not begin with the number of its clients",
    "masks": "its vector does not begin with the number of its clients",
}


@pytest.mark.parametrize("lie", [*WORDS])
def test_the_liar_is_named_and_the_others_go_on(devices: Devices, lying: Callable[[str], None], lie: str) -> None:
    """The model, and what devices keep, are those of a run in which the liar was away."""
    lying("")
    nodes = [{**node, "state-dir": str(devices.folder / "away" / node["client-id"])} for node in devices.nodes]
    honest = devices("away", nodes=nodes, intercept=_without_liar)
    lying(lie)
    path = devices.told("lied")
    named = [line for line in _failures(path) if WORDS[lie] in line["reason"]]
    assert {line["client"] for line in _failures(path)} == {LIAR}
    assert [line["round"] for line in named] == [1, 1, 2, 2]  # training and evaluation
    assert all(line["reason"].startswith("left out since round 1: ") for line in named[1:])
    summary = json.loads((path / "summary.json").read_text())
    assert WORDS[lie] in summary["secure_aggregation"]["left_out"][LIAR]
    assert [one["client"] for one in summary["failed"]] == [LIAR]
    for name, array in read_checkpoint(path).arrays.items():
        np.testing.assert_allclose(array, read_checkpoint(honest).arrays[name], atol=1e-6)
    assert {file.parts[-2] for file in devices.folder.rglob(SECRETS)} <= {LIAR}
    for file in devices.folder.rglob(VECTOR):
        assert file.stat().st_mode & 0o077 == 0


def test_wrong_shares_of_one_cost_nothing(devices: Devices, lying: Callable[[str], None]) -> None:
    lying("")
    honest = devices.told("honest")
    lying("shares")
    path = devices.told("lied")
    assert _failures(path) == []
    for name, array in read_checkpoint(path).arrays.items():
        np.testing.assert_allclose(array, read_checkpoint(honest).arrays[name], atol=1e-6)


def test_a_resumed_run_does_not_meet_the_liar_again(devices: Devices, lying: Callable[[str], None]) -> None:
    lying("sealed")
    devices.told("run", rounds=1)
    path = devices.told("run", resume="run")
    assert [line["round"] for line in _failures(path)] == [1, 1, 2, 2]
    stages = [m for m in devices.grid.sent if m.metadata.message_type == "query.secure"]
    assert stages
    assert 105 not in {message.metadata.dst_node_id for message in stages}


def test_of_three_none_can_be_left_out(devices: Devices, lying: Callable[[str], None]) -> None:
    lying("sealed")
    nodes = [{**n, "state-dir": str(devices.folder / "3" / n["client-id"])} for n in devices.nodes[3:]]
    with pytest.raises(RunError, match=rf"without {LIAR}, which did not keep to the protocol: 2 parties are too few"):
        devices("three", nodes=nodes, **{"num-clients": 3})


def test_no_vector_is_masked_a_third_time(tmp_path: Path) -> None:
    own = secure.Secrets(OwnFiles.alone(tmp_path))
    vector = Vector(np.arange(3, dtype=np.uint64), np.arange(5, dtype=np.uint32))
    own.keep(b"t" * 16, vector)
    with pytest.raises(RunError, match="no vector of this exchange"):
        own.kept(b"u" * 16)
    found = own.kept(b"t" * 16)
    assert (found.wide.tolist(), found.narrow.tolist()) == ([0, 1, 2], [0, 1, 2, 3, 4])
    with pytest.raises(RunError, match="no vector of this exchange"):
        own.kept(b"t" * 16)


def test_every_vector_begins_with_the_same_integer() -> None:
    for parties in (3, 7, 1000):
        scale = secure_layout.Scale(parties, 60.0, uniform=False, norm=1.0, range=1.0, coarse=True)
        layout = secure_layout.Layout((("w", (2,)),), ("loss",))
        vector = scale.encode(layout, {"w": np.zeros(2)}, 4.0, 4.0, {"loss": 1.0}, 4.0)
        assert int(vector.wide[0]) == scale.one()
        assert parties * scale.one() < 2**63


@pytest.mark.parametrize("n", [3, 5, 10, 100])
def test_a_client_within_a_sum_moves_the_mean_as_far_as_the_page_says(n: int) -> None:
    """Against n − 1 honest updates of norm m in one direction, −(n·C + (n − 1)·m) in it is accepted, and no more."""
    page = (ROOT / "docs" / "secure-aggregation.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {n} \| ([\d.]+)·m \| ([\d.]+)·m \| ([\d.]+)·m \| ([\d.]+)·m \|$", page, re.MULTILINE)
    m = 0.5
    for factor, shift in zip((10, 2, 1), row[:3], strict=True):
        scale = secure_layout.Scale(n, n, uniform=True, norm=factor * m, range=1.0, coarse=False)
        exchange = object.__new__(SecureExchange)
        honest, longest = (n - 1) * m, n * factor * m + (n - 1) * m
        assert longest / n == pytest.approx(float(shift) * m, abs=0.005 * m)
        for lie, accepted in ((longest, True), (1.01 * longest, False)):
            sums = secure_layout.Sums({"w": np.array([honest - lie, 0.0])}, n, n, n, {})
            with contextlib.nullcontext() if accepted else pytest.raises(TooFewError, match="more than was agreed"):
                exchange._check(sums, n, scale)
    assert float(row[3]) == pytest.approx(1 / n, abs=0.005)
