"""How many clients to train at once: measured for a network, a batch size and a device, and kept in ``cache-dir``."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable
from functools import partial

import torch

from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.stacked_examples import form_for, kind_of
from florilegium.clients.core.together import Company, Parts, Shared
from florilegium.clients.core.training import train
from florilegium.common.files import write_text
from florilegium.common.settings import folder
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import Task

SIZES = (4, 16, 64)
"""Numbers of clients that are tried, besides one."""
UNSTACKED = 16
"""Number of clients for a network that is trained one client at a time; its head may still be stacked."""
_GAIN = 0.95
"""Several clients at once are taken only if they need less than this share of the time of one."""
_HOPELESS = 1.5
"""No larger number is tried after one that needs this many times the time of the best."""
_BATCHES, _REPEATS = 4, 3


def fastest(company: Company, settings: ClientSettings, examples: Examples, task: Task) -> int:
    """Return the number of clients that ``company`` trains fastest at once, for clients with about these examples.

    The first call for a network, batch size, device and size of data measures; others read the result. The networks'
    contents and the random generators are afterwards what they were.

    Args:
        company: runs the clients.
        settings: optimizer, batch size and ``cache-dir``.
        examples: the training examples of one of the clients, at least one.
        task: what is learned.
    """
    form = form_for(company.network, examples)
    if form is None:
        return UNSTACKED
    batches = min(_BATCHES, -(-len(examples) // settings.batch_size))
    part = examples.rows(slice(batches * settings.batch_size))
    machine = torch.cuda.get_device_name(part.y.device) if part.y.is_cuda else platform.processor()
    facts = (
        form.signature, kind_of(part), batches, settings.batch_size, settings.optimizer, machine,
        torch.__version__, torch.get_num_threads(),
    )  # fmt: skip
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    path = folder(settings.cache_dir) / "vectorise" / f"{name}.json"
    if not path.exists():
        seconds = _measured(company, settings, part, task)
        best = min(seconds, key=lambda size: seconds[size] * (_GAIN if size == 1 else 1))
        write_text(path, json.dumps({"clients": best, "seconds": {str(n): s for n, s in seconds.items()}}) + "\n")
    found: int = json.loads(path.read_text(encoding="utf-8"))["clients"]
    return found


def _measured(company: Company, settings: ClientSettings, examples: Examples, task: Task) -> dict[int, float]:
    """Return the seconds of a client's epoch by the number of clients at once, up to the first without hope."""
    before = Shared(Parts(company.network))

    def work() -> float:
        return train(company.network, examples, settings, torch.Generator().manual_seed(0), task=task, epochs=1).loss

    found = {1: min(_seconds(work, examples) for _ in range(2 * _REPEATS))}
    for size in SIZES:
        together = partial(company.run, [work] * size)
        try:
            found[size] = min(_seconds(together, examples) for _ in range(_REPEATS)) / size
        except torch.OutOfMemoryError:
            break
        if found[size] > _HOPELESS * min(found.values()):
            break
    before.load()
    before.restore()
    return found


def _seconds(work: Callable[[], object], examples: Examples) -> float:
    begun = time.perf_counter()
    work()
    if examples.y.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun
