"""Check a run without carrying it out: what it checks before its first exchange, what can be done with its models
afterwards, and an estimate of what it takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from florilegium.apps.assembly.early_checks import check_early
from florilegium.apps.settings.configuration import complete, defaults_of
from florilegium.common.errors import FlorilegiumError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import NETWORKS

_ONE: Mapping[str, Value] = {
    "rounds": 1, "cohort-size": 1, "participation": 1.0, "final-participation": 0.0, "evaluate-every": 0,
    "evaluate-clients": 1, "checkpoint-every": 0, "checkpoint-seconds": 0.0, "resume": "", "metrics-port": 0,
    "tracker": "", "run-name": "check", "patience": 0, "keep": "last",
}  # fmt: skip
"""What differs in the rehearsal of a single client."""


_ONNX = ("onnx", "onnxscript")
"""Packages that writing ONNX needs."""


@dataclass(frozen=True)
class Checked:
    """What a check has found.

    Attributes:
        changed: the keys that differ from their defaults: value and default of each.
        warnings: what the run would warn of at its start, and what could not be done with its models after it, in
            sentences.
        clients, cohort, rounds: numbers of clients, of those in a round's cohort, and of rounds.
        estimate: what the run takes, by name; empty if a single client cannot be rehearsed.
        why: why there is no estimate; "" if there is.
    """

    changed: Mapping[str, tuple[Value, Value]]
    warnings: tuple[str, ...]
    clients: int
    cohort: int
    rounds: int
    estimate: Mapping[str, float]
    why: str = ""


def check_run(overrides: Mapping[str, Value]) -> Checked:
    """Check a run's configuration and data, and estimate what it takes from a rehearsal of one client.

    Args:
        overrides: the configuration, where it differs from the defaults.

    Raises:
        ConfigurationError, DataError, RunError: as the run itself would before its first exchange.
    """
    config = complete(overrides)
    check_early(config)
    from florilegium.apps.engines.rehearsal import rehearse  # imports PyTorch

    strategy = rehearse(config)
    federation, usual = strategy.federation, defaults_of(config)
    cohort, s = federation.cohort_size(1), strategy.settings
    unusable: list[str] = []
    try:
        one = _rehearsed(config, [] if strategy.models == "none" else [*federation.clients][:1], unusable)
        trainings, evaluations = cohort * s.rounds, max(1, math.ceil(s.rounds / (s.evaluate_every or s.rounds or 1)))
        tested = sum(len(clients) for clients in strategy.groups().values())
        estimate = {
            "client trainings": trainings,
            "client tests": evaluations * tested,
            "MB sent to clients": one["down"] * trainings / 1e6,
            "MB received": one["up"] * trainings / 1e6,
            "seconds, one worker": one["training"] * trainings + one["test"] * evaluations * tested,
            "MB of memory, one worker": one["memory"],
        }
        why = ""
    except FlorilegiumError as error:
        estimate, why = {}, str(error)
    changed = {key: (value, usual[key]) for key, value in config.items() if key in usual and value != usual[key]}
    warnings = (*federation.remarks(federation.roster.deployed).warnings, *unusable)
    return Checked(changed, warnings, len(federation.roster.clients), cohort, s.rounds, estimate, why)


def _rehearsed(config: Mapping[str, Value], clients: Sequence[str], unusable: list[str]) -> dict[str, float]:
    """Carry out one round with one client; return its bytes, seconds and memory.

    Args:
        config: the configuration.
        clients: those whose models are tried out after that round.
        unusable: gets a sentence for each thing that cannot be done with one.

    Raises:
        FlorilegiumError: if the method needs more than one client or one round.
    """
    from florilegium.apps.engines.one_process import run_here
    from florilegium.apps.engines.rehearsal import silence

    with silence(), TemporaryDirectory() as folder:
        own = {**config, **_ONE, "runs-dir": folder}
        path = run_here(own, Path(folder) / "check")
        lines: list[dict[str, Any]] = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        attempts = json.loads((path / "provenance.json").read_text())
        unusable += [said for client in clients for said in _of_model(path, Path(folder) / "model", client)]
    last = lines[-1]
    return {
        "down": last["bytes_down"], "up": last["bytes_up"], "training": last["seconds"],
        "test": last.get("evaluation_seconds", 0.0), "memory": float(attempts[-1].get("peak_memory_mb", 0)),
    }  # fmt: skip


def _of_model(run: Path, folder: Path, client: str) -> Iterator[str]:
    """Export a client's model, open it and write it as ONNX; yield in sentences what cannot be done."""
    from florilegium.apps.runs.personal import personalise
    from florilegium.apps.runs.predictions import add_onnx
    from florilegium.clients.core.export import load_model

    try:
        model, card = load_model(personalise(run, folder, client))
    except FlorilegiumError as error:
        yield f"model: after the run no client's model could be exported: {error}"
        return
    gap = getattr(model, "onnx_gap", "")
    if not gap and (card.model in NETWORKS.own or not all(map(find_spec, _ONNX))):
        return  # the suite's networks are tested, and to import PyTorch's exporter takes seconds
    try:
        add_onnx(folder)
    except RunError as error:
        yield (
            f"model: '{card.model}': after the run `export --onnx` would fail: {error}. All else can be done with the "
            "model: `export`, `predict`, `personalise`"
        )
