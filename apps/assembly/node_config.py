"""Settings of a device, from its SuperNode's ``--node-config``: client id, data, and state folder."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import Field, ValidationError, field_validator

from florilegium.common.errors import DataError, RefusedError, nearest
from florilegium.common.model_folders import PREFIX, named_folder
from florilegium.common.settings import NAME, Section, Value, check_folder, folder
from florilegium.common.text import listed
from florilegium.partitions.clientdata import ClientData
from florilegium.partitions.device_data import DeviceSchema, read_device, read_device_schema, report
from florilegium.partitions.sources.words import vocabulary
from florilegium.partitions.spec import DatasetSpec
from florilegium.partitions.terms import Terms
from florilegium.privacy.allowance import FOLDER, Allowance
from florilegium.privacy.secure_sum.identity import Identity, read_identity
from florilegium.strategies.exchange.flower_inside import node_pairs

log = logging.getLogger("flwr")

_PAIR = re.compile(r"""\S+?=('[^']*'|"[^"]*"|\S+)""")
"""What Flower takes for a pair of ``--node-config``."""
SHORTEST = 16
"""Bytes of a secret key, at least."""
NEW = "new"
"""Reserved client id of a new client whose model is built by ``florilegium personalise``."""


class DeviceSettings(Section):
    """The keys of ``--node-config``.

    Attributes:
        data_path: location of the data (:func:`florilegium.partitions.device_data.read_device`).
        client_id: the client's id in runs.
        state_dir: folder of the client's durable state; "": the one in the run configuration.
        labeled: whether its training rows have labels that may be used.
        schema_file: a file that maps the device's names of columns and classes (key ``schema``).
        dataset: the device's copy of the dataset folder, if the run's ``dataset`` is a path.
        base: the device's copy of the folder of the run's pretrained model, if ``model`` is ``transformers:…``.
        embeddings: the device's copy of the run's ``embeddings`` file, for datasets of words.
        max_epsilon: the total ε that the client may spend over all runs; runs without private examples are then
            refused. 0: any run is welcome.
        capacity: the share of each layer's channels that the device can hold; methods that send whole networks leave
            a device with less than 1 out.
        identity: file of the private key with which the device certifies its keys in secure sums.
        peers: file of the public keys of the devices with which it takes part in secure sums; "": with any.
        withhold: input columns that no run may use, separated by commas. Methods that can do without them leave the
            device out for these columns alone; it takes part in no other run that has them.
        extremes: whether the least and the largest number of a column may leave the device.
        row_key: file with a secret that the devices share, by which rows that several hold are counted.
        threads: with how many threads the device computes (:func:`florilegium.clients.core.worker.limit_threads`).
    """

    data_path: str = Field(min_length=1)
    client_id: str = Field("device", pattern=f"^{NAME}$")
    state_dir: str = ""
    labeled: bool = True
    schema_file: str = Field("", alias="schema")
    dataset: str = ""
    base: str = ""
    embeddings: str = ""
    max_epsilon: float = Field(0.0, ge=0)
    capacity: float = Field(1.0, gt=0, le=1)
    identity: str = ""
    peers: str = ""
    withhold: str = ""
    extremes: bool = False
    row_key: str = ""
    threads: int = Field(0, ge=0, le=1024)

    _check = field_validator(
        "state_dir", "schema_file", "dataset", "base", "embeddings", "identity", "peers", "row_key"
    )(check_folder)

    @field_validator("client_id")
    @classmethod
    def _is_nobody_elses(cls, client_id: str) -> str:
        if client_id == NEW:
            raise ValueError(f"'{NEW}' is reserved for clients that no run has seen; choose another name")
        return client_id

    def copies(self, config: Mapping[str, Value]) -> dict[str, Value]:
        """Return the keys of a run for which the device has copies of its own, with their places."""
        own: dict[str, Value] = {"dataset": self.dataset} if self.dataset else {}
        if self.base and named_folder(str(config.get("model", ""))):
            own["model"] = f"{PREFIX}{self.base}"
        return own


def allowance_of(device: DeviceSettings, unit: str) -> Allowance | None:
    """Return the total privacy cost that a device's owner allows; None: any.

    Args:
        device: the owner's settings.
        unit: what the run protects (key ``privacy.unit``).

    Raises:
        RefusedError: if the owner asks for privacy that the run does not have.
    """
    if not device.max_epsilon:
        return None
    if unit != "example":
        raise RefusedError(
            f"the owner of this device lets it take part only in runs with privacy.unit = 'example' (found: '{unit}')"
        )
    path = Path(device.state_dir).expanduser() / FOLDER / f"{device.client_id}.json"
    return Allowance(path, device.max_epsilon)


def read_node(text: str) -> DeviceSettings:
    """Read the text of ``--node-config``: pairs ``key=value`` with blanks between them, or the name of a TOML file.

    Raises:
        DataError: if Flower, whose format this is, would ignore a part of it, such as a pair with blanks around "=".
    """
    rest = "" if text.endswith(".toml") else _PAIR.sub("", text).strip()
    if rest:
        raise DataError(
            f"--node-config: Flower would ignore '{rest}'; write key=value without blanks around '=', a blank between "
            "pairs, and texts in quotes"
        )
    return parse_node(node_pairs(text))


def identity_of(device: DeviceSettings) -> Identity | None:
    """Return the identity of a device, and those that it knows; None if it has none.

    Raises:
        DataError: if a file cannot be used.
    """
    if not device.identity:
        return None
    return read_identity(folder(device.identity), folder(device.peers) if device.peers else None)


def parse_node(node: Mapping[str, Value]) -> DeviceSettings:
    """Check a device's ``--node-config``.

    Raises:
        DataError: naming the first key that is unknown or wrong.
    """
    keys = [field.alias or name for name, field in DeviceSettings.model_fields.items()]
    for key in node:
        if key not in keys:
            raise DataError(f"--node-config: there is no key '{key}'{nearest(key, keys)} Known: {', '.join(keys)}.")
    name = node.get("client-id", "")
    if isinstance(name, bool | float):
        raise DataError(f'--node-config: client-id: write the name in quotes, such as client-id="1.10" (found: {name})')
    if node.get("max-epsilon") and not node.get("state-dir"):
        raise DataError("--node-config: max-epsilon needs state-dir, where the privacy account is kept from run to run")
    if node.get("peers") and not node.get("identity"):
        raise DataError("--node-config: peers needs identity, the device's own key, by which the others know it")
    words = {key: str(value) if key == "client-id" else value for key, value in node.items()}
    try:
        return DeviceSettings.model_validate(words)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise DataError(f"--node-config: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error


def _secret(path: str) -> bytes:
    """Return the content of the file of a secret, a line of text; b"" without one.

    Raises:
        DataError: if the file cannot be read, or is shorter than 16 bytes.
    """
    if not path:
        return b""
    try:
        secret = folder(path).read_bytes().strip()
    except OSError as error:
        raise DataError(f"--node-config: row-key: {path} cannot be read: {error.strerror}") from error
    if len(secret) < SHORTEST:
        raise DataError(f"--node-config: row-key: {path} must hold at least {SHORTEST} bytes (found: {len(secret)})")
    return secret


def own_data(
    device: DeviceSettings,
    spec: DatasetSpec,
    on: torch.device,
    *,
    embeddings: str,
    cache_dir: str,
    duplicates: str,
    by_column: bool = False,
) -> ClientData:
    """Read a device's data as examples of the dataset ``spec`` onto device ``on``, and log a summary.

    ``embeddings`` is the run's file of word vectors; it is used if the device names no copy of its own. ``duplicates``
    is the run's key; ``by_column`` says whether the run can do without some columns of a table.

    Raises:
        DataError: if the data cannot be used.
    """
    words = vocabulary(device.embeddings or embeddings, cache_dir, spec.shape[1]) if spec.kind == "words" else None
    schema = read_device_schema(Path(device.schema_file).expanduser()) if device.schema_file else DeviceSchema()
    where = device.data_path if ":" in device.data_path else Path(device.data_path).expanduser()
    terms = Terms(frozenset(listed(device.withhold)), device.extremes, _secret(device.row_key))
    data = read_device(
        where, spec, on, words, labeled=device.labeled, schema=schema, duplicates=duplicates, terms=terms,
        by_column=by_column,
    )  # fmt: skip
    log.info("client %s, %s: %s", device.client_id, device.data_path, report(data, spec))
    return data
