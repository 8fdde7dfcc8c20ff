"""The host: runs the clients a message names, one after the other in one process, and sends one reply.

Together with ``strategies.cohort`` this is the one place that knows the message protocol (docs/architecture.md):

request  ``arrays`` broadcast, ``scatter`` with a leading client axis (optional), ``config`` with ``phase``,
         ``round``, ``clients``, ``reduce``, ``run``, ``lineage``, ``checkpoint`` and the phase's own scalars
reply    ``arrays`` as ``reduce`` says, ``metrics`` with a list per number, ``outcome`` with the ids that succeeded
         (in the order of the lists) and the error of each that failed

A message without ``clients`` comes from a stock Flower strategy; the node's own client (in a simulation, the one with
the node's number) answers it as stock strategies expect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import nn

from clients.base import BaseClient, Config
from clients.reduce import Reduction
from clients.settings import ClientSettings
from clients.state import ClientState
from common.errors import FlorilegiumError, RunError
from common.settings import NAME, Section, folder
from models.parameters import Arrays, get_arrays, num_bytes
from partitions.clientdata import ClientData


class Source(Protocol):
    """Where a node's clients come from."""

    pinned: bool
    """Whether the node holds the data of certain clients only (a device), or can stand in for any (a simulation)."""

    def clients(self) -> Sequence[str]:
        """Return the ids of the clients this node holds."""

    def data(self, client_id: str) -> ClientData:
        """Return the data of a client."""


class Host:
    """Runs clients with one network.

    Args:
        client_class: the method's client.
        settings: the run's configuration.
        hyper: the method's own hyper-parameters.
        model: the network, freshly built from the run's seed.
        source: where the clients' data come from.
        state_dir: the node's own folder for client state; "" to use the run's.
    """

    def __init__(
        self,
        client_class: type[BaseClient],
        settings: ClientSettings,
        hyper: Section,
        model: nn.Module,
        source: Source,
        state_dir: str,
    ) -> None:
        self._client_class = client_class
        self._settings = settings
        self._hyper = hyper
        self._model = model
        self._initial = get_arrays(model)
        self._source = source
        self._state_dir = state_dir or settings.state_dir

    # -------------------------------------------------------------------------------------- messages

    def roster(self, message: Message, code: str) -> Message:
        """Answer which clients live here, how much data they have, and which code runs."""
        answer = ConfigRecord({"pinned": self._source.pinned, "code": code})
        sizes = MetricRecord()
        if self._source.pinned:
            ids = list(self._source.clients())
            answer["clients"] = ids
            data = [self._source.data(client_id) for client_id in ids]
            sizes["train"] = [len(d.train) for d in data]
            sizes["test"] = [len(d.test) for d in data]
        return Message(RecordDict({"roster": answer, "sizes": sizes}), reply_to=message)

    def answer(self, message: Message, own: str) -> Message:
        """Carry out a train or evaluate message.

        Args:
            message: the request.
            own: the id of the client that a stock strategy means when it addresses this node.
        """
        config = message.content["config"]
        if "clients" not in config:
            return self._answer_stock(message, own)
        sent = _unpack(message, "arrays")
        scatter = _unpack(message, "scatter")
        reduction = Reduction(str(config["reduce"]), sent)
        done: list[str] = []
        failures = ConfigRecord()
        metrics: dict[str, list[float]] = {}
        for index, client_id in enumerate(config["clients"]):
            try:
                client = self._client(client_id, config)
                received = sent | {name: array[index] for name, array in scatter.items()}
                answer = client.perform(received, config)
                reduction.check(answer.arrays)
                client.state.commit()
                if config.get("keep") and self._source.pinned:
                    self._keep(client, config)
            except Exception as error:  # whatever goes wrong in one client must not take the others down
                failures[client_id] = (
                    str(error) if isinstance(error, FlorilegiumError) else f"{type(error).__name__}: {error}"
                )
                continue
            weight = 1.0 if self._settings.weighting == "uniform" else float(answer.num_examples)
            reduction.add(answer.arrays, weight)
            numbers = {
                "num-examples": float(answer.num_examples),
                "weight": weight,
                "bytes-down": float(num_bytes(received)),
                "bytes-up": float(num_bytes(answer.arrays)),
                **answer.metrics,
            }
            for name in numbers.keys() | metrics.keys():
                metrics.setdefault(name, [float("nan")] * len(done)).append(numbers.get(name, float("nan")))
            done.append(client_id)
        content = RecordDict(
            {
                "arrays": _pack(reduction.result()),
                "metrics": MetricRecord(dict(metrics)),
                "outcome": ConfigRecord({"clients": done}),
                "failures": failures,
            }
        )
        return Message(content, reply_to=message)

    def personal_model(self, client_id: str, arrays: Arrays, config: Config) -> None:
        """Leave in the host's network the model that a client would use: the end of its ``test`` phase."""
        self._client(client_id, config).perform(arrays, {**config, "phase": "test"})

    # --------------------------------------------------------------------------------------- details

    def _client(self, client_id: str, config: Config) -> BaseClient:
        state = ClientState(
            self._state_folder(client_id, str(config["run"])),
            int(config["round"]),
            list(config["lineage"]),
            int(config["checkpoint"]),
        )
        data = self._source.data(client_id)
        return self._client_class(client_id, data, self._model, self._initial, state, self._settings, self._hyper)

    def _state_folder(self, client_id: str, run: str) -> Path:
        for name in (client_id, run):
            if not re.fullmatch(NAME, name):
                raise RunError(f"'{name}' cannot name a folder; use letters, digits, '.', '_' and '-'")
        base = folder(self._state_dir) / run if self._state_dir else folder(self._settings.runs_dir) / run / "clients"
        return base / client_id

    def _keep(self, client: BaseClient, config: Config) -> None:
        from clients.export import save_model

        save_model(
            client.state.folder,
            get_arrays(client.model),
            client.client_id,
            str(config["run"]),
            self._settings,
        )

    def _answer_stock(self, message: Message, own: str) -> Message:
        """Answer a stock strategy: the trained arrays themselves, and plain numbers."""
        record: ConfigRecord = message.content["config"]
        config = {
            **record,
            "round": int(record.get("server-round", 0)),
            "run": str(message.metadata.run_id),
            "lineage": [],
            "checkpoint": 0,
        }
        client = self._client(own, config)
        arrays = list(_unpack(message, "arrays").values())
        if message.metadata.message_type.startswith("train"):
            returned, count, numbers = client.fit(arrays, config)
            client.state.commit()
            names = list(message.content["arrays"].keys())
            content = {"arrays": _pack(dict(zip(names, returned, strict=True)))}
        else:
            _, count, numbers = client.evaluate(arrays, config)
            content = {}
        metrics = MetricRecord({"num-examples": count, **numbers})
        return Message(RecordDict({**content, "metrics": metrics}), reply_to=message)


def _unpack(message: Message, name: str) -> Arrays:
    if name not in message.content:
        return {}
    return {key: array.numpy() for key, array in message.content[name].items()}


def _pack(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
