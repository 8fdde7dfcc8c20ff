"""Compression schemes against closed forms, sorting and the singular value decomposition; residuals; wrong messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.clients.core.compression.low_rank import LowRank
from florilegium.clients.core.compression.quantise import BUCKET, Quantise
from florilegium.clients.core.compression.scheme import COMPRESSED, Reader, Scheme
from florilegium.clients.core.compression.top_k import TopK
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Request, Work
from florilegium.clients.layers.compression import Compression, Messages
from florilegium.common.blocks import BLOCK
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays, norm

SHAPES = {"0.weight": (30, 4, 3, 3), "0.running_var": (40,), "2.bias": (13,), "3.weight": (20, 55)}
SENT: Arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
MATRIX: Arrays = {"w": np.zeros((20, 55), np.float32)}


def _update(seed: int = 1, sent: Arrays = SENT) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=array.shape).astype(array.dtype) for name, array in sent.items()}


def _through(scheme: Scheme, update: Arrays, sent: Arrays = SENT, seed: int = 1) -> Arrays:
    reader = Reader(scheme.compress(update, sent, np.random.default_rng(seed)))
    restored = scheme.restore(reader, sent)
    assert not reader.left
    return restored


# --------------------------------------------------------------------------------------- quantisation


@pytest.mark.parametrize("bits", [pytest.param(1, marks=pytest.mark.long), 3])
def test_quantisation_is_unbiased_with_the_variance_of_rounding_at_random(bits: int) -> None:
    """An entry between two levels at distance δ, a share p of δ above the lower one, has variance δ²·p·(1 − p)."""
    draws, sent = 800, {"w": np.zeros(BUCKET + 40, np.float32)}
    update = _update(3, sent)
    variance = np.empty(BUCKET + 40)
    for bucket in (slice(BUCKET), slice(BUCKET, None)):
        x = update["w"][bucket].astype(float)
        δ = (x.max() - x.min()) / (2**bits - 1)
        p = (x - x.min()) / δ % 1
        variance[bucket] = δ**2 * p * (1 - p)
    found = np.stack([_through(Quantise(bits), update, sent, seed)["w"] for seed in range(draws)]).astype(float)
    errors = (found.mean(axis=0) - update["w"]) / np.sqrt(np.maximum(variance, 1e-9) / draws)
    assert np.abs(errors).max() < 5
    assert np.mean(errors**2) == pytest.approx(1, abs=0.3)
    assert found.var(axis=0).sum() == pytest.approx(variance.sum(), rel=0.03)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("size", [2, 61, 3 * BUCKET + 5])
def test_bits_are_packed_and_come_back(bits: int, size: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, size).astype(np.float64)
    codes[::BUCKET], codes[1::BUCKET] = 0, 2**bits - 1  # so that levels are whole numbers
    codes[-2:] = 0, 2**bits - 1
    update = {"w": codes}
    message = Quantise(bits).compress(update, update, np.random.default_rng(1))
    buckets = math.ceil(size / BUCKET)
    assert len(message) == 1 + min(size * 8, 2 * 8 * buckets + bits * math.ceil(size / 8))
    assert np.array_equal(_through(Quantise(bits), update, update)["w"], codes)


def test_draws_depend_on_client_and_round_alone(tmp_path: Path) -> None:
    def message(client: str, round: int) -> bytes:
        request = Request([client], "train", "delta", Work(round), arrays=SENT)
        state = ClientState(tmp_path / client, round, [], 0, "0")
        outgoing = Compression(Quantise(2), request, 1, 0.0, feeds_back=False)
        return outgoing.change(0, _update(), state)[COMPRESSED].tobytes()

    assert message("a", 1) == message("a", 1)
    assert len({message("a", 1), message("a", 2), message("b", 1)}) == 3


@pytest.mark.parametrize("size", [BLOCK, 2 * BLOCK + BUCKET + 3])
def test_long_arrays_are_quantised_as_if_at_once(size: int) -> None:
    """Levels, draws and planes of bits of all entries together, computed from the whole array."""
    array, bits, rng = np.random.default_rng(2).standard_normal(size).astype(np.float32), 3, np.random.default_rng(1)
    rows = np.pad(array, (0, -size % BUCKET), "edge").reshape(-1, BUCKET)
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    step = (high - low) / np.float32(2**bits - 1)
    codes = np.minimum((rows - low) / step + rng.random(rows.shape, np.float32), 2**bits - 1).astype(np.uint8)
    planes = [np.packbits(codes.ravel()[:size] >> plane & 1) for plane in range(bits)]
    bounds, found = Quantise(bits).pack(array, np.random.default_rng(1))
    assert bounds.tobytes() == low.tobytes() + high.tobytes()
    assert found.tobytes() == b"".join(plane.tobytes() for plane in planes)
    restored = _through(Quantise(bits), {"w": array}, {"w": np.zeros_like(array)})["w"]
    assert restored.tobytes() == (codes * step + low).astype(np.float32).ravel()[:size].tobytes()


# ----------------------------------------------------------------------------- sparse and low rank


@pytest.mark.parametrize("equal", [False, True])
def test_of_entries_of_one_size_as_many_are_sent_as_are_lacking(equal: bool) -> None:
    rng, size = np.random.default_rng(1), 2 * BLOCK
    entries = (rng.permutation(np.arange(1, size + 1)) * rng.choice([-1, 1], size)).astype(np.float32)
    lengths = np.abs(entries)
    if equal:
        entries[(lengths > size - 2000) & (lengths <= size - 1000)] = size - 1000
    found = _through(TopK(1311 / size), {"w": entries}, {"w": np.zeros_like(entries)})["w"]
    sent = found != 0
    assert np.count_nonzero(sent) == 1311
    assert np.array_equal(found[sent], entries[sent])
    assert sent[lengths > size - 1000].all()
    assert np.abs(found[sent]).min() == (size - 1000 if equal else size - 1310)


@pytest.mark.parametrize("share", [0.002, 0.01, 0.02, 1.0])
def test_of_entries_of_equal_length_the_first_are_sent(share: float) -> None:
    entries = np.zeros(1000, np.float32)
    entries[[10, 20, 30, 40, 50]] = [1, -2, 1, -1, 1]
    restored = _through(TopK(share), {"w": entries}, {"w": entries})["w"]
    ordered = np.argsort(-np.abs(entries), kind="stable")[: round(share * 1000)]
    assert np.array_equal(restored, np.where(np.isin(np.arange(1000), ordered), entries, 0))


def test_the_largest_entries_of_each_array_are_sent() -> None:
    update, restored = _update(), _through(TopK(0.1), _update())
    for name in ("0.weight", "2.bias", "3.weight"):
        entries, found = update[name].ravel(), restored[name].ravel()
        k = math.ceil(0.1 * entries.size)
        least = np.sort(np.abs(entries))[-k]
        assert np.array_equal(found, np.where(np.abs(entries) >= least, entries, 0))
        assert np.count_nonzero(found) == k
    sizes = [math.ceil(0.1 * SENT[name].size) * 8 for name in ("0.weight", "2.bias", "3.weight")]
    assert len(TopK(0.1).compress(update, SENT, np.random.default_rng(1))) == 1 + sum(sizes) + 40 * 4


@pytest.mark.parametrize("scheme", [TopK(1.0), LowRank(20)])
def test_without_loss_nothing_changes(scheme: Scheme) -> None:
    update = _update()
    for name, array in _through(scheme, update).items():
        assert np.array_equal(array, update[name]), name


@pytest.mark.parametrize("scheme", [Quantise(1), TopK(0.01), LowRank(1)])
def test_running_statistics_are_sent_as_they_are(scheme: Scheme) -> None:
    update = _update()
    assert np.array_equal(_through(scheme, update)["0.running_var"], update["0.running_var"])
    assert not np.array_equal(_through(scheme, update)["3.weight"], update["3.weight"])


def test_arrays_that_do_not_come_back_cost_nothing() -> None:
    update = {name: array for name, array in _update().items() if name != "0.weight"}
    assert _through(TopK(0.1), update).keys() == update.keys()
    assert len(TopK(0.1).compress(update, SENT, np.random.default_rng(1))) == 1 + 8 * (2 + 110) + 40 * 4


@pytest.mark.parametrize("shape", [(20, 55), (55, 5, 4)])
def test_a_matrix_of_low_rank_comes_back(shape: tuple[int, ...]) -> None:
    rng, n = np.random.default_rng(1), shape[0]
    low = (rng.normal(size=(n, 2)) @ rng.normal(size=(2, 1100 // n))).reshape(shape).astype(np.float32)
    sent = {"w": np.zeros_like(low)}
    assert len(LowRank(3).compress({"w": low}, sent, rng)) == 1 + 4 * 3 * 75
    np.testing.assert_allclose(_through(LowRank(3), {"w": low}, sent)["w"], low, atol=1e-5)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(_through(LowRank(1), {"w": low}, sent)["w"], low, atol=1e-1)


def test_the_error_is_close_to_that_of_the_best_matrix_of_its_rank() -> None:
    """The squared error of a projection is at least that of the truncated singular value decomposition."""
    u, _, v = np.linalg.svd(_update(1, MATRIX)["w"].astype(float), full_matrices=False)
    spectrum = 0.6 ** np.arange(20)
    matrix = ((u * spectrum) @ v).astype(np.float32)
    best = float((spectrum[4:] ** 2).sum())
    errors = [float(np.square(_through(LowRank(4), {"w": matrix}, MATRIX, s)["w"] - matrix).sum()) for s in range(20)]
    assert best * (1 - 1e-4) <= min(errors)
    assert np.mean(errors) < 1.4 * best


def test_a_zero_update_stays_zero() -> None:
    zero = {name: np.zeros_like(array) for name, array in SENT.items()}
    for scheme in (Quantise(1), TopK(0.1), LowRank(2)):
        with np.errstate(all="raise"):
            assert norm(_through(scheme, zero)) == 0


# ---------------------------------------------------------------------------------- error feedback


class _Client:
    """A client that sends an update in each round; some of its replies are lost."""

    def __init__(self, scheme: Scheme, folder: Path, longest: float = 0.0) -> None:
        self.scheme, self.folder, self.longest = scheme, folder, longest

    def send(
        self, round: int, used: int, update: Arrays, lineage: list[int] | None = None, checkpoint: int = 0
    ) -> tuple[Arrays, Arrays]:
        """Return what the server restores, and the residual that the client has stored."""
        state = ClientState(self.folder, round, lineage or [], checkpoint, "0")
        request = Request(["a"], "train", "delta", Work(round), arrays=SENT, used=[used])
        outgoing = Compression(self.scheme, request, 1, self.longest, feeds_back=True)
        change = {name: array.astype(np.float64) for name, array in update.items()}
        messages = Messages()
        messages.add(outgoing.change(0, change, state), 1.0)
        state.commit()
        found = ClientState(self.folder, round, lineage or [], checkpoint, "0").load("residualtrain")
        assert found is not None
        return self.scheme.restore(Reader(messages.result()[COMPRESSED]), SENT), found


def _equal(left: Arrays, right: Arrays) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_allclose(array, right[name], atol=2e-5, err_msg=name)


def _sum(parts: list[Arrays]) -> Arrays:
    return {name: np.sum([part[name] for part in parts], axis=0) for name in SENT}


@pytest.mark.parametrize("scheme", [TopK(0.05), LowRank(1)])
def test_what_was_sent_and_the_residual_are_all_updates(scheme: Scheme, tmp_path: Path) -> None:
    client, updates = _Client(scheme, tmp_path), [_update(seed) for seed in range(6)]
    sent = [client.send(round, round - 1, updates[round - 1]) for round in range(1, 7)]
    _equal(_sum([*(one for one, _ in sent), sent[-1][1]]), _sum(updates))
    assert norm(sent[-1][1]) > 1


def test_a_lost_reply_leaves_the_residual_as_it_was(tmp_path: Path) -> None:
    """Of six replies the server uses the first, fourth and sixth; the others' updates are gone, as without scheme."""
    client, updates = _Client(TopK(0.05), tmp_path / "lossy"), [_update(seed) for seed in range(6)]
    used, last = [], 0
    for round in range(1, 7):
        sent, residual = client.send(round, last, updates[round - 1])
        if round in (1, 4, 6):
            used.append(sent)
            last = round
    _equal(_sum([*used, residual]), _sum([updates[0], updates[3], updates[5]]))


def test_a_resumed_run_goes_on_from_the_residual_of_its_checkpoint(tmp_path: Path) -> None:
    """The run ends in round 6, resumes from round 4; replies 3 and 5 were lost, before and after the checkpoint."""
    client, updates = _Client(TopK(0.05), tmp_path), [_update(seed) for seed in range(8)]
    for round, used, checkpoint in ((1, 0, 0), (2, 1, 0), (3, 2, 0), (5, 2, 4), (6, 2, 4)):
        before = client.send(round, used, updates[round], checkpoint=checkpoint)
    again = client.send(6, 2, updates[6], [4], 4)
    for one, other in zip(before, again, strict=True):
        assert all(np.array_equal(array, other[name]) for name, array in one.items())


def test_what_a_failed_reply_left_does_not_hide_what_a_resumed_run_needs(tmp_path: Path) -> None:
    """Round 4, before the checkpoint in 5, was lost; round 6 is used, and the run resumes from 5."""
    client, updates = _Client(TopK(0.05), tmp_path), [_update(seed) for seed in range(8)]
    for round, used, checkpoint in ((3, 0, 0), (4, 3, 0)):
        client.send(round, used, updates[round], checkpoint=checkpoint)
    first = client.send(6, 3, updates[6], checkpoint=5)
    client.send(7, 6, updates[7], checkpoint=5)
    again = client.send(6, 3, updates[6], [5], 5)
    assert all(np.array_equal(array, again[1][name]) for name, array in first[1].items())


def test_arrays_that_do_not_come_back_keep_their_residual(tmp_path: Path) -> None:
    client = _Client(TopK(0.05), tmp_path)
    _, before = client.send(1, 0, _update(1))
    _, after = client.send(2, 1, {name: array for name, array in _update(2).items() if name != "3.weight"})
    assert np.array_equal(before["3.weight"], after["3.weight"])
    assert not np.array_equal(before["0.weight"], after["0.weight"])


def test_what_is_owed_is_sent_within_the_norm_that_is_allowed(tmp_path: Path) -> None:
    client, updates = _Client(TopK(0.4), tmp_path, longest=5.0), [_update(seed) for seed in range(3)]
    sent = [client.send(round, round - 1, updates[round - 1]) for round in range(1, 4)]
    assert all(norm(one) <= 5.0 * (1 + 1e-6) for one, _ in sent)
    assert norm(updates[0]) > 10
    _equal(_sum([*(one for one, _ in sent), sent[-1][1]]), _sum(updates))


def test_a_quantised_update_that_is_too_long_fails_its_client(tmp_path: Path) -> None:
    update, state = _update(), ClientState(tmp_path, 1, [], 0, "0")
    request = Request(["a"], "train", "delta", Work(1), arrays=SENT)
    allowed = norm(update) * 1.01
    assert Compression(Quantise(8), request, 1, allowed, feeds_back=False).change(0, update, state)
    with pytest.raises(RunError, match=r"quantised update has norm .* more compression\.bits"):
        Compression(Quantise(1), request, 1, allowed, feeds_back=False).change(0, update, state)


def test_a_request_says_which_updates_were_used() -> None:
    request = Request(["a"], "train", "delta", Work(1), arrays=SENT)
    with pytest.raises(RunError, match="does not say which updates"):
        Compression(TopK(0.1), request, 1, 0.0, feeds_back=True)


# ---------------------------------------------------------------------------------- wrong messages


def _with(at: int, values: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return what overwrites the bytes from ``at`` on."""
    part = np.ascontiguousarray(values).reshape(-1).view(np.uint8)

    def changed(message: np.ndarray) -> np.ndarray:
        message[at : at + len(part)] = part
        return message

    return changed


PLACES = math.ceil(0.01 * 1100)
WRONG: dict[str, tuple[Scheme, Callable[[np.ndarray], np.ndarray], str]] = {
    "cut": (Quantise(4), lambda message: message[:-1], "1 bytes too early"),
    "empty": (TopK(0.01), lambda message: message[:0], "1 bytes too early"),
    "bounds": (Quantise(4), _with(1, np.float32([9, 9, 9])), "ends below its start"),
    "nan": (Quantise(4), _with(1, np.float32(np.nan)), "NaN, infinity or too large"),
    "outside": (TopK(0.01), _with(1 + 4 * (PLACES - 1), np.uint32(1100)), "different ones of its array"),
    "twice": (TopK(0.01), _with(1, np.uint32([7, 7])), "different ones of its array"),
    "order": (TopK(0.01), _with(1, np.uint32([9, 8])), "different ones of its array"),
    "entry": (TopK(0.01), _with(1 + 4 * PLACES, np.float32(np.inf)), "NaN, infinity or too large"),
    "factor": (LowRank(1), _with(1, np.float32(1e30)), "NaN, infinity or too large"),
    "other factor": (LowRank(1), _with(1 + 4 * 20, np.float32(np.nan)), "NaN, infinity or too large"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_messages_that_no_client_can_send_are_refused(wrong: str) -> None:
    scheme, change, reason = WRONG[wrong]
    message = scheme.compress(_update(1, MATRIX), MATRIX, np.random.default_rng(1))
    scheme.restore(Reader(message), MATRIX)
    with pytest.raises(ValueError, match=reason):
        scheme.restore(Reader(change(message.copy())), MATRIX)


@pytest.mark.parametrize("scheme", [Quantise(5), TopK(0.1), LowRank(2)])
def test_any_bytes_are_read_as_the_arrays_that_were_sent_or_not_at_all(scheme: Scheme) -> None:
    rng, length = np.random.default_rng(1), len(scheme.compress(_update(), SENT, np.random.default_rng(1)))
    for _ in range(200):
        message = rng.integers(0, 256, length, dtype=np.uint8)
        message[0] = 0xFF
        try:
            found = scheme.restore(Reader(message), SENT)
        except ValueError:
            continue
        assert {name: array.shape for name, array in found.items()} == SHAPES
