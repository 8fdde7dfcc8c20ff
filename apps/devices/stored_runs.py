"""List, export and delete what a device keeps of its runs."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from florilegium.apps.runs.predictions import add_onnx
from florilegium.clients.core.base import ACCOUNT
from florilegium.clients.core.export import load_model
from florilegium.common.errors import ConfigurationError
from florilegium.common.files import write_atomically
from florilegium.common.settings import NAME
from florilegium.partitions.sources.schema import FILE

_VERSION = re.compile(r"[a-z0-9]+-(\d+)-\d+-\w+\.safetensors")
MODEL = "model.safetensors"


@dataclass(frozen=True)
class Kept:
    """What a device keeps of one client in one run.

    Attributes:
        run, client: the run's id and the client's id.
        folder: the folder of this state.
        round: the last round that changed the state; 0 if the method keeps none.
        model: whether there is a model to predict with.
        epsilon: privacy budget ε that training has spent; 0 if the examples are not protected.
        size: bytes on disk.
    """

    run: str
    client: str
    folder: Path
    round: int
    model: bool
    epsilon: float
    size: int


def kept(state_dir: Path, run: str = "", client: str = "") -> list[Kept]:
    """Return what a device's ``state-dir`` holds: for all runs and clients, or only those named.

    Raises:
        ConfigurationError: if there is no such folder, or it holds nothing of the named run or client.
    """
    if not state_dir.is_dir():
        raise ConfigurationError(f"state-dir: there is no folder {state_dir}; the SuperNode's --node-config names it")
    found = [_look(folder) for one in _folders(state_dir) for folder in _folders(one) if _is_state(folder)]
    chosen = [one for one in found if run in ("", one.run) and client in ("", one.client)]
    if (run or client) and not chosen:
        known = ", ".join(f"{one.run} ({one.client})" for one in found) or "nothing"
        raise ConfigurationError(f"there is nothing of {_named(run, client)} in {state_dir}. Kept there: {known}.")
    return chosen


def _named(run: str, client: str) -> str:
    return " and ".join(f"{kind} '{name}'" for kind, name in (("run", run), ("client", client)) if name)


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(("_", ".")))


def _is_state(folder: Path) -> bool:
    names = [entry.name for entry in folder.iterdir()]
    return any(name in (MODEL, ACCOUNT) or _VERSION.fullmatch(name) for name in names)


def _look(folder: Path) -> Kept:
    files = [entry for entry in folder.iterdir() if entry.is_file()]
    rounds = [int(match[1]) for file in files if (match := _VERSION.fullmatch(file.name))]
    epsilon = 0.0
    if (folder / ACCOUNT).exists():
        from florilegium.privacy.dp_sgd import Account

        delta = float(json.loads((folder / ACCOUNT).read_text(encoding="utf-8"))["delta"])
        epsilon = Account(folder / ACCOUNT, delta).epsilon()
    size = sum(file.stat().st_size for file in files)
    return Kept(
        folder.parent.name, folder.name, folder, max(rounds, default=0), (folder / MODEL).exists(), epsilon, size
    )


STATUS = ("run", "client", "method", "last round", "model", "ε spent", "kB")


def status(state_dir: Path) -> list[tuple[str, ...]]:
    """Return what a device's ``state-dir`` holds: for each run and client, what :data:`STATUS` lists."""
    rows: list[tuple[str, ...]] = []
    for one in kept(state_dir):
        card = load_model(one.folder)[1] if one.model else None
        model = f"{card.model} for {card.dataset}" if card else "none yet"
        method, spent = card.method if card else "", f"{one.epsilon:.3g}" if one.epsilon else ""
        rows.append((one.run, one.client, method, str(one.round or ""), model, spent, f"{one.size / 1000:.0f}"))
    return rows


def model_folder(state_dir: Path, run: str, client: str = "") -> Path:
    """Return the folder of the model that a run has left on a device.

    Raises:
        ConfigurationError: if there is no model, or there are several and no client is named.
    """
    with_model = [one for one in kept(state_dir, run, client) if one.model]
    if not with_model:
        raise ConfigurationError(
            f"{_named(run, client)} has no model in {state_dir} yet: it arrives with the last round"
        )
    if len(with_model) > 1:
        names = ", ".join(one.client for one in with_model)
        raise ConfigurationError(f"client: run '{run}' has left models of {names}; name one of them")
    return with_model[0].folder


def export(source: Path, target: Path, *, onnx: bool) -> Path:
    """Copy a model and its card to ``target``; with ``onnx`` also write ``model.onnx``, which returns probabilities.

    Raises:
        RunError: if there is no readable model, or the network cannot be written as ONNX.
    """
    load_model(source)
    for name in (MODEL, "card.json", *([FILE] if (source / FILE).exists() else [])):
        write_atomically(target / name, partial(shutil.copyfile, source / name))
    if onnx:
        add_onnx(target)
    return target


def forget(state_dir: Path, run: str, client: str = "") -> list[Path]:
    """Delete all that a device keeps of a run, or of one client in it; return the deleted folders.

    This deletes models, heads, and the privacy account. Files shared by several clients are deleted with the last one.
    """
    if not re.fullmatch(NAME, run):
        raise ConfigurationError(f"run: '{run}' is not the name of a run")
    gone = [one.folder for one in kept(state_dir, run, client)]
    for folder in gone:
        shutil.rmtree(folder)
    whole = state_dir / run
    if not any(_is_state(folder) for folder in _folders(whole)):
        shutil.rmtree(whole)
        gone.append(whole)
    return gone
