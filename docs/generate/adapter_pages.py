"""Which methods go with which adapters: every pair is put together as for a run, without running it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.generate.method_pages import table
from florilegium.apps.assembly.parts import assemble, open_folder
from florilegium.apps.assembly.task_checks import learns
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import complete
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.tasks.measured import Measured
from florilegium.tasks.registry import TASKS

KINDS = ("head", "lora", "ia3")
"""Values of ``adapter.kind`` in the table; prompts, which only transformers take, are one more block, as IA³ is."""
COMMON: Mapping[str, Value] = {"model": "mlp", "adapter.rank": 4, "rounds": 1}
_TUNED: Mapping[str, Value] = {
    "rounds": 2, "fedl2p.pretraining-rounds": 1, "validation-fraction": 0.2, "finetune-epochs": 1,
}  # fmt: skip
OWN: Mapping[str, Mapping[str, Value]] = {
    "fedbn": {"model": "cnn-bn"},
    "fedl2p": _TUNED,
    "l2p": _TUNED,
    "ppfe": {
        "ppfe.personal-blocks": "0,1", "ppfe.stage-rounds": "1,1", "ppfe.ranks": "", "rounds": 2, "participation": 1.0,
    },
    "pefll": {"pefll.hidden-width": 8, "pefll.descriptor-size": 4},
    "pfedhn": {"pfedhn.hidden-width": 8, "pfedhn.descriptor-size": 4},
    "flowdup": {"flowdup.dimensions": 30, "flowdup.features": 7, "flowdup.width": 6},
    "ld-fedavg": {"ld-fedavg.dimensions": 30},
}  # fmt: skip
"""What methods need besides, and sizes that keep hypernetworks and subspaces small."""
TARGETS = {"mlp": "fc1.1,fc2.0", "cnn-bn": "conv2.0,conv3.0"}
"""The layers that LoRA and IA³ adapt in each network."""


def methods() -> list[str]:
    """Return the suite's methods that learn classes of single inputs."""
    task = TASKS["classification"]
    assert issubclass(task, Measured)
    return [name for name in METHODS.own if METHODS[name].task == "targets" and learns(name, task(task.example))]


def keys(method: str, kind: str) -> dict[str, Value]:
    """Return the keys of a run of a method with a kind of adapters."""
    own = {**COMMON, **OWN.get(method, {}), "method": method, "adapter.kind": kind}
    return own if kind == "head" else {**own, "adapter.targets": TARGETS[str(own["model"])]}


def refusal(method: str, kind: str) -> str:
    """Return why a method does not go with a kind of adapters, "" if it does."""
    config = complete(keys(method, kind))
    try:
        made = assemble(config, one_thread=True)
        with TemporaryDirectory() as folder:
            made.strategy(open_folder(Path(folder) / "run", config, method)).server_part(made.initial)
    except ConfigurationError as error:
        return str(error)
    return ""


def adapter_table() -> str:
    """Return the table of methods and adapters in Markdown, and the reasons."""
    rows, reasons = [], dict[str, dict[str, None]]()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for method in methods():
        why = {kind: refusal(method, kind) for kind in KINDS}
        rows.append([f"`{method}`", *("no" if why[kind] else "yes" for kind in KINDS)])
        for reason in filter(None, why.values()):
            reasons.setdefault(_general(reason, method), {})[f"`{method}`"] = None
    logging.getLogger("flwr").setLevel(logging.INFO)
    lines = [f"- {', '.join(names)}: {reason}\n" for reason, names in reasons.items()]
    return table(["method", *(f"`{kind}`" for kind in KINDS)], rows) + "\nWhy not:\n\n" + "".join(lines)


def _general(reason: str, method: str) -> str:
    """Return a reason without what is a method's or an adapter's own."""
    told = reason.removeprefix("The run configuration is wrong.").strip().replace(f"method '{method}'", "the method")
    return re.sub(r" \([^)]*\)", "", told)
