"""Kills of processes of deployed runs at random moments: ``make test-kills``, half an hour to an hour on two cores.

A SuperLink, its ServerApp, a SuperNode, the process that its apps are forked from, and an app are killed, terminated or
stopped for eight seconds. What would restart them in ``deploy/`` restarts them, and a run that has ended is resumed.
In the end a run is bit for bit that which was left alone, or the device is named for each round that it has missed.
Another seed: ``FLORILEGIUM_KILLS=2``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.claim import is_carried_out, read_status
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.processes import DEADLINE
from tests.site import Site, site
from tests.support import settings

pytestmark = pytest.mark.kills

SEED, KILLS, STOPPED = int(os.environ.get("FLORILEGIUM_KILLS", "1")), 24, 8.0
CLIENTS, ROUNDS, STRUCK = 3, 4, "1"
"""Number of devices and of rounds; the device whose processes are killed."""
FEDERATION: dict[str, Value] = {"partitioner": "iid", "num-clients": CLIENTS, "seed": 5}
KEYS: dict[str, Value] = {
    "dataset": "digits", "num-clients": CLIENTS, "seed": 5, "participation": 1.0, "model": "mlp", "local-epochs": 1,
    "batch-size": 16, "evaluate-every": 2, "checkpoint-every": 1, "start-timeout": 600.0, "round-timeout": 40.0,
    "min-success": 0.5, "rounds": ROUNDS,
}  # fmt: skip
SET_UPS: dict[str, dict[str, Value]] = {
    "fedper": {"method": "fedper"},
    "ditto": {"method": "ditto"},
    "pefll": {"method": "pefll", "pefll.hidden-width": 8, "pefll.descriptor-size": 4, "local-steps": 3},
    "buffered": {"method": "fedavg", "mode": "buffered", "buffer.size": CLIENTS},
    "secure": {"method": "fedavg", "secure-aggregation": True, "max-update-norm": 10.0},
    "private": {
        "method": "fedavg", "privacy.unit": "example", "privacy.noise-multiplier": 1.0, "privacy.clip-norm": 1.0,
        "local-steps": 2,
    },
}  # fmt: skip
START = 5.0
"""About how many seconds after its submission a run's first round begins."""
VICTIMS = ("superlink", "serverapp", "supernode", "forkserver", "app")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)


@dataclass(frozen=True)
class Kill:
    """A kill: the set-up of the run, the process, the signal, and the moment, in rounds; below 0: before the first."""

    set_up: str
    victim: str
    signal: signal.Signals
    moment: float

    def __str__(self) -> str:
        return f"{self.set_up}-{self.victim}-{self.signal.name}-{self.moment:.2f}"


def drawn(seed: int) -> list[Kill]:
    """Return the kills of a campaign: each process with each signal, others at random; four in each set-up."""
    draws = numpy_generator(seed, "kills")
    pairs = [*product(VICTIMS, SIGNALS)]
    chosen = [*range(len(pairs)), *draws.integers(len(pairs), size=KILLS - len(pairs))]
    set_ups = draws.permutation([*SET_UPS] * (KILLS // len(SET_UPS)))
    kills = [
        Kill(str(own), *pairs[pair], float(draws.uniform(-1, ROUNDS)))
        for own, pair in zip(set_ups, chosen, strict=True)
    ]
    return sorted(kills, key=lambda kill: [*SET_UPS].index(kill.set_up))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Devices, each with the data of a simulated client; nothing of them may be left in the end."""
    folder = tmp_path_factory.mktemp("site")
    federation, dataset = federate(settings(**FEDERATION))
    with site(folder) as started:
        for client in range(CLIENTS):
            write_device(federation, dataset, client, folder / "data" / str(client))
            started.start_node(str(client), folder / "data" / str(client))
        yield started
        for process in (*started.nodes.values(), started.superlink):
            process.terminate()
        deadline = time.monotonic() + 60
        while (left := _of(folder)) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert not left, [" ".join(process.cmdline()) for process in left]


@pytest.fixture(scope="module")
def whole(here: Site) -> Wholes:
    """What carries out a run that is left alone, once for each set-up."""
    return Wholes(here)


class Wholes:
    """Runs that are left alone."""

    def __init__(self, here: Site) -> None:
        self._here, self._known = here, dict[str, tuple[Path, float]]()

    def __call__(self, set_up: str) -> tuple[Path, float]:
        """Return the run's folder, and how many seconds a round took."""
        if set_up not in self._known:
            path = self._here.run(f"whole-{set_up}", **{**KEYS, **SET_UPS[set_up]})
            assert not (path / "failures.jsonl").exists()
            self._known[set_up] = path, read_metrics(path)[-1]["seconds"] / ROUNDS
        return self._known[set_up]


def _of(folder: Path) -> list[psutil.Process]:
    """Return the processes that belong to a site: their environment, command or working folder names its folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = [*process.cmdline(), *process.environ().values(), process.cwd()]
            if process.pid != os.getpid() and any(f"{folder}/" in word for word in words):
                found.append(process)
    return found


def _find(here: Site, victim: str) -> psutil.Process | None:
    """Return a process that lives; None while it does not."""
    node = here.nodes[STRUCK]
    if victim == "superlink":
        return psutil.Process(here.superlink.pid)
    if victim == "supernode":
        return psutil.Process(node.pid)
    parent = here.superlink if victim == "serverapp" else node
    for process in psutil.Process(parent.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended; one that was killed may stay for a while without a command
            words = " ".join(process.cmdline())
            forked = "forkserver" in words
            is_app = forked and "forkserver" in " ".join(psutil.Process(process.ppid()).cmdline())
            if {"serverapp": "flwr-serverapp" in words, "app": is_app, "forkserver": forked and not is_app}[victim]:
                return process
    return None


def _strike(here: Site, kill: Kill, path: Path) -> bool:
    """Send the signal once the process is there; restart what its machine would restart. Return whether it was sent."""
    deadline = time.monotonic() + DEADLINE
    while (victim := _find(here, kill.victim)) is None:
        assert time.monotonic() < deadline
        if _state(path) in ("completed", "failed"):
            return False
        time.sleep(0.1)
    family = victim.children(recursive=True)
    victim.send_signal(kill.signal)
    if kill.signal == signal.SIGSTOP:
        time.sleep(STOPPED)
        victim.send_signal(signal.SIGCONT)
        return True
    if kill.victim in ("superlink", "supernode"):
        psutil.wait_procs([victim], timeout=30)
        orphans = psutil.wait_procs(family, timeout=30)[1]
        if kill.victim == "superlink":
            here.start_superlink()
        else:
            here.start_node(STRUCK, here.folder / "data" / STRUCK)
        assert not orphans, orphans
    return True


def _state(path: Path) -> str:
    try:
        return str(read_status(path)["state"])
    except (OSError, ValueError):
        return ""


def _finish(here: Site, path: Path, keys: Mapping[str, Value]) -> int:
    """Wait until the run has completed; resume it as often as it has ended early. Return how often."""
    again, deadline, silent = 0, time.monotonic() + DEADLINE, time.monotonic()
    while (state := _state(path)) != "completed":
        assert time.monotonic() < deadline, (state, here.log())
        if is_carried_out(path):
            silent = time.monotonic()
        gone = time.monotonic() - silent > 20 and _find(here, "serverapp") is None  # before the run had a folder
        if state in ("failed", "stopped") or gone:
            again += 1
            assert again <= 3, here.log()
            begun = (path / "config.toml").exists()
            here.submit(path.name, {**keys, "resume": path.name} if begun else keys)
            silent = time.monotonic()
            while _state(path) == state and time.monotonic() < deadline and time.monotonic() - silent < 60:
                time.sleep(0.2)
        time.sleep(0.2)
    return again


def _missed(path: Path) -> dict[str, set[int]]:
    """Return the rounds for which each device is named."""
    found: dict[str, set[int]] = {}
    if (path / "failures.jsonl").exists():
        for line in map(json.loads, (path / "failures.jsonl").read_text().splitlines()):
            found.setdefault(line["client"], set()).add(line["round"])
    return found


def _kept(here: Site, run: str) -> dict[str, Any]:
    """Return what the devices keep of a run in the end, by device, part and name; all of it must be readable."""
    found: dict[str, Any] = {}
    for path in sorted((here.folder / "state").glob(f"*/{run}/**/*.safetensors")):
        if not path.name.startswith("."):
            part = re.sub(r"-\d+-\d+-\w+$", "", path.stem)
            found |= {f"{path.parent} {part} {name}".replace(run, ""): a for name, a in load_file(path).items()}
    return found


def _charged(here: Site, run: str) -> dict[str, int]:
    """Return the number of releases in each device's privacy account."""
    accounts = (here.folder / "state").glob(f"*/{run}/*/privacy.json")
    return {path.parent.name: sum(t for _, _, t in json.loads(path.read_text())["releases"]) for path in accounts}


@pytest.mark.parametrize("kill", drawn(SEED), ids=str)
def test_a_run_survives_a_kill(kill: Kill, here: Site, whole: Wholes, record_property: Any) -> None:
    reference, seconds = whole(kill.set_up)
    name, keys = f"killed-{kill}".replace(".", ""), {**KEYS, **SET_UPS[kill.set_up]}
    path = here.submit(name, keys)
    if kill.moment >= 0:
        here.wait(path, lambda status: status["round"] >= int(kill.moment) or status["state"] == "completed")
    time.sleep((kill.moment % 1) * (seconds if kill.moment >= 0 else START))
    starts = (here.folder / f"{STRUCK}.log").read_text().count("is connected")
    sent = _strike(here, kill, path)
    again = _finish(here, path, keys)
    if sent and kill.victim == "supernode" and kill.signal != signal.SIGSTOP:
        here.wait_for_node(STRUCK, starts + 1)

    missed, ours, theirs = _missed(path), read_checkpoint(path), read_checkpoint(reference)
    record_property("ended", f"sent {sent}, resumed {again}, missed {missed}")
    print(f"\n{kill}: sent {sent}, resumed {again} times, missed {missed}")
    assert ours.round == ROUNDS
    assert all(np.isfinite(array).all() for array in ours.arrays.values())
    assert [line["round"] for line in read_metrics(path) if "training" in line] == [*range(1, ROUNDS + 1)]
    if kill.victim in ("supernode", "forkserver", "app") and kill.set_up != "secure":
        assert missed.keys() <= {STRUCK}
    kept, expected = _kept(here, name), _kept(here, reference.name)
    if not missed and kill.set_up != "private":
        assert ours.arrays.keys() == theirs.arrays.keys()
        assert all(np.array_equal(array, theirs.arrays[name]) for name, array in ours.arrays.items())
        assert kept.keys() == expected.keys()
        assert all(np.array_equal(array, expected[name]) for name, array in kept.items())
    if kill.set_up == "private":
        least = {client: (ROUNDS - len(missed.get(client, ()))) * 2 for client in map(str, range(CLIENTS))}
        charged = _charged(here, name)
        assert all(charged[client] >= count for client, count in least.items()), (charged, least)
    assert not [*here.folder.glob("state/*/*/*/secure-sum.json")]
