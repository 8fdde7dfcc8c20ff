"""PeFLL and pFedHN with private examples: what is answered, by examples one by one, and what it costs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from florilegium.clients.pefll import DESCRIPTOR
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.embedding import build_embedding
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples
from tests.runs import Runs
from tests.support import make_client, mostly_long, perform

SIZE = 5
EMBED: dict[str, Any] = {"batch": 0, "size": SIZE}
DESCRIBE: dict[str, Any] = {**EMBED, "follows": True}


def _client(folder: Path, examples: Examples, **keys: Value) -> Any:
    return make_client(
        examples, build("linear", (1, 16, 16), 10, 1), folder=folder, **{
            "method": "pefll", "dataset": "mnist", "model": "linear", "pefll.embedding": "cnn-unlabeled", **keys,
        },
    )  # fmt: skip


@pytest.mark.parametrize("bound", [1e6, 0.05])
def test_descriptors_and_updates_are_means_of_clipped_parts(tmp_path: Path, bound: float) -> None:
    """Without noise, of all examples; with an ample bound they are those of PeFLL without privacy."""
    generator = torch.Generator().manual_seed(2)
    examples = Examples(torch.randn(9, 1, 28, 28, generator=generator), torch.arange(9))
    embedding = build_embedding("cnn-unlabeled", (1, 28, 28), 10, SIZE, 3)
    arrays, Δv = get_arrays(embedding), torch.randn(SIZE, generator=generator)
    v, Δη = np.zeros(SIZE), [np.zeros(p.shape) for p in embedding.parameters()]
    for x, y in zip(examples.x, examples.y, strict=True):
        φ = embedding(x[None], y[None])[0]
        gradients = torch.autograd.grad(φ @ Δv, [*embedding.parameters()], retain_graph=True)
        v += φ.detach().numpy() * min(1.0, bound / float(φ.norm())) / 9
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for total, gradient in zip(Δη, gradients, strict=True):
            total += gradient.numpy() * min(1.0, bound / norm) / 9
    private = _client(tmp_path, examples, **{"privacy.unit": "example", "privacy.clip-norm": bound})
    answers = []
    for client in (private, _client(tmp_path / "plain", examples)) if bound > 1 else (private,):
        described = perform(client, "describe", arrays, **DESCRIBE).arrays[DESCRIPTOR]
        updates = perform(client, "embed", {DESCRIPTOR: Δv.numpy()}, **EMBED).arrays
        answers.append((described, list(updates.values())))
    for described, updates in answers:
        np.testing.assert_allclose(described, v, rtol=1e-4, atol=1e-6)
        for found, expected in zip(updates, Δη, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_descriptors_and_updates_carry_the_noise(tmp_path: Path) -> None:
    """z·C/n in every entry, with z so large that the examples do not count; what was paid for is answered once."""
    generator = torch.Generator().manual_seed(2)
    examples = Examples(torch.randn(9, 1, 28, 28, generator=generator), torch.arange(9))
    arrays = get_arrays(build_embedding("cnn-unlabeled", (1, 28, 28), 10, SIZE, 3))
    keys: dict[str, Value] = {"privacy.unit": "example", "privacy.noise-multiplier": 1e5, "privacy.clip-norm": 0.2}
    client, parts = _client(tmp_path, examples, **keys), []
    for number in range(60):
        parts.append(perform(client, "describe", arrays, round=number, **DESCRIBE).arrays[DESCRIPTOR])
    Δv = {DESCRIPTOR: np.ones(SIZE, np.float32)}
    updates = perform(client, "embed", Δv, round=59, **EMBED).arrays
    for values in (np.concatenate(parts), np.concatenate([a.ravel() for a in updates.values()])):
        low, high = chi2.ppf([1e-6, 1 - 1e-6], values.size)
        assert low < np.square(values.astype(np.float64) / (1e5 * 0.2 / 9)).sum() < high
    with pytest.raises(RunError, match="no descriptor of round 59"):
        perform(client, "embed", Δv, round=59, **EMBED)


def test_what_is_not_there_is_not_described(tmp_path: Path) -> None:
    """Neither without examples, nor, where the embedding looks at labels, without these."""
    private: dict[str, Value] = {"privacy.unit": "example"}
    none = Examples(torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64))
    arrays = get_arrays(build_embedding("linear", (1, 28, 28), 10, SIZE, 3))
    with pytest.raises(RunError, match="no examples to make a descriptor of"):
        perform(_client(tmp_path, none, **private, **{"pefll.embedding": "linear"}), "describe", arrays, **DESCRIBE)
    unlabeled = _client(tmp_path, Examples(torch.zeros(3, 1, 28, 28), torch.zeros(3, dtype=torch.int64)), **private,
                        **{"pefll.embedding": "linear"})  # fmt: skip
    unlabeled.data.labeled = False
    with pytest.raises(RunError, match="'linear' needs labels"):
        perform(unlabeled, "describe", arrays, **DESCRIBE)


def _runs(folder: Path, method: str, **keys: Value) -> Runs:
    return Runs(folder, {
        "method": method, "model": "linear", "num-clients": 4, "participation": 1.0, "rounds": 2, "local-steps": 3,
        "batch-size": 16, "momentum": 0.0, "privacy.unit": "example", "privacy.epsilon": 6.0, "evaluate-every": 0,
        f"{method}.hidden-width": 8, f"{method}.descriptor-size": 4, **keys,
    })  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("method", [pytest.param("pefll", marks=pytest.mark.long), "pfedhn"])
def test_who_has_spent_its_budget_is_still_tested(tmp_path: Path, method: str) -> None:
    run = _runs(tmp_path, method, **{"unseen-fraction": 0.25})
    path = run("run")
    run("run", resume="run", rounds=4)
    final = json.loads((path / "summary.json").read_text())
    assert final["privacy"]["epsilon_max"] <= 6
    assert "seen" in final["final"]
    assert method == "pefll" or "unseen" in final["final"]


@pytest.mark.parametrize("method", mostly_long(["pefll", "pfedhn"], "pefll"))
def test_budgets_are_kept(tmp_path: Path, method: str) -> None:
    """An account has steps of z, and for every description that was also learned from one release of z/√2."""
    path = _runs(tmp_path, method, **{"pefll.descriptor-batch": 16, "pefll.test-batch": 16})("run")
    summary = json.loads((path / "summary.json").read_text())["privacy"]
    assert 0.95 * 6 < summary["epsilon_max"] <= 6
    releases = json.loads((path / "clients" / "0" / "privacy.json").read_text())["releases"]
    z = max(z for z, _, _ in releases)
    rest = sorted((round(own / z, 6), times) for own, _, times in releases)
    if method == "pfedhn":
        assert rest == [(1.0, 6)]
    else:
        assert rest == [(round(1 / math.sqrt(2), 6), 2), (1.0, 6 + 1)]
